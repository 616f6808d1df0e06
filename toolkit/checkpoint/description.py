"""What stands beside foreign weights and describes them: `config.json` and a tokenizer."""

import json
from pathlib import Path
from typing import Any

from toolkit.checkpoint.layout import COMPUTATION
from toolkit.data.tokenizer import gpt2_tokens
from toolkit.errors import UntrustedError, UsageError
from toolkit.model.sizes import GPT2_VOCAB_SIZE, ModelSizes, is_gpt2_vocabulary


def check_config(folder: Path, sizes: ModelSizes) -> None:
    """Compare a `config.json`, if there is one, with the model that the weights are for.

    Raises:
        UsageError: it describes another model; names the key and both values.
        UntrustedError: it cannot be read.
    """
    file = folder / "config.json"
    described = _read_json(file)
    for key in ("n_layer", "n_head", "n_embd"):
        if key in described:
            compare(file, key, described[key], sizes)
    for key, value in {"model_type": "gpt2", **COMPUTATION}.items():
        if described.get(key, value) != value:
            raise UsageError(f"{file}: {key} is {described[key]}, but the model here has {value}")


def compare(file: Path, key: str, found: Any, sizes: ModelSizes) -> None:
    """Require one of the model's sizes to be that of the weights.

    Raises:
        UsageError: names the key and both values.
    """
    wanted = getattr(sizes, key)
    if found != wanted:
        raise UsageError(f"{file}: {key} is {found}, but the run's model.{key} is {wanted}")


def check_vocabulary(weights: Path, rows: int, wanted: int) -> None:
    """Require weights with `rows` of embedding to be of the vocabulary that `wanted` rows are for.

    Rows may differ where both are GPT-2's vocabulary, padded or not. Which vocabulary the weights
    have, `config.json` and the tokenizer beside them show, and without those the number of rows.

    Raises:
        UsageError: it is another vocabulary; names both sizes.
        UntrustedError: a file beside the weights cannot be read.
    """
    file = weights.parent / "config.json"
    size = _read_json(file).get("vocab_size", rows)
    if type(size) is not int:
        raise UntrustedError(f"{file}: vocab_size is {size!r}")
    of_gpt2 = [is_gpt2_vocabulary(number) for number in (size, rows, wanted)]
    if not (all(of_gpt2) or (rows == wanted and not any(of_gpt2))):
        raise UsageError(
            f"{weights} has a vocabulary of {size:,} tokens, but the run's model.vocab_size is "
            f"{wanted:,}; only padding of GPT-2's {GPT2_VOCAB_SIZE:,} tokens may differ, any "
            f"other vocabulary has the same size in both"
        )
    if all(of_gpt2):
        _check_tokenizer(weights.parent, wanted)


def _check_tokenizer(folder: Path, wanted: int) -> None:
    file, tokens = _tokenizer(folder)
    if file and tokens != (gpt2 := gpt2_tokens()):
        differing = min(
            token for token in tokens.keys() | gpt2.keys() if tokens.get(token) != gpt2.get(token)
        )
        raise UsageError(
            f"{file}: a vocabulary of {len(tokens):,} tokens that is not GPT-2's, which the run's "
            f"model.vocab_size {wanted:,} is for; they differ in {differing!r}"
        )


def _tokenizer(folder: Path) -> tuple[Path | None, dict[str, Any]]:
    """The file that lists a vocabulary, if there is one, and its tokens with their ids."""
    whole, parts = folder / "tokenizer.json", folder / "vocab.json"
    if tokenizer := _read_json(whole):
        try:
            added = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
            return whole, {**tokenizer["model"]["vocab"], **added}
        except (KeyError, TypeError):
            raise UsageError(f"{whole}: lists no tokens with their ids, as GPT-2's does") from None
    if found := _read_json(parts):
        return parts, {**found, **_read_json(folder / "added_tokens.json")}
    return None, {}


def _read_json(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise UntrustedError(f"{file}: cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise UntrustedError(f"{file}: holds no JSON object")
    return value
