"""Measure every combination of what is given, and keep a record of each repeat.

python -m benchmarks.run --strategies ddp,fsdp2 --grad-accum 1,4 --out benchmarks/out/first
"""

import argparse
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.axes import read_sweep
from benchmarks.sweep import OUT, RETRY_FAILED, exit_code_of, measure_missing
from toolkit.home import expand_words

TINY = "4,4,128,4096,128"
LISTS = {
    "strategies": ("strategies", "ddp,fsdp2", "strategies"),
    "accumulation": ("accumulations", "replicated,sharded", "modes; impossible pairs are skipped"),
    "grad-accum": ("grad_accum_steps", "4", "micro-steps"),
    "micro-batch-size": ("micro_batch_sizes", "1", "sequences per rank and micro-step"),
    "world-sizes": ("world_sizes", "2", "ranks"),
    "precision": ("precisions", "fp32", "precisions"),
    "loss": ("losses", "plain", "plain, chunked or both"),
    "links": ("links_mbit_per_s", None, "Mbit/s between two ranks on one machine"),
}
"""Options that take several values, separated by commas: key of `Axes`, default and help."""
NUMBERS = {
    "repeats": ("repeats", "3", "of each case, interleaved"),
    "warm-up": ("warm_up_steps", "1", "steps before each repeat"),
    "steps": ("steps", "5", "timed steps of each repeat"),
    "threads": ("threads", "1", "of each rank"),
    "timeout": ("timeout_s", "300", "seconds for whatever one case does in one go"),
}
"""Options of the sweep: key of `Sweep`, default and help."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what the command line asks for and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.run",
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    for option, (_, default, text) in {**LISTS, **NUMBERS}.items():
        parser.add_argument(f"--{option}", default=default, help=text)
    parser.add_argument("--model", default=TINY, help="a preset, or sizes such as the default's")
    parser.add_argument("--seq-len", help="tokens; the model's block_size unless given")
    parser.add_argument("--data", action="append", help="prepared shards; else random tokens")
    parser.add_argument("--activation-checkpointing", action="store_true", help="recompute blocks")
    parser.add_argument("--compile", action="store_true", help="compile each block")
    parser.add_argument("--out", type=Path, required=True, help=OUT)
    parser.add_argument("--retry-failed", action="store_true", help=RETRY_FAILED)
    words = expand_words(sys.argv[1:] if arguments is None else arguments)
    given = {name.replace("_", "-"): v for name, v in vars(parser.parse_args(words)).items()}
    axes: dict[str, Any] = {
        key: [_value(word.strip()) for word in given[option].split(",")]
        for option, (key, *_) in LISTS.items()
        if given[option]
    }
    axes |= {
        "models": [given["model"]],
        "seq_lens": [_value(given["seq-len"])],
        "activation_checkpointing": [given["activation-checkpointing"]],
        "compile": [given["compile"]],
        "data": ["real" if given["data"] else "synthetic"],
    }
    keys = {key: _value(given[option]) for option, (key, *_) in NUMBERS.items()}
    fields = {**keys, "shards": given["data"] or [], "cases": [axes]}
    sweep = read_sweep(fields, "the command line")
    measure_missing(None, sweep, given["out"], retry_failed=given["retry-failed"])
    return 0


def _value(text: str | None) -> Any:
    """Return the number that a text is, or the text."""
    for kind in (int, float):
        with suppress(ValueError, TypeError):
            return kind(text)  # type: ignore[arg-type]
    return text


if __name__ == "__main__":
    sys.exit(exit_code_of(main))
