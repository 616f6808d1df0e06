"""What the dials of a batch cost a GPT-2 run, by the estimator and the program of its step.

Tokens per update = sequences x tokens of each x micro-steps x GPUs. Sequences cost activation
memory, GPUs cost hardware, micro-steps cost time: each has its own price.
"""

from collections.abc import Sequence
from typing import Any

from toolkit.engines.strategies import (
    Accumulation,
    Strategy,
    impossible_on,
    replicas_of,
    supported_pairs,
)
from toolkit.model.flops import flops_per_token, peak_flops_per_s
from toolkit.model.sizes import PADDED_VOCAB_SIZE, Preset, preset_sizes
from toolkit.program.readers.peak import read_peak
from toolkit.program.readers.traffic import read_traffic
from toolkit.program.settings import StepSettings
from toolkit.program.step import write_step

PRESET: Preset = "gpt2"
SEQ_LEN = 1024
SEQUENCES = (1, 4, 16)
GPUS = (2, 4, 8)
MICRO_STEPS = (1, 4, 16)
SIZES = preset_sizes(PRESET, vocab_size=PADDED_VOCAB_SIZE, block_size=SEQ_LEN)
DEVICE = "NVIDIA A100 80GB PCIe"
UTILISATION = 0.4
"""An assumption, for an order of magnitude: of the device's peak, without communication."""


def build_dials(
    strategies: Sequence[Strategy], accumulations: Sequence[Accumulation]
) -> dict[str, Any]:
    """Return the settings of each dial, and for every combination its estimate.

    Returns:
        Among others `rows`, by engine and mode, and by sequences, GPUs and micro-steps: bytes of
        each part at the peak, payload bytes of a rank's collectives per update, and its
        floating-point operations.
    """
    pairs = [
        (strategy, mode)
        for strategy, mode in supported_pairs()
        if strategy in strategies and mode in accumulations
    ]
    return {
        "preset": PRESET,
        "seq_len": SEQ_LEN,
        "sequences": SEQUENCES,
        "gpus": GPUS,
        "micro_steps": MICRO_STEPS,
        "device": DEVICE,
        "utilisation": UTILISATION,
        "flops_per_s": peak_flops_per_s(DEVICE, "bf16"),
        "rows": {
            f"{strategy} {mode}": {
                f"{sequences} {gpus} {micro_steps}": _cost(
                    strategy, mode, sequences, gpus, micro_steps
                )
                for sequences in SEQUENCES
                for gpus in GPUS
                for micro_steps in MICRO_STEPS
                if impossible_on(strategy, gpus) is None
            }
            for strategy, mode in pairs
        },
    }


def _cost(
    strategy: Strategy, mode: Accumulation, sequences: int, gpus: int, micro_steps: int
) -> list[Any]:
    settings = StepSettings(
        sizes=SIZES,
        strategy=strategy,
        accumulation=mode,
        world_size=gpus,
        replicas=replicas_of(strategy),
        micro_batch_size=sequences,
        seq_len=SEQ_LEN,
        grad_accum_steps=micro_steps,
    )
    program = write_step(settings)
    traffic = read_traffic(program, settings)
    tokens = sequences * SEQ_LEN * micro_steps
    return [
        list(read_peak(program).parts.values()),
        sum(found.bytes for found in traffic.values()),
        tokens * flops_per_token(SIZES, seq_len=SEQ_LEN),
    ]
