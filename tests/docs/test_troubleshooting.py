"""What the documents quote of messages and exit codes is what the code has."""

import re
from pathlib import Path

import pytest

from toolkit import errors

ROOT = Path(__file__).parents[2]
ROWS = re.findall(
    r"^\| (.*?) \| ", (ROOT / "docs" / "troubleshooting.md").read_text(), re.MULTILINE
)
# A message in quotation marks is a whole cell; `…` stands for what differs.
MESSAGES = [match[1] for row in ROWS if (match := re.fullmatch(r"`([a-z].* .*)`", row))]
CODE = "".join(path.read_text() for path in (ROOT / "toolkit").rglob("*.py"))
# Texts that are written in several pieces.
JOINED = re.sub(r'"\s*f?"', "", CODE)


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_is_one_that_is_printed(message: str) -> None:
    assert len(MESSAGES) > 5
    pattern = r"[^\n]*".join(map(re.escape, message.split("…")))
    assert re.search(pattern, JOINED)


def test_exit_codes_are_those_of_the_errors() -> None:
    table = (ROOT / "docs" / "launching.md").read_text().partition("## Exit codes")[2]
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}
    raised = {kind.exit_code for kind in errors.ToolkitError.__subclasses__()}
    assert listed == raised | {0, 1}
