"""Exported weights are a model that transformers loads, speaks with, and cannot misread."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from toolkit.checkpoint.export import export
from toolkit.checkpoint.import_weights import read_weights
from toolkit.checkpoint.listing import verify_checkpoints
from toolkit.checkpoint.state import part_name
from toolkit.checkpoint.store import CheckpointStore
from toolkit.checkpoint.tensors import Entry, write_tensors
from toolkit.checkpoint.training_state import TrainingState
from toolkit.cli import app
from toolkit.config import load_run_config
from toolkit.data.vocabulary import RANKS_SHA256, build_vocabulary
from toolkit.errors import SaveError, UsageError
from toolkit.model.gpt2 import GPT2
from toolkit.model.sizes import GPT2_VOCAB_SIZE, ModelSizes
from toolkit.training.exchange import export_checkpoint

TOKENIZER = {
    "vocab.json",
    "merges.txt",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
}
ALWAYS = {"model.safetensors", "config.json", "generation_config.json", "README.md"}


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def trained(run_file: Path, *overrides: str, **data: Any) -> Path:
    """A checkpoint after step 3 of the run, of random weights; `data` is its data's fingerprint."""
    config = load_run_config(run_file, overrides)
    torch.manual_seed(2)
    weights = dict(GPT2(config.model.sizes()).named_parameters())
    # With positions so different, the most likely token is not always the last one again.
    torch.nn.init.normal_(weights["transformer.wpe.weight"], std=2.0)
    training_state = TrainingState.after(
        3,
        shapes={name: list(value.shape) for name, value in weights.items()},
        config=config.model_dump(mode="json"),
    )
    fields = json.loads(training_state.to_json()) | {
        "data": {"tokens": 2500, **data},
        "tokens": 1536,
    }
    store = CheckpointStore(run_file.parent / "runs" / config.run_name / "checkpoints")
    store.begin(3)
    entries = [
        Entry(f"parameter/{name}/0", (value.numel(),), lambda value=value: value.view(-1))
        for name, value in weights.items()
    ]
    part = write_tensors(store.partial(3) / part_name(0), entries)
    return store.commit(3, json.dumps(fields), {part_name(0): part}, keep_last=1)


