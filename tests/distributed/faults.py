"""Put one fault after another into a running engine and say which check caught it.

Run under `accelerate launch`; rank 0 prints one JSON object per fault.
"""

import copy
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import timedelta
from unittest.mock import patch

import torch
import torch.distributed as dist

from toolkit.backends import build, deepspeed_config
from toolkit.backends.engine import Engine
from toolkit.backends.in_force import check_first_step, check_in_force
from toolkit.backends.launched import read_launch
from toolkit.backends.process_group import start_process_group
from toolkit.errors import UsageError
from toolkit.model.gpt2 import GPT2
from toolkit.training.build import TIED
from toolkit.training.optimizer import build_optimizer
from toolkit.training.step import train_step
from toolkit.verify import arm
from toolkit.verify.cases import TINY, Case
from toolkit.verify.compare import compare
from toolkit.verify.reference import reference_trajectory

LAUNCHED = read_launch(os.environ)
CASE = Case(accumulation="replicated", grad_accum_steps=4, dropout=0.0)


def say(fault: str, caught: object) -> None:
    if LAUNCHED.rank == 0:
        print("FAULT " + json.dumps({"fault": fault, "caught": caught}), flush=True)


def refusal(action: Callable[[], object]) -> str | None:
    try:
        action()
    except UsageError as error:
        return str(error)
    return None


def missing_bootstrap() -> None:
    """Accelerate by itself: every process is alone, and nothing says so."""
    from accelerate import PartialState

    say("missing bootstrap", refusal(lambda: arm.build_case(CASE, TINY, LAUNCHED)))
    PartialState._reset_state()


def untied_head() -> None:
    with patch.object(GPT2, "tie_weights", lambda model: None):
        say("untied head", refusal(lambda: arm.build_case(CASE, TINY, LAUNCHED)))


def stale_optimizer() -> None:
    """An optimizer of other parameters than the model's: nothing is learned, nothing complains."""

    def build_on_a_copy(model: GPT2, config: object) -> torch.optim.Optimizer:
        return build_optimizer(copy.deepcopy(model), config)  # type: ignore[arg-type]

    with patch.object(arm, "build_optimizer", build_on_a_copy):
        say("stale optimizer", refusal(lambda: arm.build_case(CASE, TINY, LAUNCHED)))


def watched_step(engine: Engine, *, watch: bool = True) -> None:
    with check_first_step(engine, grad_accum_steps=4) if watch else nullcontext():
        train_step(engine, arm.own_micro_batches(CASE, TINY, engine, 0), lr=0.1)


def communicates_at_every_micro_step() -> None:
    engine = arm.build_case(CASE, TINY, LAUNCHED)
    engine._before_last_micro_step = nullcontext  # type: ignore[method-assign, assignment]
    say("communicates at every micro-step", refusal(lambda: watched_step(engine)))


def never_communicates_before_the_last() -> None:
    engine = arm.build_case(replace(CASE, accumulation="sharded"), TINY, LAUNCHED)
    engine.accumulation = "replicated"
    with pretending(engine, "sharded"):
        say("does not communicate when it should", refusal(lambda: watched_step(engine)))


@contextmanager
def pretending(engine: Engine, accumulation: str) -> Iterator[None]:
    """Let the check believe another mode was asked than the engine keeps to."""
    from toolkit.backends import in_force

    with patch.object(in_force, "_asked_reductions", lambda engine: {"all-reduce"}):
        yield


def wrong_divisor() -> None:
    """The mean over micro-steps taken a second time."""

    def divide_again(engine: Engine) -> None:
        backward = engine.backward
        engine.backward = lambda loss: backward(loss / 4)  # type: ignore[method-assign]

    say("gradient divided twice", _gradient_error(divide_again) > 0.5)
    say("nothing (control)", _gradient_error(lambda engine: None) > 1e-5)


def sync_flag_after_forward() -> None:
    """DDP reads its flag in the forward pass; set later, the last backward reduces nothing."""

    def flip_late(engine: Engine) -> None:
        backward, calls = engine.backward, iter(range(4))
        engine.model.require_backward_grad_sync = False
        engine._before_last_micro_step = nullcontext  # type: ignore[method-assign, assignment]

        def backward_with_late_flag(loss: torch.Tensor) -> None:
            engine.model.require_backward_grad_sync = next(calls) == 3
            backward(loss)

        engine.backward = backward_with_late_flag  # type: ignore[method-assign]

    say("sync flag flipped after forward", _gradient_error(flip_late) > 1e-3)


