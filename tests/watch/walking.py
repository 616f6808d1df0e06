"""A lesson's page in a browser, walked through and compared with its recording."""

import re
from pathlib import Path
from typing import Any

from tests.watch.by_hand import Recording
from toolkit.watch.page import write_page


def page_of(recordings: list[Recording], out: Path, **more: Any) -> Path:
    write_page({"recordings": recordings, "start": 0, **more}, out, title="t")
    return out


def shown(value: float | None) -> str:
    """Return a number as the page has it."""
    if value is None:
        return "–"
    text = f"{value:.4f}".rstrip("0").rstrip(".")
    return ("0" if text == "-0" else text).replace("-", "−")


def check_cells(page: Any, frame: dict[str, Any]) -> None:
    """Compare what each rank's panel shows of weights with the recording."""
    for rank, found in enumerate(frame["ranks"]):
        panel = page.locator(".rank").nth(rank)
        cells = panel.locator('tr[data-part="weights"] td').all_inner_texts()
        assert cells == [shown(value) for value in found["weights"]]
        if frame["phase"] == "backward" and panel.locator('tr[data-part="own"]').count():
            cells = panel.locator('tr[data-part="own"] td').all_inner_texts()
            assert cells == [shown(value) for value in found["own"]]


def walk(page: Any, recording: Recording) -> list[str]:
    """Walk through every phase by the arrow key; return the names of the phases."""
    page.keyboard.press("Home")
    names = []
    frames = [frame for batch in recording["batches"] for frame in batch["frames"]]
    total = int(re.findall(r"of (\d+)", page.locator(".controls").inner_text())[0])
    at = 0
    for _ in range(total):
        names.append(page.locator('[aria-current="step"]').inner_text())
        if names[-1].startswith("Reduce"):
            at -= 1
        elif not is_pending(frames[at]):
            check_cells(page, frames[at])
        at += 1
        page.keyboard.press("ArrowRight")
    return names


def is_pending(frame: dict[str, Any]) -> bool:
    kinds = {call[0] for call in frame["ranks"][0]["calls"] if call[2] > 1}
    return frame["phase"] == "backward" and bool(kinds & {"all_reduce", "reduce_scatter"})
