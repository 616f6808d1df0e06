"""The reference of all keys is what a file is checked against."""

import yaml

from toolkit.config import RunConfig, dotted_values
from toolkit.config.problems import dotted_keys
from toolkit.config.reference import Key, reference, sections

KEYS = {key.name: key for key in reference()}


def test_every_key_is_there_in_order() -> None:
    assert list(KEYS) == dotted_keys(RunConfig)
    assert {name.partition(".")[0] for name in KEYS if "." in name} == set(sections())


def test_every_key_and_section_says_what_it_means() -> None:
    meanings = [*(key.meaning for key in KEYS.values()), *sections().values()]
    assert [text for text in meanings if not text.endswith(".") or "\n" in text] == []


def test_defaults_are_what_an_empty_file_gives() -> None:
    defaults = {name: yaml.safe_load(key.default) for name, key in KEYS.items()}
    assert defaults == dotted_values(RunConfig().model_dump(mode="json"))


def test_a_key_in_full() -> None:
    assert KEYS["optimizer.lr"] == Key(
        name="optimizer.lr",
        type="number, above 0, at most 1,000",
        default="0.0006",
        meaning="Learning rate at the end of warm-up.",
    )
    assert KEYS["training.checkpoint_every"].type == "integer or `never`"
    assert KEYS["optimizer.betas"].type == "list of numbers"
