"""What is run where: on a GPU at real sizes, on a CPU the same lines at tiny ones."""

from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from benchmarks.record import Case
from toolkit.engines.strategies import DEVICE_PRECISIONS, Precision, Strategy
from toolkit.model.sizes import ModelSizes, preset_sizes
from toolkit.program.settings import Device

TINY = ModelSizes(n_layer=2, n_head=2, n_embd=32, vocab_size=512, block_size=64)


@dataclass(frozen=True)
class Scale:
    """What each stage runs.

    Attributes:
        alone: strategies at world size 1, over NCCL on a GPU.
        shared: strategies on two ranks of one device, over gloo.
        memory: cases whose peak is measured.
        speed: cases whose steps are timed, by name.
        timed_steps: of each of those.
        run: sections of the configuration that is saved, resumed and hung.
        timeout_s: of one launch.
    """

    device: Device
    alone: tuple[Strategy, ...]
    shared: tuple[Strategy, ...]
    memory: tuple[Case, ...]
    speed: dict[str, Case]
    timed_steps: int
    run: dict[str, Any]
    timeout_s: float = 120.0

    @property
    def precisions(self) -> tuple[Precision, ...]:
        """Those that the device has, the plainest first."""
        return DEVICE_PRECISIONS[self.device]


def scale_for(device: Device) -> Scale:
    """Return what is run on a GPU, or on a CPU to rehearse it."""
    return _on_gpu() if device == "cuda" else _on_cpu()


def _on_gpu() -> Scale:
    base = _case(preset_sizes("gpt2"), seq_len=1024, micro_batch_size=4, precision="bf16")
    fast = replace_case(base, micro_batch_size=16)
    return Scale(
        device="cuda",
        alone=("ddp", "fsdp2", "zero2", "zero3", "zero1", "fsdp2_no_reshard"),
        shared=("ddp", "fsdp2", "zero2"),
        memory=tuple(_memory_cases(base)),
        speed=_variants(fast),
        timed_steps=20,
        run={
            "model": {"n_layer": 4, "n_head": 4, "n_embd": 256, "block_size": 256},
            "batch": {"tokens_per_step": 4096, "micro_batch_size": 8},
            "precision": "bf16",
        },
    )


def _on_cpu() -> Scale:
    base = _case(TINY, seq_len=64, micro_batch_size=2, precision="fp32")
    return Scale(
        device="cpu",
        alone=("ddp",),
        shared=("fsdp2",),
        memory=(base, replace_case(base, loss="chunked")),
        speed=_variants(base),
        timed_steps=3,
        run={
            "model": {"n_layer": 1, "n_head": 1, "n_embd": 16, "block_size": 64},
            "batch": {"tokens_per_step": 256, "micro_batch_size": 2},
        },
    )


def _memory_cases(base: Case) -> list[Case]:
    """Return 20 cases of the models with 124M and 350M parameters."""
    models = preset_sizes("gpt2"), preset_sizes("gpt2-medium")
    grid = product(models, ("bf16", "fp32"), ("plain", "chunked"), (False, True))
    cases = [
        replace_case(
            base,
            model=model,
            precision=precision,
            loss=loss,
            activation_checkpointing=checkpointing,
        )
        for model, precision, loss, checkpointing in grid
    ]
    others: list[dict[str, Any]] = [
        {"micro_batch_size": 16},
        {"grad_accum_steps": 4},
        {"optimizer": "sgd"},
        {"compile": True},
    ]
    return cases + [replace_case(base, **changes) for changes in others]


def _variants(base: Case) -> dict[str, Case]:
    return {
        "plain": base,
        "chunked loss": replace_case(base, loss="chunked"),
        "compiled": replace_case(base, compile=True),
    }


def _case(sizes: ModelSizes, **fields: Any) -> Case:
    return Case(
        strategy="single",
        accumulation="replicated",
        grad_accum_steps=1,
        world_size=1,
        model=sizes,
        **fields,
    )


def replace_case(case: Case, **changes: Any) -> Case:
    """Return a case with some fields changed."""
    return case.model_copy(update=changes)


def without_compiler(scale: Scale) -> Scale:
    """Return a scale that compiles nothing, which takes longer than all else at tiny sizes."""
    speed = {name: case for name, case in scale.speed.items() if not case.compile}
    return replace(scale, speed=speed)
