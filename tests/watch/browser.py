"""A real browser for pages that run JavaScript, or the reason why there is none."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


@contextmanager
def opened(file: Path, *, width: int = 1280, **settings: Any) -> Iterator[Any]:
    """Open a file; whatever it writes to the console, throws or loads from elsewhere fails."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip(f"no browser to open the page in: none of {', '.join(BROWSERS)} is installed")
    complaints: list[str] = []
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            page = browser.new_page(viewport={"width": width, "height": 900}, **settings)
            page.on("console", lambda message: complaints.append(message.text))
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.on("request", lambda request: _check_local(request.url, complaints))
            page.goto(file.as_uri())
            yield page
        finally:
            browser.close()
    assert complaints == []


def _check_local(url: str, complaints: list[str]) -> None:
    if not url.startswith("file:"):
        complaints.append(f"loads {url}")
