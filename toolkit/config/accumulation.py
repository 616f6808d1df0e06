"""The key `accumulation`: a mode for all units, or a mapping that decides unit by unit."""

from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer
from pydantic_core import PydanticCustomError

from toolkit.config.problems import OF_THE_KEY, describe_value
from toolkit.engines.mixture import AUTO, Budget, Mixture, read_mixture, to_config
from toolkit.engines.strategies import ACCUMULATIONS, Accumulation
from toolkit.errors import UsageError


def _read(value: Any) -> Any:
    if isinstance(value, Mixture | Budget) or (isinstance(value, str) and value in ACCUMULATIONS):
        return value
    if value == str(AUTO):
        return AUTO
    if isinstance(value, dict):
        try:
            return read_mixture(value)
        except UsageError as error:
            raise ValueError(str(error)) from None
    modes = ", ".join(f"'{mode}'" for mode in ACCUMULATIONS)
    wrong = f"must be {modes}, '{AUTO}' or {{hold: [root, 0, 1]}}, got {describe_value(value)}"
    raise PydanticCustomError(OF_THE_KEY, "{wrong}", {"wrong": wrong})


AccumulationKey = Annotated[
    Accumulation | Mixture | Budget, BeforeValidator(_read), PlainSerializer(to_config)
]
SettledAccumulation = Annotated[
    Accumulation | Mixture, BeforeValidator(_read), PlainSerializer(to_config)
]
"""What is measured is known unit by unit."""
