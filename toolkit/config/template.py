"""A run configuration to begin with, in which every key is explained."""

import textwrap
from collections.abc import Iterator
from typing import Any

from toolkit.config.reference import Key, reference, sections
from toolkit.config.run import RunConfig
from toolkit.config.strict_yaml import dump_yaml

_SHAPE = ("model.n_layer", "model.n_head", "model.n_embd")
_WIDTH = 96


def commented(config: RunConfig) -> str:
    """Return a configuration as YAML with a comment above each key.

    The name of the run is not among them, so that it is the file's; of a preset and the shape that
    it stands for, only the one that was given is.
    """
    values = config.model_dump(mode="json")
    silent = {"run_name", *(_SHAPE if config.model.preset else ("model.preset",))}
    keys = [key for key in reference() if key.name not in silent]
    lines = [line for key in keys if "." not in key.name for line in _entry(key, values)]
    for section, about in sections().items():
        lines += ["", *_comment(about), f"{section}:"]
        of_section = [key for key in keys if key.name.startswith(f"{section}.")]
        lines += [f"  {line}" for key in of_section for line in _entry(key, values)]
    return "\n".join(lines) + "\n"


def _entry(key: Key, values: dict[str, Any]) -> Iterator[str]:
    section, _, name = key.name.rpartition(".")
    yield from _comment(f"{key.meaning} ({key.type})")
    of_section = values[section] if section else values
    yield from dump_yaml({name: of_section[name]}).splitlines()


def _comment(text: str) -> list[str]:
    plain = text.replace("`", "")
    return textwrap.wrap(plain, _WIDTH, initial_indent="# ", subsequent_indent="# ")
