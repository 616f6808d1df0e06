"""YAML as a person reads it: one meaning per text, and nothing that runs, repeats or explodes.

Plain scalars follow the core schema of YAML 1.2.2 (section 10.3.2) with decimal integers only:
`true`/`false` are the only booleans, `3e-4` is a number, and `yes`, `010`, `1_000`, `0x10`,
`12:30` and `2026-01-01` stay text, so that a number field refuses them by name instead of reading
the value YAML 1.1 gives them. Duplicate keys, aliases, tags and deep nesting are refused.
"""

import re
from pathlib import Path
from typing import Any

import yaml
from yaml.events import AliasEvent
from yaml.nodes import MappingNode, Node

from toolkit.errors import UsageError
from toolkit.shipped import find_shipped

# A configuration has a few kilobytes; PyYAML needs up to 2 s for this much text.
MAX_BYTES = 64 * 1024
MAX_DEPTH = 16
# An integer of more is text: converting thousands of digits takes quadratic time.
MAX_DIGITS = 19

_FLOAT = re.compile(
    r"""[-+]?(?:\d+\.\d*|\.\d+)(?:[eE][-+]?\d+)?
       |[-+]?\d+[eE][-+]?\d+
       |[-+]?\.(?:inf|Inf|INF)
       |\.(?:nan|NaN|NAN)""",
    re.VERBOSE,
)
_INT = re.compile(rf"[-+]?(?:0|[1-9]\d{{0,{MAX_DIGITS - 1}}})")
_NULL = re.compile(r"~|null|Null|NULL|")
_BOOL = re.compile(r"true|True|TRUE|false|False|FALSE")


class _StrictLoader(yaml.SafeLoader):
    """PyYAML's safe loader with YAML 1.2 scalars that refuses what `load_yaml` promises."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.depth = 0

    def compose_node(self, parent: Node | None, index: int) -> Node | None:
        event = self.peek_event()
        if isinstance(event, AliasEvent):
            raise _refused(
                event, f"the alias '*{event.anchor}' is not allowed; write the value out"
            )
        if getattr(event, "tag", None) is not None:
            raise _refused(event, f"the tag '{event.tag}' is not allowed; write a plain value")
        if self.depth == MAX_DEPTH:
            raise _refused(event, f"nested more than {MAX_DEPTH} levels deep")
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: MappingNode, deep: bool = False) -> dict[Any, Any]:
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if key.tag != "tag:yaml.org,2002:str":
                raise _refused(key, "a key must be text")
            if key.value in lines:
                first = lines[key.value]
                raise _refused(key, f"the key {key.value!r} is there twice (first on line {first})")
            lines[key.value] = key.start_mark.line + 1
        return super().construct_mapping(node, deep=deep)


def _refused(where: Any, problem: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=where.start_mark)


class _CarefulDumper(yaml.SafeDumper):
    """Quotes every text that YAML 1.1 or `load_yaml` would read as something else."""


for _tag, _pattern, _first in (
    ("tag:yaml.org,2002:float", _FLOAT, "-+.0123456789"),
    ("tag:yaml.org,2002:int", _INT, "-+0123456789"),
    ("tag:yaml.org,2002:null", _NULL, ["~", "n", "N", ""]),
    ("tag:yaml.org,2002:bool", _BOOL, "tTfF"),
):
    _whole = re.compile(rf"(?:{_pattern.pattern})\Z", _pattern.flags)
    _StrictLoader.add_implicit_resolver(_tag, _whole, list(_first))
    _CarefulDumper.add_implicit_resolver(_tag, _whole, list(_first))


def load_yaml(text: str, *, source: str) -> Any:
    """Return the one value that `text` holds; `source` is its name in error messages.

    Raises:
        UsageError: one sentence with `source` and the line, for anything but plain, unambiguous
            YAML.
    """
    try:
        return _StrictLoader(text).get_single_data()
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise UsageError(
            f"{source}, line {line}: the character U+{error.character:04X} is not allowed in YAML"
        ) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        problem = ", ".join(part for part in (error.context, error.problem) if part)
        raise UsageError(f"{source}, line {line}: {problem}") from None


def load_yaml_mapping(path: str | Path) -> dict[str, Any]:
    """Return the top-level mapping of a YAML file; an empty file is an empty mapping.

    Raises:
        UsageError: as `read_yaml` and `load_yaml`, or the file is not made of `key: value` lines.
    """
    value = load_yaml(read_yaml(path), source=str(path))
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise UsageError(f"{path}, line 1: holds a bare value; 'key: value' lines are expected")
    return value


def read_yaml(path: str | Path) -> str:
    """Return the text of a configuration file.

    Raises:
        UsageError: the file cannot be read, is larger than `MAX_BYTES` or is not UTF-8.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        shipped = find_shipped(path)
        hint = f"; the shipped one is {shipped}" if shipped else ""
        raise UsageError(f"{path}: cannot be read: {reason}{hint}") from None
    if len(data) > MAX_BYTES:
        raise UsageError(f"{path}: larger than {MAX_BYTES:,} bytes, which no configuration is")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{path}, line {line}: not UTF-8 text") from None


def dump_yaml(value: dict[str, Any]) -> str:
    """Return YAML that `load_yaml` and YAML 1.1 readers turn back into `value`, in its order."""
    return yaml.dump(value, Dumper=_CarefulDumper, sort_keys=False, allow_unicode=True, width=100)
