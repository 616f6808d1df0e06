"""Every sample in a document is what the program prints, every command in one a command it takes.

Samples of launches are compared where those launches are made; `tests/samples.py` finds them.
"""

import re
import shlex
import sys
from itertools import dropwhile
from pathlib import Path

import pytest
import typer

from tests.samples import DOCUMENTS, ROOT, Sample, all_samples, fences, masked, nearest, sample
from toolkit import cli
from toolkit.batching import plan_batch
from toolkit.checkpoint.training_state import TrainingState, compare_runs
from toolkit.config import load_run_config
from toolkit.engines.launched import Launched
from toolkit.memory.advice import comparison_after, estimate_run
from toolkit.shipped import find_launch_file
from toolkit.training.batches import plan_run

DEMO = load_run_config(ROOT / "configs" / "train" / "demo.yaml")
TRAIN_DEMO = "toolkit train --strategy fsdp2 --num-processes 2 --config configs/train/demo.yaml"
ESTIMATE = (
    "toolkit estimate --preset gpt2-xl --world-size 8 --micro-batch-size 16 precision=bf16"
    " --gpu A100-80 --max-micro-batch"
)


def printed_by(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> str:
    """What a person sees of a command that is run in this process."""
    monkeypatch.setattr(sys, "argv", shlex.split(command))
    with pytest.raises(SystemExit):
        cli.main()
    printed = capsys.readouterr()
    return printed.out + printed.err


def test_every_sample_is_compared_by_a_test() -> None:
    code = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    code = code.replace('"\n    "', "")
    shown = {found.command for document in DOCUMENTS for found in all_samples(document)}
    assert len(shown) > 5
    assert [command for command in shown if f'"{command}"' not in code] == []


def test_every_command_shown_is_one_that_exists() -> None:
    lines = [
        line
        for document in DOCUMENTS
        for fence in fences(document)
        if fence.language == "sh"
        for line in fence.commands
    ]
    assert len(lines) > 10
    for line in lines:
        check_words(*shlex.split(line))


def check_words(*words: str) -> None:
    """Fail unless the program takes these words; nothing is run."""
    program, *rest = dropwhile(lambda word: word == "sudo" or re.match(r"[A-Z_]+=", word), words)
    if program == "toolkit":
        command = typer.main.get_command(cli.app)
        while hasattr(command, "commands"):
            command = command.commands[rest.pop(0)]
        command.make_context(program, rest)
    elif program == "make":
        targets = (ROOT / "Makefile").read_text().replace("$(READY):", ".venv/.ready:")
        assert all(f"\n{word}: " in targets for word in rest if "=" not in word), rest
    elif program == "accelerate":
        assert rest[:2] == ["launch", "--config_file"]
        named = [word for word in rest if "/" in word]
        assert all((ROOT / word).is_file() for word in named), named
    elif program in ("pip", "sbatch", "docker", "kubectl") or program.startswith("launch/"):
        named = [word for word in (program, *rest) if word.startswith("launch/")]
        assert all((ROOT / word).is_file() for word in named), named
    else:
        assert (program, rest[0]) == (".venv/bin/python", "-m")
        module = (ROOT / rest[1].replace(".", "/")).with_suffix(".py")
        assert module.is_file() or rest[1] == "pytest", rest


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("toolkit trian", "trian"),
        ("toolkit verify --stratgies ddp", "stratgies"),
        ("make trian", "trian"),
        ("accelerate launch --config_file configs/accelerate/zero4.yaml", "zero4"),
        (".venv/bin/python -m benchmarks.runs", "runs"),
        ("RANK=1 launch/two_nodes.sh", "two_nodes"),
    ],
)
def test_a_command_that_does_not_exist_is_found(line: str, words: str) -> None:
    with pytest.raises(Exception, match=words):
        check_words(*line.split())


@pytest.mark.sample
def test_a_typing_error_is_reported_as_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = find_launch_file("zero3").read_text()
    (tmp_path / "my_zero3.yaml").write_text(text.replace("zero_stage:", "zero_stge:"))
    monkeypatch.chdir(tmp_path)
    command = "toolkit check my_zero3.yaml"
    sample(command).assert_is(printed_by(command, capsys, monkeypatch))


