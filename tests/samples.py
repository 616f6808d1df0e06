"""Console samples of the documents, and whether they are what a program prints.

A sample is a line `$ COMMAND` and the lines below it. In it `...` stands for any text, and on a
line of its own for any lines.
"""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r"^```\w*\n(.*?)^```$", re.DOTALL | re.MULTILINE)
# Not the digits of a name such as fsdp2 or A100-80.
NUMBER = re.compile(r"(?<![A-Za-z\d.,])[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]\d+)?")
GENERATED = re.compile(r"^(sample .*?)(['\"]).*\2$")


@dataclass(frozen=True)
class Sample:
    """A command without its remark, and what is shown below it."""

    command: str
    shown: str

    def assert_is(self, printed: str) -> None:
        """Fail unless this is what was printed, to the letter."""
        assert re.fullmatch(_pattern(self.shown), printed), f"{self.shown}\nis not\n{printed}"

    def assert_is_like(self, printed: str) -> None:
        """As `assert_is`, with other numbers, widths, generated text and counts of like lines."""
        shown, found = masked(self.shown), masked(printed)
        assert re.fullmatch(_pattern(shown), found), f"{shown}\nis not like\n{found}"


def fences(document: str = "README.md") -> list[str]:
    """Return what stands between the fences of a document."""
    return FENCE.findall((ROOT / document).read_text())


def all_samples(document: str = "README.md") -> list[Sample]:
    """Return the samples of a document in its order."""
    found = []
    for fence in fences(document):
        for part in re.split(r"^\$ ", fence, flags=re.MULTILINE)[1:]:
            command, _, shown = part.partition("\n")
            found.append(Sample(re.sub(r"\s{2,}#.*", "", command), shown))
    return found


def sample(command: str, *, nth: int = 0) -> Sample:
    """Return the README's sample of a command, or a further one."""
    return [found for found in all_samples() if found.command == command][nth]


def masked(text: str) -> str:
    """Return text without what differs from run to run; lines that are then alike become one."""
    lines: list[str] = []
    for line in text.splitlines():
        plain = re.sub(r"[━─]+", "─", " ".join(line.split()))
        plain = GENERATED.sub(r"\1'text'", NUMBER.sub("#", plain))
        if plain not in lines[-1:]:
            lines.append(plain)
    return "".join(f"{line}\n" for line in lines)


def _pattern(shown: str) -> str:
    lines = [
        r"(?:.*\n)*" if line == "..." else ".*".join(map(re.escape, line.split("..."))) + r"\n"
        for line in shown.splitlines()
    ]
    return "".join(lines)
