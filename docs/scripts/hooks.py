"""What MkDocs calls while it builds the site: links out of docs/ that work in a checkout as well.

A page links to a file of the repository as `../FILE`. On the site that is a page of the
repository, and a picture is taken along.
"""

import logging
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
_LINK = re.compile(r"\]\(\.\./([^)#\s]+)")
_PICTURES = (".png", ".svg")
_log = logging.getLogger("mkdocs.hooks.outside")


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """Return the page's text with each link out of docs/ replaced; a broken one is a warning."""

    def target(link: re.Match[str]) -> str:
        path = link[1]
        if not (ROOT / path).exists():
            _log.warning("%s links to ../%s, which is not there", page.file.src_uri, path)
        if not path.endswith(_PICTURES):
            return f"]({config.repo_url}/blob/main/{path}"
        if files.get_file_from_path(path) is None:
            files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
        return f"]({path}"

    return _LINK.sub(target, markdown)
