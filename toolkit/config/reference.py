"""What every key of a run configuration means, read off the sections that define it."""

import json
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from toolkit.config.run import RunConfig
from toolkit.engines.mixture import Budget, Mixture

_NAMES: dict[Any, str] = {
    bool: "true or false",
    int: "integer",
    float: "number",
    str: "text",
    NoneType: "null",
    Budget: "`{hold: 4GiB}` or `auto`",
    Mixture: "`{hold: [root, 0, 1], defer: […], keep: […]}`",
}


class Key(NamedTuple):
    """One key as `toolkit config` and docs/configuration.md show it.

    Attributes:
        name: dotted, as in an override: `optimizer.lr`.
        type: the values it takes, in words: `integer, at least 1`.
        default: its value where the file leaves it out, as YAML writes it.
        meaning: one or more sentences.
    """

    name: str
    type: str
    default: str
    meaning: str


def reference() -> list[Key]:
    """Return every key in the order of the configuration; keys of no section have no dot."""
    return list(_keys(RunConfig()))


def sections() -> dict[str, str]:
    """Return the name of each section with what it is about."""
    return {
        name: str(field.annotation.__doc__)
        for name, field in RunConfig.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
    }


def _keys(values: BaseModel, prefix: str = "") -> list[Key]:
    found: list[Key] = []
    written = values.model_dump(mode="json")
    for name, field in type(values).model_fields.items():
        value = getattr(values, name)
        if isinstance(value, BaseModel):
            found += _keys(value, f"{prefix}{name}.")
        else:
            meaning = " ".join((field.description or "").split())
            found.append(Key(prefix + name, _type_of(field), _written(written[name]), meaning))
    return found


def _written(value: Any) -> str:
    """Return a value as YAML takes it; JSON is YAML, and plain text needs no quotes."""
    return value if isinstance(value, str) else json.dumps(value)


def _type_of(field: FieldInfo) -> str:
    bounds = [text for limit in field.metadata if (text := _bound(limit))]
    return ", ".join([_named(field.annotation), *bounds])


def _named(annotation: Any) -> str:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in inner)
    if origin in (Union, UnionType):
        return " or ".join(_named(kind) for kind in inner)
    if origin is tuple:
        return f"list of {_named(inner[0])}" + "s" * (get_origin(inner[0]) is not Literal)
    if hasattr(annotation, "__metadata__"):
        return _named(inner[0])
    return _NAMES[annotation]


def _bound(limit: Any) -> str:
    match limit:
        case annotated_types.Ge(ge=bound):
            return f"at least {_plain(bound)}"
        case annotated_types.Gt(gt=bound):
            return f"above {_plain(bound)}"
        case annotated_types.Le(le=bound):
            return f"at most {_plain(bound)}"
        case annotated_types.Lt(lt=bound):
            return f"below {_plain(bound)}"
    return ""


def _plain(bound: Any) -> str:
    return f"{int(bound) if bound == int(bound) else bound:,}"
