"""Loss over text, against the model's own training loss and against worked numbers."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from typer.testing import CliRunner

from tests.inference.conftest import random_model, save
from toolkit.cli import app
from toolkit.data.batches import eval_batches
from toolkit.data.tokenizers import open_tokenizer
from toolkit.engines.ranks import Ranks
from toolkit.errors import UntrustedError, UsageError
from toolkit.inference.loss import TextLoss, text_loss
from toolkit.inference.source import Source, find_source
from toolkit.inference.text_data import open_tokens
from toolkit.inference.trained import Trained, read_trained

ALONE = Ranks(0, 1, torch.device("cpu"))


def evaluated(*words: str) -> list[dict[str, float]]:
    done = CliRunner().invoke(app, ["eval", *words, "--json"], catch_exceptions=False)
    assert done.exit_code == 0
    return [json.loads(line) for line in done.stdout.splitlines()]


def loss_of(trained: Trained, data: Path | None) -> TextLoss:
    with open_tokens(trained, data) as dataset:
        batches = eval_batches(dataset, micro_batch_size=1, world_size=1, rank=0)
        return text_loss(trained, batches, ALONE)


def test_the_loss_is_that_of_plain_pytorch(trained: Trained) -> None:
    with open_tokens(trained, None) as dataset:
        inputs, targets = map(torch.from_numpy, dataset.sequences(range(len(dataset))))  # type: ignore[arg-type]
    with torch.no_grad():
        logits = trained.model(inputs).double()
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    found = loss_of(trained, None)
    assert found.tokens == targets.numel() == 480
    assert found.loss == pytest.approx(float(expected), rel=1e-6)
    assert found.perplexity == pytest.approx(math.exp(found.loss))


def test_bits_per_byte_of_worked_numbers(
    unigram: Callable[[dict[int, float]], Trained], tmp_path: Path
) -> None:
    """Four targets of 1/8 each, 3 bits: 12 bits for the 2 + 6 + 3 + 7 bytes they are."""
    words = ["It", " never", " so", " walked"]
    tokens = [open_tokenizer().encode(word) for word in words]
    assert all(len(ids) == 1 for ids in tokens)
    text = tmp_path / "text.txt"
    text.write_text("".join(words))
    found = loss_of(unigram({ids[0]: 1 / 8 for ids in tokens}), text)
    assert (found.tokens, found.bytes) == (4, 18)
    assert found.bits_per_byte == pytest.approx(12 / 18, rel=1e-6)
    assert found.perplexity == pytest.approx(8, rel=1e-6)


def test_a_text_is_read_with_the_models_own_tokenizer(run_file: Path, tmp_path: Path) -> None:
    words = {"<|endoftext|>": 0, "one": 1, "two": 2}
    own = Tokenizer(models.WordLevel(words, unk_token="one"))
    own.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    own.save(str(tmp_path / "own.json"))
    source = find_source(save(run_file, random_model(run_file), 5))
    trained = read_trained(source, device=torch.device("cpu"), tokenizer=str(tmp_path / "own.json"))
    text = tmp_path / "text.txt"
    text.write_text("one two two")
    with open_tokens(trained, text) as dataset:
        assert dataset.stream.read(0, len(dataset.stream)).tolist() == [0, 1, 2, 2]


def test_every_step_is_evaluated_in_turn(run_file: Path, run: Path) -> None:
    later = random_model(run_file)
    with torch.no_grad():
        later.transformer.ln_f.weight.mul_(0.5)
    save(run_file, later, 9)
    first, second = evaluated(str(run), "--step", "all")
    assert (first["step"], second["step"]) == (5, 9)
    assert first["loss"] != second["loss"]
    assert evaluated(str(run), "--step", "5") == [first]
    assert evaluated(str(run)) == [second]
    assert evaluated(str(run / "checkpoints" / "step_00000005")) == [first]


def test_two_processes_agree_with_one(run: Path) -> None:
    """With fifteen sequences, which two do not share out evenly."""
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [sys.executable, *command, "-m", "toolkit", "eval", str(run), "--json"],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    (alone,) = evaluated(str(run))
    shared = json.loads(done.stdout)
    assert shared["tokens"] == alone["tokens"]
    assert shared["loss"] == pytest.approx(alone["loss"], rel=1e-6)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--step", "7"], "has no checkpoint of step 7; there are 5"),
        (["--step", "last"], "must be the number of a step or 'all'"),
        (["--data", "nowhere"], "'nowhere' matches no shard"),
        (["--task", "trivia", "x.jsonl"], "unknown task 'trivia'; there are hellaswag, choice"),
    ],
)
def test_what_cannot_be_evaluated_is_one_sentence(run: Path, words: list[str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        CliRunner().invoke(app, ["eval", str(run), *words], catch_exceptions=False)


def test_a_bad_text_is_one_sentence_without_options_of_others(run: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"\xff")
    with pytest.raises(UsageError, match=r"byte 0: not UTF-8$"):
        CliRunner().invoke(app, ["eval", str(run), "--data", str(bad)], catch_exceptions=False)


def test_a_damaged_checkpoint_is_not_evaluated(run: Path) -> None:
    part = next(run.glob("checkpoints/*/rank_*.safetensors"))
    data = bytearray(part.read_bytes())
    data[-5] ^= 1
    part.write_bytes(data)
    with pytest.raises(UntrustedError, match="its SHA-256 differs"):
        find_source(run, step=5)


def test_another_tokenizer_than_that_of_the_data_is_refused(run_file: Path, run: Path) -> None:
    state = next(run.glob("checkpoints/*/state.json"))
    fields = json.loads(state.read_text())
    fields["data"] = {"vocabulary_sha256": ["0" * 64]}
    state.write_text(json.dumps(fields))
    source = Source(state.parent, run, 5)
    with pytest.raises(UsageError, match="trained with another tokenizer than gpt2"):
        read_trained(source, device=torch.device("cpu"))


def test_a_folder_of_something_else_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no run"):
        find_source(tmp_path)
