"""What MkDocs calls while it builds the site, so that links work on it and in a checkout alike.

README is the first page. A page links to a file outside docs/ as `../FILE`: on the site that is a
page of the repository, and a picture is taken along.
"""

import logging
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
_INTO_DOCS = re.compile(r"\]\(docs/")
_OF_THE_ROOT = re.compile(r"\]\((?!https?:|#|docs/)")
_OUTSIDE = re.compile(r"\]\(\.\./([^)#\s]+)")
_PICTURES = (".png", ".svg")
_log = logging.getLogger("mkdocs.hooks.outside")


def on_files(files: Files, *, config: Any) -> Files:
    """Add README as the first page, with its links as from a page of docs/."""
    readme = _OF_THE_ROOT.sub("](../", (ROOT / "README.md").read_text())
    home = _INTO_DOCS.sub("](", readme)
    files.append(File.generated(config, "index.md", content=home))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """Return the page's text with each link out of docs/ replaced; a broken one is a warning."""

    def target(link: re.Match[str]) -> str:
        path = link[1]
        if path == "README.md":
            return "](index.md"
        if not (ROOT / path).exists():
            _log.warning("%s links to ../%s, which is not there", page.file.src_uri, path)
        if not path.endswith(_PICTURES):
            return f"]({config.extra['repository']}/blob/main/{path}"
        if files.get_file_from_path(path) is None:
            files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
        return f"]({path}"

    return _OUTSIDE.sub(target, markdown)
