import dataclasses
import hashlib
import json
import socket
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from toolkit.data import package_index
from toolkit.data.package_index import PinnedFile, UnreachableError, fetch
from toolkit.errors import UntrustedError

DATA = b"the archive"
FILE = PinnedFile(
    project="plays",
    name="plays-1.0.tar.gz",
    size=len(DATA),
    sha256=hashlib.sha256(DATA).hexdigest(),
)
JSON = "application/vnd.pypi.simple.v1+json"


@contextmanager
def served(answers, *, claimed_length=None):
    """A web server on the loopback: `answers` gives type and body of each path."""
    seen = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            seen.append((self.path, self.headers.get("Authorization")))
            status, kind, body = answers.get(self.path, (404, "text/plain", b""))
            self.send_response(status)
            self.send_header("Location" if status == 302 else "Content-Type", kind)
            if claimed_length and kind == "application/gzip":
                self.send_header("Content-Length", str(claimed_length))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_port}", seen
    finally:
        server.shutdown()
        server.server_close()


def use_index(monkeypatch, address, **settings):
    monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")
    found = {"index-url": address, **settings}
    monkeypatch.setattr(package_index, "_pip_settings", lambda: found)


def listing(url, name=FILE.name):
    files = [{"filename": name, "url": url, "hashes": {}}]
    project = {"meta": {"api-version": "1.0"}, "name": FILE.project, "files": files}
    return 200, JSON, json.dumps(project).encode()


def page(body):
    return 200, "text/html; charset=utf-8", body.encode()


@pytest.mark.parametrize(
    "index_page",
    [
        listing("../../files/plays-1.0.tar.gz"),
        listing("/files/plays-1.0.tar.gz#sha256=0"),
        page(
            '<a href="x.whl">x.whl</a>'
            '<a href="../../files/plays-1.0.tar.gz#sha256=0">plays-1.0.tar.gz</a>'
        ),
    ],
)
def test_follows_the_index_that_pip_uses(monkeypatch, index_page):
    answers = {
        "/simple/plays/": index_page,
        "/files/plays-1.0.tar.gz": (200, "application/gzip", DATA),
    }
    with served(answers) as (host, seen):
        use_index(monkeypatch, f"http://{host}/simple/")
        assert fetch(FILE, timeout=5) == DATA
    assert seen == [("/simple/plays/", None), ("/files/plays-1.0.tar.gz", None)]


def test_other_bytes_are_not_trusted(monkeypatch):
    answers = {"/plays/": listing("/x"), "/x": (200, "application/gzip", b"another one")}
    with served(answers) as (host, _):
        use_index(monkeypatch, f"http://{host}")
        with pytest.raises(UntrustedError) as caught:
            fetch(FILE, timeout=5)
    assert FILE.sha256 in str(caught.value)
    assert hashlib.sha256(b"another one").hexdigest() in str(caught.value)


def test_a_password_goes_to_the_index_and_nowhere_else(monkeypatch):
    with served({"/x": (200, "application/gzip", DATA)}) as (other, seen_by_other):
        # The same machine under another name is another host.
        elsewhere = other.replace("127.0.0.1", "localhost")
        answers = {"/plays/": listing("/y"), "/y": (302, f"http://{elsewhere}/x", b"")}
        with served(answers) as (host, seen):
            use_index(monkeypatch, f"http://me:s%40fe@{host}")
            assert fetch(FILE, timeout=5) == DATA
    assert [password for _, password in seen] == ["Basic bWU6c0BmZQ=="] * 2
    assert [password for _, password in seen_by_other] == [None]


@pytest.mark.parametrize(
    "answer",
    [
        (404, "text/plain", b""),
        (200, JSON, b"{}"),
        (200, JSON, b"[]"),
        (200, JSON, b"not json"),
        listing("/x", name="plays-0.9.tar.gz"),
        page("<p>nothing</p>"),
        page('<a href="http://[::bad/plays-1.0.tar.gz">plays</a>'),
    ],
)
def test_an_index_without_the_file_is_unreachable(monkeypatch, answer):
    with served({"/plays/": answer}) as (host, _):
        use_index(monkeypatch, f"http://{host}")
        with pytest.raises(UnreachableError) as caught:
            fetch(FILE, timeout=5)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("address", ["http://127.0.0.1:1/simple", "nonsense", "http://"])
def test_an_index_that_does_not_answer_is_unreachable(monkeypatch, address):
    use_index(monkeypatch, address)
    with pytest.raises(UnreachableError):
        fetch(FILE, timeout=5)


def test_an_index_that_falls_silent_is_unreachable(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        use_index(monkeypatch, f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(UnreachableError, match="timed out"):
            fetch(FILE, timeout=0.1)


def test_a_connection_that_breaks_off_is_unreachable(monkeypatch):
    answers = {"/plays/": listing("/x"), "/x": (200, "application/gzip", DATA[:-3])}
    with served(answers, claimed_length=len(DATA)) as (host, _):
        use_index(monkeypatch, f"http://{host}")
        with pytest.raises(UnreachableError, match="IncompleteRead"):
            fetch(dataclasses.replace(FILE, size=100), timeout=5)


def test_reads_what_pip_is_set_up_to_use(monkeypatch, tmp_path):
    (tmp_path / "pip.conf").write_text(
        "[global]\nindex-url = http://a/simple\ncert = /a.pem\n[install]\nno-index = true\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    monkeypatch.setenv("PIP_INDEX_URL", "http://b/simple")
    monkeypatch.delenv("PIP_CERT", raising=False)
    monkeypatch.delenv("PIP_NO_INDEX", raising=False)
    settings = package_index._pip_settings()
    assert settings["index-url"] == "http://b/simple"
    assert settings["cert"] == "/a.pem"
    with pytest.raises(UnreachableError, match="use no index"):
        fetch(FILE, timeout=5)


def test_without_a_setting_it_is_pips_own_index():
    from pip._internal.models.index import PyPI

    assert package_index._index_address({}) == PyPI.simple_url.rstrip("/")


def test_a_broken_certificate_file_is_unreachable(monkeypatch, tmp_path):
    (tmp_path / "bad.pem").write_text("no certificate")
    use_index(monkeypatch, "https://127.0.0.1:1/simple", cert=str(tmp_path / "bad.pem"))
    with pytest.raises(UnreachableError, match="SSLError"):
        fetch(FILE, timeout=5)
