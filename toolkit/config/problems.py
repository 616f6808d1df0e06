"""What pydantic found wrong, as sentences that name the file, the key and the nearest right one."""

import re
from collections.abc import Callable, Collection, Mapping
from difflib import SequenceMatcher
from types import MappingProxyType
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from toolkit.config.strict_yaml import MAX_DIGITS

_WANTED = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "text",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "model_type": "a section with keys of its own",
    "greater_than": "above {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "below {lt}",
    "less_than_equal": "at most {le}",
    "literal_error": "{expected}",
    "string_too_short": "some text",
    "too_short": "a list that is not empty",
}

OF_THE_KEY = "of_the_key"
"""Type of an error of our own whose message continues after the key, as in "must be 2"."""

_TOO_LONG = re.compile(rf"[-+]?\d{{{MAX_DIGITS + 1},}}")
_WORD = re.compile(r"\w+(?:\.\w+)*")
_NEAR = 0.7
_SHOWN = 60
_MOST_PROBLEMS = 20
_NONE: Mapping[str, str] = MappingProxyType({})


def dotted_keys(model: type[BaseModel], prefix: str = "") -> list[str]:
    """Return every key of a configuration as `section.key`, without the sections themselves."""
    keys = []
    for name, field in model.model_fields.items():
        kinds = (field.annotation, *get_args(field.annotation))
        sections = [
            kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)
        ]
        keys += dotted_keys(sections[0], f"{prefix}{name}.") if sections else [prefix + name]
    return keys


def unknown_key(key: str, known: Collection[str], synonyms: Mapping[str, str] = _NONE) -> str:
    """Return the sentence about an unknown dotted key, with the nearest right one if any is near.

    Args:
        key: what was written.
        known: the right keys, dotted; their sections count as right too.
        synonyms: what other programs call a key, to the right dotted key.
    """
    section, _, name = key.replace("-", "_").rpartition(".")
    nearest = synonyms.get(f"{section}.{name}") or _nearest(section, name, known, synonyms)
    return f"unknown key {key[:_SHOWN]!r}" + (f"; did you mean '{nearest}'?" if nearest else "")


def _nearest(
    section: str, name: str, known: Collection[str], synonyms: Mapping[str, str]
) -> str | None:
    sections = dict.fromkeys(other.rpartition(".")[0] for other in known if "." in other)
    spellings = [(other.rpartition(".")[2], other) for other in (*known, *sections)]
    spellings += [(other, key) for other, key in synonyms.items() if "." not in other]
    best, nearest = _NEAR, None
    for spelling, target in spellings:
        likeness = _likeness(name, spelling)
        # A typing error inside the right section is likelier than one inside another, but not
        # likelier than a name that is exactly right.
        if likeness == 1:
            likeness = 2
        elif likeness >= _NEAR and target.rpartition(".")[0] == section:
            likeness += 0.2
        if likeness > best:
            best, nearest = likeness, target
    return nearest


def _likeness(written: str, right: str) -> float:
    """Return how like two names are by their least like word, 1 for the same words in any order.

    Names of other meaning often share a word, as `save_every` and `eval_every` do.
    """
    ours, theirs = sorted(written.split("_")), sorted(right.split("_"))
    if len(ours) != len(theirs):
        ours, theirs = [written.replace("_", "")], [right.replace("_", "")]
    return min(
        SequenceMatcher(None, one, other).ratio() - 0.05 * abs(len(one) - len(other))
        for one, other in zip(ours, theirs, strict=True)
    )


def describe_problems(
    error: ValidationError,
    known: Collection[str],
    source_of: Callable[[Collection[str]], str],
    synonyms: Mapping[str, str] = _NONE,
) -> list[str]:
    """Return one sentence per problem.

    Args:
        error: what pydantic raised.
        known: the right keys, dotted.
        source_of: gives the file, or the overrides, that dotted keys of a problem came from.
        synonyms: as for `unknown_key`.
    """
    sentences: list[str] = []
    found = error.errors(include_url=False)
    for details in found[:_MOST_PROBLEMS]:
        key = _dotted(details["loc"])
        if details["type"] == "extra_forbidden":
            texts = [unknown_key(key, known, synonyms)]
        else:
            texts = _sentences(key, details)
        # A rule between keys is filed under their section, and names them.
        named = set(known) if details["type"] == "value_error" else set()
        for text in texts:
            concerned = {key.partition("[")[0], *named.intersection(_WORD.findall(text))}
            sentences.append(f"{source_of(concerned)}: {text}")
    if len(found) > _MOST_PROBLEMS:
        sentences.append(f"{source_of(())}: {len(found) - _MOST_PROBLEMS:,} more problems")
    return sentences


def describe_value(value: Any) -> str:
    """Return a short description of a value that names its type where the type is what matters."""
    if value is None:
        return "nothing (null)"
    if isinstance(value, bool):
        return f"the boolean {str(value).lower()}"
    if isinstance(value, int | float):
        return f"the number {value}"
    if isinstance(value, str):
        return f"the text {value[:_SHOWN]!r}"
    if isinstance(value, list | tuple):
        return "a list" if value else "an empty list"
    return "a section"


def _plain(bound: Any) -> Any:
    return f"{bound:g}" if isinstance(bound, float) else bound


def _dotted(location: tuple[int | str, ...]) -> str:
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return "".join(parts).removeprefix(".")


def _sentences(key: str, details: ErrorDetails) -> list[str]:
    kind = details["type"]
    if kind == "value_error":
        return str(details["ctx"]["error"]).split("\n")
    if kind == OF_THE_KEY:
        return [f"{key} {details['msg']}"]
    if kind == "missing":
        return [f"{key} is missing"]
    wanted = _WANTED.get(kind)
    if wanted is None:
        return [f"{key}: {details['msg']}"]
    bounds = {name: _plain(bound) for name, bound in details.get("ctx", {}).items()}
    wanted = wanted.format(**bounds)
    value = details["input"]
    if kind in ("int_type", "float_type") and isinstance(value, str) and _TOO_LONG.fullmatch(value):
        digits = len(value.lstrip("+-"))
        return [f"{key} must be {wanted} of at most {MAX_DIGITS} digits, got {digits:,}"]
    got = describe_value(value)
    hint = "; quote it to make it text" if kind == "string_type" and "number" in got else ""
    return [f"{key} must be {wanted}, got {got}{hint}"]