@pytest.mark.sample
def test_the_estimate_is_the_one_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sample(ESTIMATE).assert_is(printed_by(ESTIMATE, capsys, monkeypatch))


def test_the_demos_figures_are_those_of_its_file() -> None:
    """What follows from the file alone; the form of the rest is held against a real run."""
    parameters = f"{DEMO.model.sizes().parameter_count:,} parameters"
    steps = DEMO.training.steps
    tokens = f"{steps * DEMO.batch.tokens_per_step:,} tokens"
    shown = sample(TRAIN_DEMO).shown
    assert f"model      {parameters}, {DEMO.precision}\n" in shown
    assert f"batch      {plan_run(DEMO, world_size=2).describe()}\n" in shown
    assert f"step   {steps}/{steps} | " in shown
    assert f"lr {DEMO.optimizer.min_lr:.2e}" in shown
    summary = sample("toolkit summary configs/train/demo.yaml").shown
    assert summary.startswith(f"done: {steps} steps, {tokens}, {parameters}, fsdp2 on 2\n")


@pytest.mark.sample
def test_the_demos_memory_is_what_its_file_names() -> None:
    launched = Launched(
        "fsdp2", rank=0, local_rank=0, world_size=2, replicas=1, precision=DEMO.precision
    )
    estimate = estimate_run(DEMO, launched, device_type="cpu")
    line = comparison_after(estimate, estimate.total + 1)
    sample(TRAIN_DEMO, nth=1).assert_is(f"{line}\n")


def test_the_batch_and_the_change_are_reported_as_shown(tmp_path: Path) -> None:
    plan = plan_batch(tokens_per_step=524_288, seq_len=1024, micro_batch_size=16, world_size=8)
    assert f"`{plan.describe()}`" in (ROOT / "docs" / "concepts.md").read_text()
    before, now = ({"optimizer": {"lr": lr}} for lr in (1e-3, 5e-4))
    state = TrainingState.after(1, shapes={}, config=before)
    (line,) = compare_runs(tmp_path, state, now, {})
    assert f"`changed: {line}`" in (ROOT / "docs" / "checkpoints.md").read_text()


@pytest.mark.parametrize(
    ("shown", "printed", "is_like"),
    [
        ("step 1/2 | loss 3.2e-07\n", "step  10/20 | loss -4.0\n", True),
        ("a\n...\nz\n", "a\nb\nc\nz\n", True),
        ("a ... z\n", "a b c z\n", True),
        ("eval 1\n", "eval 1\neval 2\n", True),
        ("fsdp2 on 2\n", "fsdp3 on 2\n", False),
        ("a\n", "a\nb\n", False),
        ("A  KiB held\n", "A  MiB held\n", False),
    ],
)
def test_a_sample_is_like_what_differs_in_numbers_alone(
    shown: str, printed: str, is_like: bool
) -> None:
    if is_like:
        Sample("", shown).assert_is_like(printed)
        return
    with pytest.raises(AssertionError):
        Sample("", shown).assert_is_like(printed)


@pytest.mark.parametrize(
    ("shown", "printed", "rewritten"),
    [
        ("old words\n", "new\nwords\n", "new\nwords\n"),
        ("step 1\n...\nit carries on\n", "step 2\nmore\nit goes on\n", "step 1\n...\nit goes on\n"),
        ("...\nhead\na row\nof 2\n", "x\nhead\nrow\nwith\n3\n", "...\nhead\nrow\nwith\n3\n"),
        ("head\nold\n...\nz\n", "head\nnew words\nold too\nz\n", "head\nnew words\n...\nz\n"),
        ("a ... z\nmemory 1\n", "a b z\nmemory of 2\n", "a ... z\nmemory of 2\n"),
    ],
)
def test_a_sample_is_rewritten_where_it_no_longer_holds(
    shown: str, printed: str, rewritten: str
) -> None:
    assert nearest(shown, printed, masked) == rewritten
    Sample("", rewritten).assert_is_like(printed)
