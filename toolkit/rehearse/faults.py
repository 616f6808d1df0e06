"""The faults of a rehearsal by name, and what must come of each. All befall the last machine."""

import re
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum

from toolkit.errors import UsageError


class Ending(Enum):
    """What must come of a fault; the values are what is printed."""

    DONE = "all machines end with 0 after the last step"
    REFUSED = "all machines end with 2 before the first step and name the machine and what differs"
    REPORTED = "within 90 s all machines print the address that they wait for"
    RESUMED = (
        "the machines end with 4 or 75 in the time set, no process is left, and the next start "
        "repeats steps exactly and ends with 0"
    )


@dataclass(frozen=True)
class Fault:
    """A fault, and when.

    Attributes:
        name: one of `ENDINGS`.
        at_s: seconds after the first step, of `late-machine` after the other machines' start; None
            for a fault that is there from the start.
    """

    name: str
    at_s: float | None

    @property
    def ending(self) -> Ending:
        """What must come of it."""
        return ENDINGS[self.name]

    def __str__(self) -> str:
        return self.name if self.at_s is None else f"{self.name}@{self.at_s:g}s"


ENDINGS = {
    "none": Ending.DONE,
    "link-down": Ending.RESUMED,
    "kill-machine": Ending.RESUMED,
    "slow-link": Ending.DONE,
    "late-machine": Ending.DONE,
    "wrong-address": Ending.REPORTED,
    "other-config": Ending.REFUSED,
    "other-data": Ending.REFUSED,
    "other-code": Ending.REFUSED,
    "other-version": Ending.REFUSED,
}
"""What must come of each fault; `none` is a run without one."""

_DEFAULT_AT_S = {"link-down": 2.0, "kill-machine": 2.0, "slow-link": 2.0, "late-machine": 10.0}
_FORM = re.compile(r"(?P<name>[^@]+)(@(?P<at_s>\d+(\.\d+)?)s)?")


def read_fault(text: str) -> Fault:
    """Return the fault that `name` or `name@SECONDSs` means.

    Raises:
        UsageError: there is no such fault, or it cannot be put off.
    """
    match = _FORM.fullmatch(text)
    if match is None:
        raise UsageError(f"--fault {text}: the form is NAME or NAME@SECONDSs, as in link-down@20s")
    name, at_s = match["name"], match["at_s"]
    if name not in ENDINGS:
        near = get_close_matches(name, ENDINGS, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"there are {', '.join(ENDINGS)}"
        raise UsageError(f"--fault {text}: there is no fault '{name}'; {hint}")
    if at_s is not None and name not in _DEFAULT_AT_S:
        raise UsageError(f"--fault {text}: '{name}' is there from the start, so it takes no time")
    return Fault(name, float(at_s) if at_s is not None else _DEFAULT_AT_S.get(name))
