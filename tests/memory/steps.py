"""Settings of a step, with some of them changed."""

from toolkit.engines.strategies import Accumulation, Strategy, supported_pairs
from toolkit.model.sizes import preset_sizes
from toolkit.program.settings import StepSettings

PAIRS = supported_pairs()


def step(strategy: Strategy = "single", accumulation: Accumulation = "replicated", **changes):
    settings = {
        "sizes": preset_sizes("gpt2"),
        "strategy": strategy,
        "accumulation": accumulation,
        "world_size": 1 if strategy == "single" else 8,
        "replicas": 2 if strategy == "hsdp" else 1,
        "grad_accum_steps": 2,
    }
    return StepSettings(**{**settings, **changes})
