"""What the documents show: console samples and whether a program prints them, and commands.

A fence of the language `console` holds samples: a line `$ COMMAND` and the lines below it. In them
`...` stands for any text, and on a line of its own for any lines. A fence of `sh` holds commands.
The line `<!-- not run: REASON -->` above one is why no test runs it.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCUMENTS = [
    str(path.relative_to(ROOT))
    for pattern in ("README.md", "[!R]*.md", "docs/*.md", "benchmarks/**/*.md", "tests/*.md")
    for path in sorted(ROOT.glob(pattern))
]
FENCE = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^\n]*) -->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
# Not the digits of a name such as fsdp2 or A100-80.
NUMBER = re.compile(r"(?<![A-Za-z\d.,])[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]\d+)?")
GENERATED = re.compile(r"^(sample .*?)(['\"]).*\2$")

rewrites_samples = False
"""Set by `pytest --rewrite-samples`: a sample that no longer holds is replaced in its document."""


@dataclass(frozen=True)
class Fence:
    """A block of a document; `reason` is why no test runs it, or None."""

    document: str
    line: int
    language: str
    text: str
    reason: str | None

    @property
    def commands(self) -> list[str]:
        """The command lines of a block without output; a remark is no part of one."""
        joined = re.sub(r"\\\n\s*", "", self.text)
        lines = (re.sub(r"\s+#.*", "", line) for line in joined.splitlines())
        return [line for line in lines if line]


@dataclass(frozen=True)
class Sample:
    """A command without its remark, and what is shown below it in a document."""

    command: str
    shown: str
    document: str = ""

    def assert_is(self, printed: str) -> None:
        """Fail unless this is what was printed, to the letter."""
        shown = self._rewritten(printed, lambda text: text)
        assert re.fullmatch(_pattern(shown), printed), f"{shown}\nis not\n{printed}"

    def assert_is_like(self, printed: str) -> None:
        """As `assert_is`, with other numbers, widths, generated text and counts of like lines."""
        shown = masked(self._rewritten(printed, masked))
        found = masked(printed)
        assert re.fullmatch(_pattern(shown), found), f"{shown}\nis not like\n{found}"

    def _rewritten(self, printed: str, seen: Callable[[str], str]) -> str:
        """Return what is shown, brought up to date in its document where that is asked for."""
        if not rewrites_samples or re.fullmatch(_pattern(seen(self.shown)), seen(printed)):
            return self.shown
        shown = nearest(self.shown, printed, seen)
        path = ROOT / self.document
        path.write_text(path.read_text().replace(self.shown, shown, 1))
        return shown


def fences(document: str) -> list[Fence]:
    """Return the blocks of a document in its order."""
    text = (ROOT / document).read_text()
    return [
        Fence(document, text.count("\n", 0, found.start("text")), *found.group(2, 3, 1))
        for found in FENCE.finditer(text)
    ]


def all_samples(document: str) -> list[Sample]:
    """Return the samples of a document in its order."""
    found = []
    for fence in fences(document):
        for part in re.split(r"^\$ ", fence.text, flags=re.MULTILINE)[1:]:
            command, _, shown = part.partition("\n")
            found.append(Sample(re.sub(r"\s{2,}#.*", "", command), shown, document))
    return found


def sample(command: str, *, nth: int = 0) -> Sample:
    """Return the documents' sample of a command, or a further one."""
    samples = (found for document in DOCUMENTS for found in all_samples(document))
    return [found for found in samples if found.command == command][nth]


def masked(text: str) -> str:
    """Return text without what differs from run to run; lines that are then alike become one."""
    lines: list[str] = []
    for line in text.splitlines():
        plain = re.sub(r"[━─]+", "─", " ".join(line.split()))
        plain = GENERATED.sub(r"\1'text'", NUMBER.sub("#", plain))
        if plain not in lines[-1:]:
            lines.append(plain)
    return "".join(f"{line}\n" for line in lines)


def nearest(shown: str, printed: str, seen: Callable[[str], str]) -> str:
    """Return `shown` with what is no longer printed replaced; `...` stays where it is."""
    old, new = shown.splitlines(), printed.splitlines()
    alike = SequenceMatcher(None, [*map(seen, old)], [*map(seen, new)], autojunk=False)
    lines = []
    for tag, first, last, new_first, new_last in alike.get_opcodes():
        block, replacement = old[first:last], new[new_first:new_last]
        if tag == "equal":
            lines += block
        elif any("..." in line for line in block):
            lines += _each_nearest(block, replacement, seen)
        else:
            lines += replacement
    return "".join(f"{line}\n" for line in lines)


def _each_nearest(block: list[str], left: list[str], seen: Callable[[str], str]) -> list[str]:
    """Return each line, or what is printed in its place: the next, or after `...` the most like."""
    lines: list[str] = []
    for line in block:
        if line == "...":
            lines.append(line)
        elif left:
            likeness = [_likeness(line, other, seen) for other in left]
            best = likeness.index(max(likeness)) if lines[-1:] == ["..."] else 0
            lines.append(line if likeness[best] == 1 else left[best])
            left = left[best + 1 :]
    return lines if lines[-1:] == ["..."] else lines + left


def _likeness(shown: str, printed: str, seen: Callable[[str], str]) -> float:
    if re.fullmatch(_pattern(seen(f"{shown}\n")), seen(f"{printed}\n")):
        return 1.0
    return 0.99 * SequenceMatcher(None, seen(shown), seen(printed)).ratio()


def _pattern(shown: str) -> str:
    lines = [
        r"(?:.*\n)*" if line == "..." else ".*".join(map(re.escape, line.split("..."))) + r"\n"
        for line in shown.splitlines()
    ]
    return "".join(lines)
