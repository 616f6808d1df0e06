"""Run configurations: a file and dotted overrides in, one checked value out, and back."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from toolkit.config.problems import describe_problems, dotted_keys, unknown_key
from toolkit.config.run import RunConfig, is_run_name
from toolkit.config.strict_yaml import dump_yaml, load_yaml, load_yaml_mapping
from toolkit.config.synonyms import SYNONYMS
from toolkit.errors import UsageError

_KEYS = dotted_keys(RunConfig)
_SECTIONS = {key.partition(".")[0] for key in _KEYS if "." in key}
_TEXTS = {key for key, field in RunConfig.model_fields.items() if field.annotation is str}


def load_run_config(path: str | Path | None, overrides: Sequence[str] = ()) -> RunConfig:
    """Return the checked configuration of a file, with `section.key=value` overrides on top.

    Without a file it is that of the defaults.

    Raises:
        UsageError: one line for each problem, naming the file or the override, and the key.
    """
    values = {} if path is None else load_yaml_mapping(path)
    for section in _SECTIONS & values.keys():
        # A section whose keys are all commented out reads as null.
        if values[section] is None:
            values[section] = {}
    origins = _apply_overrides(values, overrides)
    if path is not None and "run_name" not in values:
        values["run_name"] = _run_name_of(path)
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:

        def source_of(keys: Collection[str]) -> str:
            found = ", ".join(origins[key] for key in origins if key in keys)
            return found or str(path or "defaults")

        problems = describe_problems(error, _KEYS, source_of, SYNONYMS)
        raise UsageError("\n".join(problems)) from None


def notes_on(config: RunConfig, overrides: Sequence[str] = ()) -> list[str]:
    """Return a sentence for each override and value of a good configuration without its effect."""
    last = {override.partition("=")[0]: override for override in overrides}
    replaced = [
        f"override '{override[:100]}' is replaced by the later '{later[:100]}'"
        for override in overrides
        if (later := last[override.partition("=")[0]]) != override
    ]
    return [*replaced, *config.notes()]


def dump_run_config(config: RunConfig) -> str:
    """Return YAML with every key resolved, which loads back to an equal configuration."""
    return dump_yaml(config.model_dump(mode="json"))


def dotted_values(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested values as `section.key` to value."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            flat |= dotted_values(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def _apply_overrides(values: dict[str, Any], overrides: Sequence[str]) -> dict[str, str]:
    """Set each override in `values`; return, for each key set, how to name where it came from."""
    origins: dict[str, str] = {}
    problems = []
    for override in overrides:
        key, equals, text = override.partition("=")
        source = f"override '{override[:100]}'"
        section, _, name = key.rpartition(".")
        if not equals:
            problems.append(f"{source}: has no '='; the form is section.key=value")
        elif key in _SECTIONS:
            keys = ", ".join(known for known in _KEYS if known.startswith(f"{key}."))
            problems.append(f"{source}: '{key}' is a section; override one of its keys: {keys}")
        elif key not in _KEYS:
            problems.append(f"{source}: {unknown_key(key, _KEYS, SYNONYMS)}")
        else:
            origins[key] = source
            target = values.setdefault(section, {}) if section else values
            if isinstance(target, dict):
                target[name] = _read_value(key, text, source)
    if problems:
        raise UsageError("\n".join(problems))
    return origins


def _read_value(key: str, text: str, source: str) -> Any:
    """Read an override as YAML, but a number as text where that is wanted: shells strip quotes."""
    value = load_yaml(text, source=source)
    return text.strip() if key in _TEXTS and isinstance(value, int | float) else value


def _run_name_of(path: str | Path) -> str:
    stem = Path(path).stem
    if not is_run_name(stem):
        raise UsageError(f"{path}: the file's name cannot name the run; set run_name")
    return stem
