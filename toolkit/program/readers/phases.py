"""What a rank holds where the phases of a step begin, by part."""

from toolkit.program.events import PARTS, PHASES, Alloc, At, Free, Part, Program, Section

Held = dict[Part, int]


def read_phases(program: Program) -> list[Held]:
    """Return the bytes of each part at the beginning of a step, of its phases, and at its end.

    The phases are those of the training loop: forward and backward of each micro-step, optimizer.
    """
    held: Held = dict.fromkeys(PARTS, 0)
    found: list[Held] = []
    for section in program.sections:
        if section.name == "before":
            _follow(section, held)
            found.append(dict(held))
            continue
        begins = [dict(held), *_follow(section, held)]
        found += begins * section.times
    return [*found, dict(held)]


def _follow(section: Section, held: Held) -> list[Held]:
    """Let a section happen; return what is held where its backward pass begins, if it has one."""
    begins: list[Held] = []
    for event in section.events:
        if isinstance(event, Alloc):
            held[event.part] += event.bytes
        elif isinstance(event, Free):
            held[event.part] -= event.bytes
        elif isinstance(event, At) and PHASES[event.moment] == "backward" and not begins:
            begins.append(dict(held))
    return begins
