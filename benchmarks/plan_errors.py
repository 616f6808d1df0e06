"""How far a share of the peak, learnt from other model sizes, is from published throughput.

The rows of `published_throughput.csv` are from mosaicml/llm-foundry,
scripts/train/benchmarking/README.md (MPT, FSDP, bf16). For each model name, the share of the peak
is the median over the same GPU's rows of all other names. With a share of hardware operations,
recomputation counted (what `toolkit plan` uses), and of model operations (constant MFU).
"""

import csv
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean, median, quantiles

from toolkit.prediction.devices import find_speed

_HERE = Path(__file__).parent
Row = dict[str, str]


def model_flops(row: Row) -> float:
    """Return operations per token: 6 a parameter, and attention over the whole square."""
    layers, width, seq = (int(row[name]) for name in ("n_layer", "d_model", "seq"))
    return 6 * int(row["n_params"]) + 12 * layers * width * seq


def hardware_flops(row: Row) -> float:
    """Return `model_flops` and, with checkpointing, the blocks' second forward pass."""
    if row["activation_checkpointing"] != "full":
        return model_flops(row)
    embedding = int(row["vocab"]) * int(row["d_model"])
    return model_flops(row) + (model_flops(row) / 3 - 2 * embedding)


def errors(rows: list[Row], flops: Callable[[Row], float]) -> Iterator[float]:
    """Yield each row's relative error, its own model size left out."""
    for row in rows:
        others = [r for r in rows if r["gpu"] == row["gpu"] and r["model"] != row["model"]]
        share = median(_share(other, flops) for other in others)
        yield abs(share / _share(row, flops) - 1)


def _share(row: Row, flops: Callable[[Row], float]) -> float:
    peak = find_speed(row["gpu"].removesuffix("-SXM")).peak_flops
    return float(row["tokens_per_s_per_gpu"]) * flops(row) / peak


def main() -> None:
    """Write the table as CSV and as Markdown."""
    with (_HERE / "published_throughput.csv").open() as file:
        rows = list(csv.DictReader(file))
    table = [("method", "rows", "mape", "p90")]
    for name, flops in (("hardware share", hardware_flops), ("constant MFU", model_flops)):
        found = list(errors(rows, flops))
        p90 = quantiles(found, n=10)[-1]
        table.append((name, str(len(found)), f"{fmean(found):.1%}", f"{p90:.1%}"))
    with (_HERE / "results" / "plan_errors.csv").open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(table)
    lines = [f"| {' | '.join(line)} |" for line in table]
    lines.insert(1, "| --- | ---: | ---: | ---: |")
    (_HERE / "results" / "plan_errors.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
