"""Proof that a case does what its time is to stand for, beside the reference and the formulas."""

from typing import Any, NamedTuple

import torch

from benchmarks.batches import build_batches, on_device
from benchmarks.fitting import settings_of
from benchmarks.record import Agreement, Case, ExpectedTraffic, Traffic
from benchmarks.reference import reference_step
from benchmarks.split import measure_split
from benchmarks.trainer import LR, CaseTrainer
from toolkit.engines.collectives import CollectiveCounter
from toolkit.engines.launched import Launched
from toolkit.engines.traffic import KINDS
from toolkit.errors import ToolkitError
from toolkit.memory.allocator import measure_peak
from toolkit.program.readers.held import read_held
from toolkit.program.readers.traffic import read_traffic
from toolkit.program.settings import Device
from toolkit.program.step import write_step
from toolkit.training.step import MicroBatch, train_step
from toolkit.verify.verdict import traffic_problems
from toolkit.verify.worker import HeldGradients

FIRST_TOKENS = 256
"""Of each sequence in the first step, which the reference computes in fp64 on one rank."""
MOST_OVERFLOWS = 20
"""fp16 updates skipped before giving up; the loss scale halves each time, 65,536 to 1 in 16."""


class DisagreementError(ToolkitError):
    """The case does not compute, communicate or hold what it should; its time means nothing."""


class FirstStep(NamedTuple):
    """A step small enough for the reference: micro-batches of one short sequence each.

    Attributes:
        micro_batches: this rank's.
        reference: exact loss, gradient norm and tolerance for both, on rank 0.
    """

    micro_batches: list[MicroBatch]
    reference: tuple[float, float, float] | None


def first_step(
    case: Case, launched: Launched, device: torch.device, *, shards: list[str]
) -> FirstStep:
    """Draw or read the first step, and have rank 0 compute it alone, before there is an engine."""
    batches = build_batches(case, micro_batch_size=1, rank=launched.rank, shards=shards)
    own = [_shorten(batch) for batch in on_device(batches.micro_batches(0), device)]
    if launched.rank:
        return FirstStep(own, None)
    [whole] = on_device([batches.dataset.sequences(batches.ids(0))], device)
    reference = reference_step(case, *_shorten(whole))
    # Other groups share the GPU.
    torch.cuda.empty_cache()
    return FirstStep(own, reference)


def _shorten(batch: MicroBatch) -> MicroBatch:
    inputs, targets = batch
    return inputs[:, :FIRST_TOKENS].contiguous(), targets[:, :FIRST_TOKENS].contiguous()


def prove(trainer: CaseTrainer, first: FirstStep, *, split_steps: int) -> dict[str, Any]:
    """Compare the first step with the reference, and counts with the formulas; then look closer.

    Returns:
        Fields of a `Record`, those of the agreement on rank 0 alone.

    Raises:
        DisagreementError: names what is not as it should be.
    """
    engine = trainer.engine
    agreement = _train_first(trainer, first)
    # The second holds most: what engines set up again after the first lies beside the rest.
    with measure_peak(engine.device) as peak:
        trainer.step()
    held = HeldGradients(engine)
    with CollectiveCounter() as counter:
        trainer.step([held])
    return {
        "agreement": agreement,
        **check_counts(trainer, counter, held_bytes=held.most_bytes()),
        "peak_memory_bytes": int(engine.ranks.max(torch.tensor(peak.bytes, device=engine.device))),
        "split": measure_split(engine, trainer.step, steps=split_steps),
    }


def _train_first(trainer: CaseTrainer, first: FirstStep) -> Agreement | None:
    for _ in range(MOST_OVERFLOWS):
        result = train_step(trainer.engine, first.micro_batches, lr=LR)
        if trainer.case.precision != "fp16" or not trainer.engine.step_was_skipped:
            break
    # What a later step holds is measured, and these are no part of it.
    first.micro_batches.clear()
    if trainer.case.compile:
        # Having seen two shapes, it would compile for any, which is slower than for one.
        torch._dynamo.reset()
    found = {
        "loss": float(trainer.engine.ranks.sum(result.loss_share)),
        "grad_norm": float(result.grad_norm),
    }
    return agree(found, first.reference) if first.reference else None


def agree(found: dict[str, float], reference: tuple[float, float, float]) -> Agreement:
    """Compare a step's loss and gradient norm with the reference's, within its tolerance.

    Raises:
        DisagreementError: they differ by more than rounding explains.
    """
    loss, grad_norm, tolerance = reference
    for name, right in (("loss", loss), ("grad_norm", grad_norm)):
        distance = abs(found[name] / right - 1)
        if not distance <= tolerance:
            raise DisagreementError(
                f"{name} of the first step is {found[name]:.8g}, but plain PyTorch computes "
                f"{right:.8g}: {distance:.1e} apart, where rounding explains {tolerance:.1e}"
            )
    return Agreement(
        **found, reference_loss=loss, reference_grad_norm=grad_norm, tolerance=tolerance, ok=True
    )


def check_counts(
    trainer: CaseTrainer, counter: CollectiveCounter, *, held_bytes: int | None
) -> dict[str, Any]:
    """Compare what a step communicated, and what was held in it, with the step's program.

    Raises:
        DisagreementError: a count is another.
    """
    # Scalars and vectors of norms are the loop's and the engines' own bookkeeping.
    above = len(list(trainer.engine.module.named_parameters())) + 1
    traffic = {kind: counter.traffic(kind, above=above) for kind in KINDS}
    device: Device = "cuda" if trainer.engine.device.type == "cuda" else "cpu"
    settings = settings_of(trainer.case, device)
    program = write_step(settings)
    expected, expected_held = read_traffic(program, settings), read_held(program)
    problems = list(traffic_problems(traffic, expected))
    if held_bytes != expected_held:
        problems.append(f"{held_bytes} bytes of gradients held, not {expected_held}")
    if problems:
        raise DisagreementError("not as by the step's program: " + "; ".join(problems))
    kinds = [kind for kind in KINDS if kind != "other"]
    return {
        "collectives": {
            kind: Traffic(calls=traffic[kind].calls, bytes=traffic[kind].bytes) for kind in kinds
        },
        "expected_collectives": {
            kind: ExpectedTraffic(calls=expected[kind].calls, bytes=expected[kind].bytes)
            for kind in kinds
        },
        "gradient_bytes_held": held_bytes,
        "expected_gradient_bytes_held": expected_held,
    }
