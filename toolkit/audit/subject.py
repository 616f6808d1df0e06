"""The models that an audited process trains, and what can be read off them at any moment."""

import os
import resource
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
import torch.distributed as dist

from toolkit.audit.accelerate_internals import holds_back
from toolkit.audit.bits import Bits, local_part, sum_of_bits
from toolkit.audit.models import (
    deepspeed_engine,
    describe_engine,
    find_roots,
    flats_of,
    fsdp2_units,
    groups_of,
    memberships,
    parameters_of,
    ties_of,
    untied_embeddings,
)
from toolkit.audit.samples import GradientSamples
from toolkit.audit.torch_internals import is_compiled_in_place, tree_leaves
from toolkit.audit.window import add_traffic
from toolkit.engines.collective_listener import CollectiveListener
from toolkit.engines.collectives import read_collective

_LOOKED_AT = 8
"""Parameters whose gradients are looked at for what an earlier step left."""


class Subject:
    """Found at the first backward, when models are wrapped and optimizers built."""

    def __init__(
        self,
        heard: Callable[[Any], None],
        before_forward: Callable[[Any], None],
        attempt: Callable[..., None],
    ) -> None:
        self.roots = find_roots()
        self.samples = GradientSamples(self.roots, attempt)
        self._of_root = [list(parameters_of([root])) for root in self.roots]
        self._flat_sizes = {
            id(parameter): size
            for flat in flats_of(self.roots)
            if flat.is_sharded
            for parameter, size in [
                (flat.parameter, flat.elements),
                *((original, own) for _, original, own in flat.originals),
            ]
        }
        self._units = fsdp2_units(self.roots)
        self._deepspeed = deepspeed_engine(self.roots)
        self._batch: list[Bits] = []
        self._forward: dict[str, Any] = {}
        self._listener = CollectiveListener(
            partial(
                attempt, lambda what, given, found: heard(read_collective(what, given, found, True))
            )
        )
        self._handles = [
            root.register_forward_pre_hook(
                lambda _, arguments, settings: before_forward((arguments, settings)),
                with_kwargs=True,
                prepend=True,  # before FSDP2 gathers
            )
            for root in self.roots
            # A hook would have a module compiled in place compiled again.
            if not is_compiled_in_place(root)
        ]

    def trained(self) -> list[torch.nn.Module]:
        """Return the roots that a backward has reached."""
        fired = self.samples.fired
        pairs = zip(self.roots, self._of_root, strict=True)
        return [root for root, own in pairs if any(id(p) in fired for _, p in own)]

    def note_batch(self, inputs: Any) -> None:
        """Keep a hash of each tensor that a model is called with."""
        self._batch = [Bits(leaf) for leaf in tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]

    def take_batch(self) -> list[Bits]:
        """Return the hashes of the last forward's inputs, once."""
        batch, self._batch = self._batch, []
        return batch

    def hear_forward(self, call: Any) -> None:
        """Note a collective outside any window."""
        add_traffic(self._forward, "forward", call)

    def take_forward_traffic(self) -> dict[str, Any]:
        """Return the collectives of the forward before a window's first backward."""
        traffic, self._forward = self._forward, {}
        return traffic

    def asks_to_hold(self) -> bool:
        """Whether Accelerate was told that this micro-step is not the window's last."""
        return holds_back()

    def holds_nonzero_gradients(self) -> bool:
        """Whether gradients of an earlier step are still there."""
        if self._deepspeed is not None:
            return False
        found = [p.grad for p in self._every() if p.grad is not None]
        return any(
            bool(gradient.detach().any()) for gradient in map(local_part, found[:_LOOKED_AT])
        )

    def held_bytes(self) -> int:
        """Return the bytes of gradients that wait for the rest of the window."""
        storages = {}
        for gradient in self._held():
            storage = gradient.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
        return sum(storages.values())

    def _held(self) -> Iterator[torch.Tensor]:
        if self._units:
            from toolkit.engines.torch_internals import held_gradients

            for unit in self._units:
                yield from held_gradients(unit)
        if self._deepspeed is not None:
            from toolkit.audit.deepspeed_internals import sums_held

            yield from sums_held(self._deepspeed)
        for parameter in self._every():
            if parameter.grad is not None:
                yield local_part(parameter.grad)

    def gradient_dtypes(self) -> list[str]:
        """Return the dtypes of the gradients that an optimizer is about to use."""
        return self.samples.applied_dtypes()

    def largest(self) -> int:
        """Return the elements that can be trained of the model that has most."""
        return max((sum(self._whole_size(p) for _, p in own) for own in self._of_root), default=0)

    def _whole_size(self, parameter: Any) -> int:
        size = getattr(parameter, "ds_numel", parameter.numel())
        return int(self._flat_sizes.get(id(parameter), size))

    def _every(self) -> Iterator[Any]:
        return (parameter for own in self._of_root for _, parameter in own)

    def _parameters(self) -> Iterator[tuple[str, Any]]:
        fired = self.samples.fired
        for own in self._of_root:
            if any(id(p) in fired for _, p in own):
                yield from own

    def fingerprints(self) -> dict[str, int]:
        """Return the sum of the bits of every parameter that should be whole on each rank."""
        return {
            name: sum_of_bits(parameter)
            for name, parameter in self._parameters()
            if id(parameter) not in self._flat_sizes
            and not hasattr(parameter, "placements")
            and not hasattr(parameter, "ds_tensor")
        }

    def describe(
        self, optimizers: list[tuple[Any, str | None]], first_ties: set[tuple[str, ...]]
    ) -> dict[str, Any]:
        """Return what holds for all steps.

        Args:
            optimizers: that are alive, and where they were built.
            first_ties: shared weights when the first of them was built.
        """
        trained = self.trained()
        names = {name for root in trained for name, _ in root.named_parameters()}
        lost = [tie for tie in first_ties - set(ties_of(trained)) if set(tie) <= _plain(names)]
        engine = deepspeed_engine(trained)
        return {
            "engine": describe_engine(trained),
            "wrappers": [type(root).__name__ for root in trained],
            "memberships": memberships(trained, [optimizer for optimizer, _ in optimizers]),
            "optimizers": [
                {"kind": type(o).__name__, "line": line, "groups": groups_of(trained, o)}
                for o, line in optimizers
            ],
            "parameter_bytes": sum(
                self._whole_size(p) * int(p.element_size()) for _, p in self._parameters()
            ),
            "ties": ties_of(trained),
            "untied": [list(tie) for tie in lost],
            "untied_embeddings": any(untied_embeddings(root) for root in trained),
            "parameter_dtypes": sorted({str(p.dtype) for _, p in self._parameters()}),
            "state_dtypes": _state_dtypes(optimizer for optimizer, _ in optimizers),
            "deepspeed": _deepspeed_settings(engine),
        }

    def remove(self) -> None:
        """Take all hooks off again."""
        for handle in self._handles:
            handle.remove()
        self.samples.remove()
        self._listener.remove()


def _plain(names: set[str]) -> set[str]:
    from toolkit.audit.models import plain_name

    return {plain_name(name) for name in names}


def _state_dtypes(optimizers: Iterator[Any]) -> list[str]:
    values = (v for o in optimizers for state in o.state.values() for v in state.items())
    return sorted(
        {str(t.dtype) for name, t in values if isinstance(t, torch.Tensor) and name != "step"}
    )


def _deepspeed_settings(engine: Any) -> dict[str, Any] | None:
    if engine is None:
        return None
    from toolkit.audit.deepspeed_internals import settings_of

    return settings_of(engine)


def describe_process() -> dict[str, Any]:
    """Return this process's place and versions."""
    is_group = dist.is_available() and dist.is_initialized()
    versions = {}
    for package in ("torch", "accelerate", "transformers", "deepspeed", "lightning"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "rank": dist.get_rank() if is_group else int(os.environ.get("RANK", "0")),
        "world_size": dist.get_world_size() if is_group else 1,
        "launched_world_size": int(os.environ.get("WORLD_SIZE", "1")),
        "versions": versions,
    }


def peak_memory_bytes() -> int:
    """Return the most bytes allocated on this process's GPU, or resident without one."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated()
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
