"""The site builds without a warning or the network, and links of other documents lead on."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\]\(([^)\s]+)\)")
NO_NETWORK = {"HTTPS_PROXY": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9"}


def build(*words: str | Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "mkdocs", "build", *map(str, words)]
    return subprocess.run(
        command, cwd=ROOT, env=os.environ | NO_NETWORK, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("material", reason="mkdocs-material is not installed")
    folder = tmp_path_factory.mktemp("site")
    done = build("--site-dir", folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_is_there(site: Path) -> None:
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")}
    built = {Path("index.html"), *(Path(page) / "index.html" for page in pages)}
    assert [page for page in built if not (site / page).is_file()] == []


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    loaded = re.compile(r'<(?:script|img|link rel="(?:stylesheet|preconnect)")[^>]*"(?:https?:)?//')
    found = {page: loaded.findall(page.read_text()) for page in site.rglob("*.html")}
    assert {page: links for page, links in found.items() if links} == {}


def test_a_broken_link_ends_the_build(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="mkdocs-material is not installed")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text("[a](nowhere.md) [b](../nothing.py) [c](#none)\n")
    settings = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[0]
    settings = settings.replace("docs/scripts/hooks.py", str(ROOT / "docs/scripts/hooks.py"))
    (tmp_path / "mkdocs.yml").write_text(settings)
    done = build("--config-file", tmp_path / "mkdocs.yml", "--site-dir", tmp_path / "site")
    assert done.returncode != 0
    for broken in ("nowhere.md", "../nothing.py", "#none"):
        assert broken in done.stderr


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_of_other_documents_lead_somewhere(document: str) -> None:
    links = LINK.findall((ROOT / document).read_text())
    paths = [link.partition("#") for link in links if not link.startswith("http")]
    assert [path for path, _, _ in paths if path and not (ROOT / path).exists()] == []
    anchors = [(path or document, anchor) for path, _, anchor in paths if anchor]
    assert [where for where in anchors if where[1] not in headings(where[0])] == []


def headings(document: str) -> set[str]:
    """The anchors of a Markdown file's headings, as GitHub and MkDocs name them."""
    titles = re.findall(r"^#+ (.*)$", (ROOT / document).read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
