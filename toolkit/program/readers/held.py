"""Gradients that a rank holds between two micro-steps."""

from toolkit.program.events import Alloc, Free, Program


def read_held(program: Program) -> int | None:
    """Return the most bytes of gradients held where a later micro-step begins; None with one."""
    micro_steps, held, most = 0, 0, None
    for section in program.sections:
        if section.name == "micro-step":
            micro_steps += 1
            if micro_steps > 1:
                most = max(held, most or 0)
        for event in section.events:
            if isinstance(event, Alloc) and event.part == "gradients":
                held += event.bytes
            elif isinstance(event, Free) and event.part == "gradients":
                held -= event.bytes
    return most
