"""The square-root rule on the demo corpus: four numbers of tokens per step, as many tokens each.

Runs of `configs/train/demo.yaml` in one process, at 1, 2, 4 and 8 times its tokens per step, with
its learning rate as it stands and with the rule of `toolkit.planning.learning_rate`. Warm-up takes
as many tokens in all of them, so the rate is all that differs. The text is in tokens of a
byte-level BPE of 1,024, trained on it: with GPT-2's 50,257 nearly all of so small a model's time is
its head. The figure is the validation loss after the last step.

    python -m benchmarks.learning_rate      # writes results/learning_rate.json and .svg
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.machine import describe_environment, find_machine
from toolkit.config import RunConfig, load_run_config
from toolkit.home import expand_words
from toolkit.planning.learning_rate import ScaledRate
from toolkit.shipped import ROOT

RESULTS = Path(__file__).parent / "results"
RUN = ROOT / "configs" / "train" / "demo.yaml"
VOCABULARY = 1_024
TOKENS = 98_304
MULTIPLES = (1, 2, 4, 8)
SEEDS = (1,)
RULES = ("none", "square root")
RATES = {"half the rate": 0.5, "twice the rate": 2.0}
"""At the recipe's tokens per step: whether its rate is the best there."""
TIMEOUT_S = 900


def main() -> None:
    """Train what has not been trained yet, and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS / "learning_rate.json")
    parser.add_argument("--text", type=Path, default=Path("data/default/text"))
    parser.add_argument("--data", type=Path, default=Path("data/learning_rate"))
    parser.add_argument("--tokens", type=int, default=TOKENS)
    asked = parser.parse_args(expand_words(sys.argv[1:]))
    if not asked.data.exists():
        prepare(asked.text, asked.data)
    done = json.loads(asked.out.read_text())["runs"] if asked.out.exists() else []
    for row in rows():
        if not any(row.items() <= other.items() for other in done):
            done.append(row | measured(row, asked.data, asked.tokens))
            write(done, asked.out, asked.tokens)
    draw(done, asked.out.with_suffix(".svg"))


def prepare(text: Path, folder: Path) -> None:
    """Train the tokenizer, and write shards of both splits in its tokens."""
    from tokenizers import ByteLevelBPETokenizer

    tokenizer = ByteLevelBPETokenizer()
    files = [str(path) for path in sorted((text / "train").iterdir())]
    tokenizer.train(files, vocab_size=VOCABULARY, special_tokens=["<|endoftext|>"])
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    for split in ("train", "val"):
        words = ["--tokenizer", str(folder / "tokenizer.json"), "--out", str(folder / split)]
        command = [sys.executable, "-m", "toolkit", "data", "prepare", str(text / split), *words]
        subprocess.run(command, check=True)


def rows() -> Iterator[dict[str, Any]]:
    """Yield the runs; at the recipe's own tokens per step the rule changes nothing."""
    for seed in SEEDS:
        for multiple in MULTIPLES:
            for rule in RULES if multiple > 1 else RULES[:1]:
                yield {"seed": seed, "multiple": multiple, "rule": rule}
        yield from ({"seed": seed, "multiple": 1, "rule": rate} for rate in RATES)


def overrides_of(row: dict[str, Any], tokens: int) -> list[str]:
    """Return what changes in the demo's run."""
    recipe = load_run_config(RUN, [])
    per_step = row["multiple"] * recipe.batch.tokens_per_step
    words = [
        f"batch.tokens_per_step={per_step}",
        "batch.micro_batch_size=4",
        f"model.vocab_size={VOCABULARY}",
        "model.loss=plain",
        f"training.steps={tokens // per_step}",
        "training.eval_every=1000000",
        "training.sample_tokens=0",
        "training.checkpoint_every=never",
        f"seed={row['seed']}",
    ]
    scaled = ScaledRate(load_run_config(RUN, words), recipe.batch.tokens_per_step).overrides()
    if row["rule"] == RULES[1]:
        return [*words, *scaled]
    factor = RATES.get(row["rule"], 1.0)
    optimizer = recipe.optimizer
    rates = (
        f"optimizer.lr={factor * optimizer.lr}",
        f"optimizer.min_lr={factor * optimizer.min_lr}",
    )
    return [*words, *rates, scaled[-1]]


def measured(row: dict[str, Any], data: Path, tokens: int) -> dict[str, Any]:
    """Return the learning rate and the last validation loss of a run."""
    words = [*overrides_of(row, tokens), f"data.train={data / 'train'}", f"data.val={data / 'val'}"]
    with TemporaryDirectory() as folder:
        words += [f"output_dir={folder}", "run_name=run"]
        command = [sys.executable, "-m", "toolkit", "train", "--strategy", "single"]
        subprocess.run(
            [*command, "--config", str(RUN), *words], check=True, timeout=TIMEOUT_S, text=True
        )
        lines = (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()
    losses = [line["loss"] for line in map(json.loads, lines) if line["kind"] == "eval"]
    run: RunConfig = load_run_config(RUN, words)
    return {"lr": run.optimizer.lr, "steps": run.training.steps, "loss": losses[-1]}


def write(done: Sequence[dict[str, Any]], path: Path, tokens: int) -> None:
    """Write what there is, so that a run that was stopped goes on from there."""
    environment = describe_environment(find_machine().name, threads=1).model_dump()
    record = {"environment": environment, "tokens": tokens, "runs": list(done)}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")


def mean_losses(done: Sequence[dict[str, Any]], rule: str) -> list[tuple[int, float]]:
    """Return tokens per step in those of the recipe, and the mean loss over the seeds."""
    found = []
    for multiple in MULTIPLES:
        wanted = rule if multiple > 1 else RULES[0]
        losses = [
            row["loss"] for row in done if (row["multiple"], row["rule"]) == (multiple, wanted)
        ]
        found.append((multiple, fmean(losses)))
    return found


def draw(done: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw the mean loss over tokens per step, with each seed as a point."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot()
    for rule, colour in zip(RULES, ("#D55E00", "#0072B2"), strict=True):
        axes.plot(*zip(*mean_losses(done, rule), strict=True), color=colour, label=f"rule: {rule}")
        seeds = [row for row in done if row["rule"] == rule]
        axes.plot(
            [row["multiple"] for row in seeds], [row["loss"] for row in seeds], "o", color=colour
        )
    others = [row for row in done if row["rule"] in RATES]
    axes.plot(
        [row["multiple"] for row in others],
        [row["loss"] for row in others],
        "kx",
        label=" and ".join(RATES),
    )
    axes.set_xscale("log", base=2)
    axes.set_xlabel("tokens per step, in those of the recipe; as many tokens in all")
    axes.set_ylabel("validation loss after the last step")
    axes.legend()
    figure.savefig(path)


if __name__ == "__main__":
    main()
