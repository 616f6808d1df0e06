"""Put one fault after another into a running engine and say which check caught it.

Run under `accelerate launch`; rank 0 prints one JSON object per fault.
"""

import json
import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from unittest.mock import patch

import torch
import torch.distributed as dist

from toolkit.engines import build, deepspeed_config
from toolkit.engines.effective import check_effective, check_first_step
from toolkit.engines.engine import Engine
from toolkit.engines.launched import read_launch
from toolkit.engines.process_group import start_process_group
from toolkit.engines.replicas import replica_problems
from toolkit.errors import UsageError
from toolkit.launch.exit_code import end_process
from toolkit.training.build import TIED
from toolkit.training.step import train_step
from toolkit.verify import worker
from toolkit.verify.cases import TINY, Case

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

    say("missing bootstrap", refusal(lambda: worker.build_case(CASE, TINY, LAUNCHED)))
    PartialState._reset_state()


def watched_step(engine: Engine, case: Case = CASE, *, watch: bool = True) -> None:
    reductions = worker.reductions_of(case, TINY, LAUNCHED)
    with check_first_step(engine, reductions) if watch else nullcontext():
        train_step(engine, worker.own_micro_batches(case, TINY, engine, 0), lr=0.1)


def never_communicates_before_the_last() -> None:
    case = replace(CASE, accumulation="sharded")
    engine = worker.build_case(case, TINY, LAUNCHED)
    engine.accumulation = "replicated"
    say("does not communicate when it should", refusal(lambda: watched_step(engine, case)))


def replicas() -> None:
    """Bit-identical after steps with dropout that differs by rank; apart once nothing averages."""
    engine = worker.build_case(replace(CASE, dropout=0.1), TINY, LAUNCHED)
    for step in range(4):
        torch.manual_seed(100 * step + LAUNCHED.rank)
        train_step(engine, worker.own_micro_batches(CASE, TINY, engine, step), lr=0.1)
    say("replicas identical after 4 steps", replica_problems(engine) == [])
    with engine.model.no_sync():
        watched_step(engine, watch=False)
    say("replicas drift without averaging", "ranks 0, 1 differ" in replica_problems(engine)[0])


def stale_optimizer() -> None:
    """Partitions made of other parameters than the model's."""

    def make_of_copies(engine: Engine, case: Case) -> None:
        groups = engine.model.optimizer.bit16_groups
        groups[0] = [torch.nn.Parameter(p.detach().clone()) for p in groups[0]]

    def build() -> None:
        worker.build_case(CASE, TINY, LAUNCHED, fault=make_of_copies)

    say("stale optimizer", refusal(build))


def wrong_stage() -> None:
    with patch.dict(deepspeed_config.STAGES, {"zero2": 1}):
        say("wrong stage", refusal(lambda: worker.build_case(CASE, TINY, LAUNCHED)))


def default_clipping() -> None:
    """Accelerate fills in 1.0 where no value is given."""
    config = deepspeed_config.build_deepspeed_config

    def without_clipping(*args: object, **settings: object) -> dict[str, object]:
        built = config(*args, **settings)  # type: ignore[arg-type]
        return {**built, "gradient_clipping": "auto"}

    with patch.object(deepspeed_config, "build_deepspeed_config", without_clipping):
        say(
            "clipping left to the default", refusal(lambda: worker.build_case(CASE, TINY, LAUNCHED))
        )


def bf16_accumulation() -> None:
    config = deepspeed_config.build_deepspeed_config

    def unset(*args: object, **settings: object) -> dict[str, object]:
        built = config(*args, **settings)  # type: ignore[arg-type]
        return {**built, "data_types": {}}

    case = replace(CASE, precision="bf16")
    with patch.object(deepspeed_config, "build_deepspeed_config", unset):
        say(
            "gradients accumulated in bf16",
            refusal(lambda: worker.build_case(case, TINY, LAUNCHED)),
        )


def wrong_reshard() -> None:
    other = replace(LAUNCHED, strategy="fsdp2_no_reshard")

    def build() -> None:
        engine = worker.build_case(CASE, TINY, LAUNCHED)
        engine.launched = other
        check_effective(engine, precision="fp32", tied=TIED)

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
        say("gradients reduced in bf16", refusal(lambda: worker.build_case(case, TINY, LAUNCHED)))


FAULTS = {
    "ddp": [never_communicates_before_the_last, replicas],
    "fsdp2": [wrong_reshard, bf16_reduction],
    "zero2": [stale_optimizer, wrong_stage, default_clipping, bf16_accumulation],
}


def main() -> None:
    if LAUNCHED.strategy == "ddp":
        missing_bootstrap()
    start_process_group(LAUNCHED, timeout=timedelta(seconds=60))
    for fault in FAULTS[LAUNCHED.strategy]:
        fault()
    # Left to the interpreter's end, gloo's threads now and then abort the process.
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    end_process(0)
