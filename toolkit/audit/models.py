"""The script's models: found among the live objects, their engine, names, ties and memberships."""

import gc
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import torch
from torch import nn

from toolkit.audit import torch_internals
from toolkit.engines.ties import tied_names

_WRAPPERS = {
    "module",
    "_orig_mod",
    "_forward_module",
    "_original_module",
    "_fsdp_wrapped_module",
    "_checkpoint_wrapped_module",
}


def find_roots() -> list[nn.Module]:
    """Return every live module with parameters that is part of no other."""
    # `type`, since asking an instance can run code of proxies and lazy modules.
    modules = [found for found in gc.get_objects() if issubclass(type(found), nn.Module)]
    inner = {id(child) for module in modules for child in module.children()}
    outer = [module for module in modules if id(module) not in inner]
    return [module for module in outer if any(p.requires_grad for p in module.parameters())]


def plain_name(name: str) -> str:
    """Return a parameter's name without what wrappers put in front."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def parameters_of(roots: Iterable[nn.Module]) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield each trained parameter once, by its plain name; of FSDP2's the sharded one.

    Between a forward and the end of its backward a module sharded by FSDP2 can have its whole
    parameters, and one sharded by FSDP1 has views in their place.
    """
    roots = list(roots)
    sharded = {id(whole): part for part, whole in whole_parameters(roots)}
    seen: set[int] = set()
    for root in roots:
        originals = ((name, p) for flat in flats_of([root]) for name, p, _ in flat.originals)
        for name, present in chain(root.named_parameters(), originals):
            parameter = sharded.get(id(present), present)
            if parameter.requires_grad and id(parameter) not in seen:
                seen.add(id(parameter))
                yield plain_name(name), parameter


def ties_of(roots: Iterable[nn.Module]) -> list[tuple[str, ...]]:
    """Return the plain names of every weight that several modules share.

    A module that its wrapper holds twice, as Fabric's does, has one plain name.
    """
    ties = (tie for root in roots for tie in tied_names(root))
    plain = [tuple(dict.fromkeys(plain_name(name) for name in tie)) for tie in ties]
    return [tie for tie in plain if len(tie) > 1]


def loaded(name: str) -> Any:
    """Return a module if the script has imported it, without importing it."""
    return sys.modules.get(name)


def _has(roots: Iterable[nn.Module], kind: Any) -> Any:
    modules = (module for root in roots for module in root.modules())
    return None if kind is None else next((m for m in modules if isinstance(m, kind)), None)


def deepspeed_engine(roots: Iterable[nn.Module]) -> Any:
    """Return the DeepSpeed engine among the roots, or None."""
    runtime = loaded("deepspeed.runtime.engine")
    return _has(roots, getattr(runtime, "DeepSpeedEngine", None))


def fsdp2_units(roots: Iterable[nn.Module]) -> list[Any]:
    """Return the modules that `fully_shard` was called on."""
    fsdp = loaded("torch.distributed.fsdp")
    kind = getattr(fsdp, "FSDPModule", ())
    return [module for root in roots for module in root.modules() if isinstance(module, kind)]


def whole_parameters(roots: Iterable[nn.Module]) -> Iterator[tuple[Any, Any]]:
    """Yield each parameter that FSDP2 has sharded, and the leaf that backward reaches."""
    for unit in fsdp2_units(roots):
        yield from torch_internals.sharded_and_whole(unit)


def fsdp1() -> Any:
    """Return FSDP1's class if the script has imported it, else None."""
    return getattr(loaded("torch.distributed.fsdp"), "FullyShardedDataParallel", None)


def flats_of(roots: Iterable[nn.Module]) -> list[torch_internals.Flat]:
    """Return the flat parameters of FSDP1."""
    if (kind := fsdp1()) is None:
        return []
    return [flat for root in roots for flat in torch_internals.flats_of(root, kind)]


def describe_engine(roots: list[nn.Module]) -> str:
    """Return "DeepSpeed stage N", "FSDP2", "FSDP1", "DDP" or "plain"."""
    if (engine := deepspeed_engine(roots)) is not None:
        return f"DeepSpeed stage {engine.zero_optimization_stage()}"
    if fsdp2_units(roots):
        return "FSDP2"
    if _has(roots, fsdp1()) is not None:
        return "FSDP1"
    return "DDP" if _has(roots, nn.parallel.DistributedDataParallel) is not None else "plain"


def untied_embeddings(root: nn.Module) -> bool:
    """Whether a transformers model whose configuration ties its embeddings has two of them."""
    modules: Iterator[Any] = root.modules()
    for module in modules:
        config = getattr(module, "config", None)
        if not getattr(config, "tie_word_embeddings", False):
            continue
        if hasattr(module, "get_output_embeddings") and (out := module.get_output_embeddings()):
            return out.weight is not module.get_input_embeddings().weight
    return False


def memberships(
    roots: list[nn.Module], optimizers: Iterable[torch.optim.Optimizer]
) -> dict[str, list[str] | int]:
    """Return trained parameters that no optimizer has, that are there twice, and stale ones.

    A stale parameter is one of an optimizer's that no live model holds any more. DeepSpeed's
    optimizers hold flat partitions; there the engine's own list of parameters is compared.
    """
    own = dict(parameters_of(roots))
    if (engine := deepspeed_engine(roots)) is not None:
        from toolkit.audit.deepspeed_internals import parameters_held

        held = parameters_held(engine)
        stale = 0
    else:
        held = [p for o in optimizers for group in o.param_groups for p in group["params"]]
        models = find_roots()
        live = {id(p) for model in models for p in model.parameters()}
        trained = {id(p) for p in held} & {id(p) for p in own.values()}
        # Optimizers of other things than modules, beside one of the model's, are no fault.
        stale = 0 if trained else sum(id(p) not in live for p in held)
    counts = Counter(map(id, held))
    return {
        "missing": [name for name, p in own.items() if not counts[id(p)]],
        "twice": [name for name, p in own.items() if counts[id(p)] > 1],
        "stale": stale,
    }


def groups_of(roots: list[nn.Module], optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Return learning rate, weight decay and parameters' names of each group of an optimizer.

    What belongs to no model, such as DeepSpeed's flat partitions, is counted and has no name.
    """
    names = {id(p): name for name, p in parameters_of(roots)}
    return [
        {
            "lr": float(group["lr"]) if "lr" in group else None,
            "weight_decay": group.get("weight_decay"),
            "parameters": [names[id(p)] for p in group["params"] if id(p) in names],
            "others": sum(id(p) not in names for p in group["params"]),
        }
        for group in optimizer.param_groups
    ]