def _gradient_error(prepare: Callable[[Engine], None]) -> float:
    case = replace(CASE, steps=1)
    with patch.object(arm, "check_first_step", lambda engine, **settings: nullcontext()):
        found = arm.run_case(case, TINY, LAUNCHED, prepare=prepare).trajectory
    expected = reference_trajectory(case, TINY, dtype=torch.float32)
    return compare(found, expected).gradient_max_rel


def replicas() -> None:
    """Bit-identical after steps with dropout that differs by rank; apart once nothing averages."""
    engine = arm.build_case(replace(CASE, dropout=0.1), TINY, LAUNCHED)
    for step in range(4):
        torch.manual_seed(100 * step + LAUNCHED.rank)
        train_step(engine, arm.own_micro_batches(CASE, TINY, engine, step), lr=0.1)
    say("replicas identical after 4 steps", len(set(_bits_of_all_ranks(engine))) == 1)
    with engine.model.no_sync():
        watched_step(engine, watch=False)
    say("replicas drift without averaging", len(set(_bits_of_all_ranks(engine))) > 1)


def _bits_of_all_ranks(engine: Engine) -> list[int]:
    bits = sum(
        parameter.detach().view(torch.int32).sum(dtype=torch.int64)
        for _, parameter in engine.named_parameters()
    )
    gathered = [torch.zeros((), dtype=torch.int64) for _ in range(LAUNCHED.world_size)]
    dist.all_gather(gathered, torch.as_tensor(bits))
    return [int(value) for value in gathered]


def wrong_stage() -> None:
    with patch.dict(deepspeed_config.STAGES, {"zero2": 1}):
        say("wrong stage", refusal(lambda: arm.build_case(CASE, TINY, LAUNCHED)))


def default_clipping() -> None:
    """Accelerate fills in 1.0 where no value is given."""
    config = deepspeed_config.build_deepspeed_config

    def without_clipping(*args: object, **settings: object) -> dict[str, object]:
        built = config(*args, **settings)  # type: ignore[arg-type]
        return {**built, "gradient_clipping": "auto"}

    with patch.object(deepspeed_config, "build_deepspeed_config", without_clipping):
        say("clipping left to the default", refusal(lambda: arm.build_case(CASE, TINY, LAUNCHED)))


def bf16_accumulation() -> None:
    config = deepspeed_config.build_deepspeed_config

    def unset(*args: object, **settings: object) -> dict[str, object]:
        built = config(*args, **settings)  # type: ignore[arg-type]
        return {**built, "data_types": {}}

    case = replace(CASE, precision="bf16")
    with patch.object(deepspeed_config, "build_deepspeed_config", unset):
        say("gradients accumulated in bf16", refusal(lambda: arm.build_case(case, TINY, LAUNCHED)))


def wrong_reshard() -> None:
    other = replace(LAUNCHED, strategy="fsdp2_no_reshard")

    def build() -> None:
        engine = arm.build_case(CASE, TINY, LAUNCHED)
        engine.launched = other
        check_in_force(engine, precision="fp32", tied=TIED)

    say("reshard after forward against the launch file", refusal(build))


def bf16_reduction() -> None:
    from torch.distributed.fsdp import MixedPrecisionPolicy

    plugins = build._fsdp2_plugins

    def reduce_in_bf16(*args: object) -> dict[str, object]:
        built = plugins(*args)  # type: ignore[arg-type]
        built["fsdp_plugin"].mixed_precision_policy = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16
        )
        return built

    case = replace(CASE, precision="bf16")
    with patch.object(build, "_fsdp2_plugins", reduce_in_bf16):
        say("gradients reduced in bf16", refusal(lambda: arm.build_case(case, TINY, LAUNCHED)))


FAULTS = {
    "ddp": [
        untied_head,
        stale_optimizer,
        communicates_at_every_micro_step,
        never_communicates_before_the_last,
        wrong_divisor,
        sync_flag_after_forward,
        replicas,
    ],
    "fsdp2": [untied_head, communicates_at_every_micro_step, wrong_reshard, bf16_reduction],
    "zero2": [stale_optimizer, wrong_stage, default_clipping, bf16_accumulation, wrong_divisor],
}


def main() -> None:
    if LAUNCHED.strategy == "ddp":
        missing_bootstrap()
    start_process_group(LAUNCHED, timeout=timedelta(seconds=60))
    for fault in FAULTS[LAUNCHED.strategy]:
        fault()


if __name__ == "__main__":
    sys.exit(main())
