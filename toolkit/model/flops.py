"""Arithmetic of a training step, and what devices can do of it at most."""

import csv
import re
from functools import cache
from pathlib import Path
from typing import Literal

from toolkit.model.sizes import ModelSizes

_TFLOP = 1e12


def peak_flops_per_s(device: str, precision: Literal["fp32", "bf16", "fp16"]) -> float | None:
    """Return a device's dense peak at matrix products, or None where `devices.csv` has none.

    Args:
        device: PyTorch's name of a GPU.
        precision: of the computation; no peak is given for fp32, which runs off the matrix units.
    """
    if precision == "fp32":
        return None
    for row in read_devices():
        tflops = row[f"{precision}_tflops"]
        if re.fullmatch(row["device"], device) and tflops:
            return float(tflops) * _TFLOP
    return None


@cache
def read_devices() -> tuple[dict[str, str], ...]:
    """Return the data sheets: the rows of `devices.csv`, a figure that is not known left empty.

    `gpu` names a GPU as in `toolkit/memory/hardware.csv`, `device` matches PyTorch's names of it;
    GPUs of one `chip` differ in memory alone.
    """
    with Path(__file__).with_name("devices.csv").open() as file:
        return tuple(csv.DictReader(file))


def flops_per_token(sizes: ModelSizes, *, seq_len: int) -> int:
    """Return the arithmetic that one token's training takes, 6 N + 12 L H Q T.

    Chowdhery et al. 2022, "PaLM: Scaling Language Modeling with Pathways", appendix B: N
    parameters, L layers, H heads of dimension Q, sequences of T tokens; what activation
    checkpointing computes again does not count. The position table, which multiplies nothing, does
    not count in N; the tied token table counts once, as the head.
    """
    parameters = sizes.parameter_count - sizes.block_size * sizes.n_embd
    return 6 * parameters + 12 * sizes.n_layer * sizes.n_embd * seq_len


def utilisation(
    sizes: ModelSizes,
    *,
    seq_len: int,
    tokens_per_s: float,
    device: str,
    devices: int,
    precision: Literal["fp32", "bf16", "fp16"],
) -> float | None:
    """Return model FLOPs utilisation, or None where the device's peak is not known.

    Chowdhery et al. 2022, appendix B: the arithmetic that tokens at this rate take, of what all
    devices could do.
    """
    peak = peak_flops_per_s(device, precision)
    if peak is None:
        return None
    return tokens_per_s * flops_per_token(sizes, seq_len=seq_len) / (devices * peak)
