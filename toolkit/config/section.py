"""What a section of a configuration file is made of: its base class and types of fields."""

import os
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from toolkit.config.problems import OF_THE_KEY

# Far above any real run, and small enough that no product of them leaves 64 bits by accident.
MAX_STEPS = 10**9
MAX_TOKENS = 10**12
MAX_MICRO_BATCH = 2**20


def as_tuple(value: Any) -> Any:
    """A list in a file is a tuple here: frozen all the way down."""
    return tuple(value) if isinstance(value, list) else value


def as_texts(value: Any) -> Any:
    """One text, a list of them or null, all as a tuple."""
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else as_tuple(value)


def _expanded(path: str) -> str:
    """Put the home folder for a leading `~` and the environment's values for `$NAME`."""
    expanded = os.path.expandvars(os.path.expanduser(path))
    if not expanded or expanded.startswith("~") or "$" in expanded or "\0" in expanded:
        wrong = f"must be a path whose '~' and '$NAME' are known here, got {path[:120]!r}"
        raise PydanticCustomError(OF_THE_KEY, "{wrong}", {"wrong": wrong})
    return expanded


NonEmpty = Annotated[str, Field(min_length=1)]
NamedPath = Annotated[NonEmpty, AfterValidator(_expanded)]
Paths = Annotated[tuple[NamedPath, ...], BeforeValidator(as_texts)]
Steps = Annotated[int, Field(ge=0, le=MAX_STEPS)]
Interval = Annotated[Steps, BeforeValidator(lambda value: 0 if value == "never" else value)]


class Section(BaseModel):
    """What all sections share: unknown keys and loose types are errors, and values are frozen."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        validate_default=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )
