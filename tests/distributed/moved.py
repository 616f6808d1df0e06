"""Take away, one by one, what the toolkit reaches for inside the launched engine's library."""

from collections.abc import Callable, Iterator
from typing import Any

from torch.distributed.fsdp import FSDPModule

from tests.distributed.abandoned import gradient
from tests.half_precision import fp16_on_cpu
from toolkit.engines import deepspeed_internals, torch_internals
from toolkit.engines.engine import Engine
from toolkit.engines.launched import Launched
from toolkit.engines.strategies import PRECISIONS, Precision, possible_accumulations
from toolkit.errors import UsageError
from toolkit.verify import worker
from toolkit.verify.cases import TINY, Case


def moved_attributes(launched: Launched) -> Iterator[dict[str, Any]]:
    """Yield the sentence for each attribute; DeepSpeed's classes differ by precision."""
    precisions: tuple[Precision, ...] = ()
    if launched.strategy == "fsdp2":
        precisions = ("fp32",)
    elif launched.strategy.startswith("zero"):
        precisions = PRECISIONS
    for precision in precisions:
        mode = possible_accumulations(launched.strategy)[0]
        case = Case(accumulation=mode, grad_accum_steps=1, precision=precision)
        with fp16_on_cpu(launched.strategy):
            engine = worker.build_case(case, TINY, launched)
        gradient(engine, worker.own_micro_batches(case, TINY, engine, 0))
        check, stand_ins = _stand_ins(engine)
        sentences = {name: _refusal(check, broken) for name, broken in stand_ins.items()}
        yield {"precision": precision, "sentences": sentences}


def without(owner: Any, name: str, **replaced: Any) -> Any:
    """A stand-in for an object of a library in which one attribute has moved."""

    def find(_: Any, asked: str) -> Any:
        if asked == name:
            raise AttributeError(asked)
        return replaced[asked] if asked in replaced else getattr(owner, asked)

    return type(type(owner).__name__, (), {"__getattr__": find})()


def _stand_ins(engine: Engine) -> tuple[Callable[[Any], None], dict[str, Any]]:
    if engine.launched.strategy.startswith("zero"):
        return deepspeed_internals.check_optimizer, _broken_optimizers(engine.model.optimizer)
    unit = next(m for m in engine.module.modules() if isinstance(m, FSDPModule))
    return lambda broken: torch_internals.check_fsdp([broken]), _broken_units(unit)


def _broken_optimizers(optimizer: Any) -> dict[str, Any]:
    kind = type(optimizer).__name__
    found = {n: without(optimizer, n) for n in deepspeed_internals.OPTIMIZERS[kind]}
    parameter = next(deepspeed_internals.compute_parameters(optimizer))
    [groups] = [n for n in found if n in ("bit16_groups", "bf16_groups", "fp16_groups")]
    for name in deepspeed_internals.PARAMETERS[kind]:
        found[name] = without(optimizer, "", **{groups: [[without(parameter, name)]]})
    if deepspeed_internals.loss_scale(optimizer):
        for name in deepspeed_internals.SCALER:
            scaler = without(optimizer.loss_scaler, name)
            found[name] = without(optimizer, "", loss_scaler=scaler)
    return found


def _broken_units(unit: Any) -> dict[str, Any]:
    state = unit._get_fsdp_state()
    group = state._fsdp_param_group
    found = {"_get_fsdp_state": without(unit, "_get_fsdp_state")}

    def inside(broken_state: Any) -> Any:
        return without(unit, "", _get_fsdp_state=lambda: broken_state)

    for name in torch_internals.STATE:
        found[name] = inside(without(state, name))
    for name in torch_internals.GROUP:
        found[name] = inside(without(state, "", _fsdp_param_group=without(group, name)))
    for name in torch_internals.PARAMETER:
        parts = [without(group.fsdp_params[0], name)]
        broken_group = without(group, "", fsdp_params=parts)
        found[name] = inside(without(state, "", _fsdp_param_group=broken_group))
    return found


def _refusal(check: Callable[[Any], None], broken: Any) -> str:
    try:
        check(broken)
    except UsageError as error:
        return str(error)
    return ""