def test_it_gives_their_file_back_and_their_model_loads_it(
    imported: Path, theirs: tuple[Any, Path]
) -> None:
    from transformers import GPT2LMHeadModel

    model, folder = theirs
    path = export_checkpoint(imported, None, step=None).weights
    assert path == imported / "export" / "model.safetensors"
    expected, found = load_file(folder / "model.safetensors"), load_file(path)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    loaded, report = GPT2LMHeadModel.from_pretrained(path.parent, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    tokens = torch.arange(32).view(1, 32)
    with torch.no_grad():
        assert torch.equal(loaded.eval()(tokens).logits, model(tokens).logits)


SPEAK = """
import json, sys
from transformers import AutoTokenizer, pipeline

folder, without, prompt, text = sys.argv[1:]
generate = pipeline("text-generation", model=folder)
greedy = generate(prompt, max_length=14, do_sample=False)[0]["generated_text"]
alone = generate(prompt)[0]["generated_text"]
ids = AutoTokenizer.from_pretrained(folder)(text)["input_ids"]
try:
    refused = pipeline("text-generation", model=without)(prompt)[0]["generated_text"]
except ValueError as error:
    refused = str(error)
print(json.dumps([greedy, alone, ids, refused]))
"""


def greedy(model: GPT2, tokens: list[int], length: int) -> list[int]:
    with torch.no_grad():
        for _ in range(length):
            logits = model(torch.tensor([tokens]))[0, -1, :GPT2_VOCAB_SIZE]
            tokens = [*tokens, int(logits.argmax())]
    return tokens


def test_transformers_alone_writes_the_text_that_the_model_here_writes(run_file: Path) -> None:
    checkpoint = trained(run_file, "model.vocab_size=50304", "model.n_layer=2")
    folder = export_checkpoint(checkpoint.parents[1], None, step=3).weights.parent
    without = export(
        trained(run_file, "run_name=other"), run_file.parent / "other", evaluation=None
    )
    prompt, text = "Where are", " It's 3 words,\n\n世界<|endoftext|>"
    done = subprocess.run(
        [sys.executable, "-c", SPEAK, folder, without.weights.parent, prompt, text],
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    theirs, alone, ids, refused = json.loads(done.stdout.splitlines()[-1])
    vocabulary = build_vocabulary()
    sizes = ModelSizes(n_layer=2, n_head=2, n_embd=16, vocab_size=50_304, block_size=32)
    model = GPT2(sizes).eval()
    model.load_state_dict(read_weights(folder, sizes, trust=False), strict=False)
    ours = greedy(model, vocabulary.encode_ordinary(prompt), 12)
    assert theirs == vocabulary.decode(ours)
    assert len(set(ours)) > 8
    assert alone.startswith(prompt)
    assert len(alone) > len(prompt)
    assert ids == vocabulary.encode(text, allowed_special="all")
    assert refused.startswith("Couldn't instantiate the backend tokenizer")


def test_the_command_prints_the_weights_and_reports_the_rest(run_file: Path) -> None:
    run = trained(run_file).parents[1]
    done = CliRunner().invoke(app, ["checkpoint", "export", str(run)])
    assert done.stdout == f"{run}/export/model.safetensors\n"
    beside, remark, following = done.stderr.splitlines()
    assert beside == "beside it config.json, generation_config.json, README.md"
    assert remark.startswith("no tokenizer is written: ")
    assert following == f"next: toolkit generate {run}/export --prompt TEXT"


def test_no_row_of_padding_is_exported(run_file: Path) -> None:
    checkpoint = trained(run_file, "model.vocab_size=50304")
    folder = export_checkpoint(checkpoint.parents[1], None, step=3).weights.parent
    weights = load_file(folder / "model.safetensors")
    assert weights["transformer.wte.weight"].shape == (50_257, 16)
    config = json.loads((folder / "config.json").read_text())
    assert (config["vocab_size"], config["n_positions"]) == (50_257, 32)
    assert names(folder) == ALWAYS | TOKENIZER


def test_what_vocabulary_it_is_the_data_shows(run_file: Path) -> None:
    wide = "model.vocab_size=50304"
    run = trained(run_file, wide, vocabulary_sha256=[RANKS_SHA256]).parents[1]
    assert export_checkpoint(run, None, step=3).remarks == []
    run = trained(run_file, wide, "run_name=bare", vocabulary_sha256=[]).parents[1]
    (remark,) = export_checkpoint(run, None, step=3).remarks
    assert remark.startswith("the tokenizer is GPT-2's, judged by the model's size")


@pytest.mark.parametrize(
    ("size", "recorded", "reason"),
    [
        (50_304, ["ab12", RANKS_SHA256], "names another vocabulary, SHA-256 ab12"),
        (60_000, [], "the model's vocabulary has 60,000 tokens"),
        (512, [], "the model's vocabulary has 512 tokens, GPT-2's 50,257"),
        (512, [RANKS_SHA256], "the model's vocabulary has 512"),
    ],
)
def test_another_vocabulary_gets_no_tokenizer_of_gpt2(
    run_file: Path, size: int, recorded: list[str], reason: str
) -> None:
    folder = run_file.parent / "out"
    good = trained(run_file, "model.vocab_size=50304", "run_name=good")
    export(good, folder, evaluation=None)
    (folder / "mine.txt").touch()
    checkpoint = trained(run_file, f"model.vocab_size={size}", vocabulary_sha256=recorded)
    exported = export(checkpoint, folder, evaluation=None)
    (remark,) = exported.remarks
    assert remark.startswith("no tokenizer is written: ")
    assert reason in remark
    assert names(folder) == ALWAYS | {"mine.txt"}
    assert reason in (folder / "README.md").read_text()
    rows = load_file(folder / "model.safetensors")["transformer.wte.weight"].shape[0]
    assert rows == {50_304: 50_257}.get(size, size)
    assert json.loads((folder / "config.json").read_text())["vocab_size"] == rows
    for name in ("config.json", "generation_config.json"):
        assert json.loads((folder / name).read_text()).get("eos_token_id") is None
    # A tokenizer that a person put there stays.
    (folder / "vocab.json").write_text("{}")
    export(checkpoint, folder, evaluation=None)
    assert (folder / "vocab.json").read_text() == "{}"


def test_the_card_shows_what_was_trained(run_file: Path) -> None:
    checkpoint = trained(run_file, "model.vocab_size=50304")
    run = checkpoint.parents[1]
    records = [
        {"kind": "eval", "step": 2, "loss": 9.0, "tokens": 480},
        {"kind": "eval", "step": 3, "loss": 6.12345, "tokens": 480},
        {"kind": "train", "step": 3, "loss": 5.0, "tokens": 1536},
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    card = (export_checkpoint(run, None, step=3).weights.parent / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: transformers\n")
    for row in (
        "# tiny",
        "| parameters | 807,936 |",
        "| steps | 3 of 512 tokens |",
        "| tokens trained on | 1,536 |",
        "| validation loss | 6.1235 nats per token over 480 tokens |",
    ):
        assert f"\n{row}\n" in card


def test_a_readme_that_no_export_wrote_stays(run_file: Path) -> None:
    run = trained(run_file).parents[1]
    folder = run_file.parent / "project"
    folder.mkdir()
    (folder / "README.md").write_text("# Mine\n")
    exported = export_checkpoint(run, folder, step=3)
    assert (folder / "README.md").read_text() == "# Mine\n"
    assert f"{folder / 'README.md'} stays, for no export wrote it" in exported.remarks
    assert "README.md" not in exported.beside
    assert "README.md" in export_checkpoint(run, None, step=3).beside
    assert "README.md" in export_checkpoint(run, None, step=3).beside


def test_an_export_that_cannot_be_written_leaves_the_earlier_one(
    imported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = export_checkpoint(imported, None, step=0).weights.parent
    earlier = {path: path.read_bytes() for path in folder.iterdir()}

    def full(*arguments: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for target in ("os.write", "toolkit.checkpoint.export.write_aside"):
        with monkeypatch.context() as patched:
            patched.setattr(target, full)
            with pytest.raises(SaveError, match="No space left"):
                export_checkpoint(imported, None, step=0)
        assert {path: path.read_bytes() for path in folder.iterdir()} == earlier
    (imported / "file").touch()
    with pytest.raises(SaveError, match="file: cannot be exported to"):
        export_checkpoint(imported, imported / "file", step=0)


def test_nothing_is_exported_into_a_checkpoint(imported: Path) -> None:
    (checkpoint,) = (imported / "checkpoints").iterdir()
    for folder in (checkpoint, imported / "checkpoints"):
        with pytest.raises(UsageError, match="where nothing but checkpoints may be"):
            export_checkpoint(imported, folder, step=0)
    assert verify_checkpoints(imported)[1] == []
