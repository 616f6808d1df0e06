"""FSDP2 and hybrid sharding: groups that are gathered, computed with, freed, and reduced.

A unit is one block, or the root: embeddings and last norm, which stay gathered from the forward
pass to the end of the backward pass. With p elements in a unit, s in one rank's padded slice of it
and S shards, c bytes per element computed with:

    always                    4 s of parameters, 8 s of moments, 4 s of gradients once reduced
    to gather                 c s of low-precision slices, c S s of buffer, c p of parameters; the
                              buffer is kept until the next unit has been copied out of its own
    backward                  the next block's buffer, prefetched; c p of gradients
    to gather, S = 1          c s of low-precision slices, tensor by tensor; c p of parameters
    to reduce                 4 S s of input, kept until the next unit reduces; 4 s of output
    hybrid, A > 1, sharded    4 s of every unit, all-reduced, to the end of the backward pass
    without reduction         4 p of gradients, however many ranks there are

`fsdp2_no_reshard` keeps c p of every unit from the forward to the backward pass. Where it does
not reduce (replicated) nothing is given back before the last micro-step, so every unit is gathered
once per window: c P of parameters throughout, and no gather buffer after the first forward pass.
`reduce: bf16` makes all sums 2 bytes wide, but for the slices added up over micro-steps; a unit
that sends bf16 and sums in fp32 has inputs of 2 S s, and receives as much.
A mixture decides all of this unit by unit; with H the units whose gradients are held, A micro-steps
of L blocks hold 4 sum_H p + 4 sum_notH s and make A (L + 1) - (A - 1) |H| reductions of
4 S [sum s + (A - 1) sum_notH s] bytes together; gathers do not depend on H.

Gathers move c S s, reductions 4 S s, and hybrid sharding's all-reduce across its replicas 4 s.
On a GPU all of them have streams of their own: one unit is gathered ahead of the computation, and
one is reduced behind it (torch 2.13, `_fsdp_param_group.py`, `FSDPCommContext`). Over gloo each is
waited for where it stands: the calls are synchronous (`async_op=False`), and a CPU has no streams.
"""

from dataclasses import replace

from toolkit.engines.mixture import ROOT, Unit, mode_of, stays_gathered
from toolkit.engines.reduction import reduction_of, sum_width
from toolkit.engines.strategies import frees_after_forward
from toolkit.engines.traffic import EngineKind
from toolkit.model.tensors import Tensor, block_tensors, root_tensors
from toolkit.program.engine import EngineWalk
from toolkit.program.events import Collective, Program
from toolkit.program.fsdp2_unit import UnitSizes, slice_of
from toolkit.program.settings import StepSettings


class Fsdp2Walk(EngineWalk):
    """`fully_shard` on every block and on the model."""

    def __init__(self, settings: StepSettings, program: Program) -> None:
        super().__init__(settings, program)
        sizes, shards = settings.sizes, settings.shards
        self.c = settings.width
        self.w = sum_width(settings.reduce)
        block = UnitSizes.of(block_tensors(0, sizes.n_embd), shards)
        self.blocks = [self._placed(block, layer) for layer in range(sizes.n_layer)]
        self.root = self._placed(UnitSizes.of(root_tensors(sizes), shards), ROOT)
        self.sharded = sizes.n_layer * block.shard + self.root.shard
        self.on_cpu = settings.device == "cpu"
        self.is_sharded = shards > 1
        self.gather_buffers: list[int] = []
        self.gathering: Collective | None = None
        self.scattering: Collective | None = None
        self.adding: list[Collective] = []
        self.reduce_buffer = 0
        self.all_reduced = 0

    def _placed(self, unit: UnitSizes, name: Unit) -> UnitSizes:
        strategy, accumulation = self.settings.strategy, self.settings.accumulation
        stays = stays_gathered(strategy, accumulation, name)
        mode = mode_of(accumulation, name)
        reduction = reduction_of(strategy, self.settings.precision, self.settings.reduce, mode)
        return replace(
            unit,
            mode=mode,
            exchanges=reduction == "bf16-fp32sum",
            gathers_again=name != ROOT and not stays and frees_after_forward(strategy),
            stays_gathered=stays,
        )

    def start(self) -> None:
        """Allocate the slices and their moments."""
        self.program.alloc("parameters", 4 * self.sharded)
        self.program.alloc("optimizer", self.moments(self.sharded))
        if self.keeps_gradients:
            self.program.alloc("gradients", 4 * self.sharded)

    def begin_micro_step(self, micro_step: int, *, is_last: bool) -> None:
        """Gather the root."""
        super().begin_micro_step(micro_step, is_last=is_last)
        if self._is_gathered(self.root):
            return
        self.program.at("gather")
        # The root waits for all computation before it: the parameters may have been updated.
        self._gather(self.root, ahead=False)
        self._copy_out(self.root, backward=False)

    def _is_gathered(self, unit: UnitSizes) -> bool:
        """Whether an earlier micro-step has left the parameters gathered."""
        return unit.stays_gathered and self.micro_step > 0

    def enter(self, module: str, layer: int, *, backward: bool) -> None:
        """Gather a block; in the backward pass it has been prefetched, and prefetches the next."""
        if module == "lm_head" and backward:
            self._prefetch(len(self.blocks) - 1)
        if module != "block":
            return
        unit = self.blocks[layer]
        if backward:
            if unit.gathers_again:
                self._copy_out(unit, backward=True)
            self._prefetch(layer - 1)
        elif not self._is_gathered(unit):
            self._gather(unit)
            self._copy_out(unit, backward=False)

    def _prefetch(self, layer: int) -> None:
        if layer >= 0 and self.blocks[layer].gathers_again:
            self._gather(self.blocks[layer])

    def leave(self, module: str, layer: int, *, backward: bool) -> None:
        """Give the block's parameters back, and after the backward pass reduce its gradients."""
        if module != "block":
            return
        unit = self.blocks[layer]
        if backward:
            self._reduce(unit)
        elif unit.gathers_again:
            self.program.free("parameters", self.c * unit.elements)

    def end_forward(self) -> None:
        """The last gather buffer goes when the root has computed."""
        self._free_gather_buffers()

    def gradient(self, tensor: Tensor) -> None:
        """Add up on the gathered parameters, where sums have the dtype that autograd gives."""
        unit = self.root if tensor.layer < 0 else self.blocks[tensor.layer]
        if self.c == self.w and self.micro_step and unit.is_held:
            self.program.free("gradients", self.c * tensor.elements)

    def end_backward(self) -> None:
        """Reduce the root; the last reduction's input goes with the backward pass."""
        self._reduce(self.root)
        self._wait_for_scattering()
        if not self.on_cpu:
            for addition in self.adding:
                self.program.wait(addition)
        self.adding = []
        self.program.free("communication", self.reduce_buffer + self.all_reduced)
        self.reduce_buffer = self.all_reduced = 0

    def step(self) -> None:
        """Update the slices."""
        self.program.at("optimizer step")
        shards = self.settings.shards
        self.update(self.tensors, [slice_of(tensor, shards) for tensor in self.tensors])
        if not self.keeps_gradients:
            self.program.free("gradients", 4 * self.sharded)

    def _gather(self, unit: UnitSizes, *, ahead: bool = True) -> None:
        if not self.is_sharded:
            return
        cast = self.c * unit.shard if self.c == 2 else 0
        size = self.c * unit.gathered
        self.program.alloc("communication", cast)
        self.program.alloc("communication", size)
        self.program.free("communication", cast)
        self.gather_buffers.append(size)
        self.gathering = self.communicate(
            "all_gather",
            unit.gathered,
            self.c,
            group="shards",
            blocks=self.on_cpu,
            ahead=ahead and not self.on_cpu,
        )

    def _copy_out(self, unit: UnitSizes, *, backward: bool) -> None:
        """Free every buffer but, in the forward pass, the one just copied out of."""
        if not self.is_sharded:
            self._copy_alone(unit)
            return
        assert self.gathering is not None
        if not self.on_cpu:
            self.program.wait(self.gathering)
        self.program.alloc("parameters", self.c * unit.elements)
        kept = self.gather_buffers[len(self.gather_buffers) - (not backward) :]
        self._free_gather_buffers()
        self.program.alloc("communication", sum(kept))
        self.gather_buffers = kept

    def _copy_alone(self, unit: UnitSizes) -> None:
        """One rank copies its tensors one by one, each cast first; a cast lives until the next."""
        earlier = 0
        for tensor in unit.tensors:
            cast = self.c * tensor.elements if self.c == 2 else 0
            self.program.alloc("communication", cast)
            self.program.free("communication", earlier)
            self.program.alloc("parameters", self.c * tensor.elements)
            earlier = cast
        self.program.free("communication", earlier)

    def _free_gather_buffers(self) -> None:
        self.program.free("communication", sum(self.gather_buffers))
        self.gather_buffers = []

    def _reduce(self, unit: UnitSizes) -> None:
        """After a unit's backward pass: sum up locally, or reduce to the slices' owners."""
        program, c, w = self.program, self.c, self.w
        casts = unit.is_held and c != w
        if casts and self.micro_step:
            # Adding to another dtype makes a copy on a CPU; a GPU's kernel casts as it reads.
            program.touch("gradients", 4 * unit.largest if self.on_cpu else 0)
            program.free("gradients", c * unit.elements)
        if self.is_last or not unit.stays_gathered:
            program.free("parameters", c * unit.elements)
        if self.is_last or not unit.is_held:
            self._scatter(unit, held=w if casts and self.micro_step else c)
        elif casts and not self.micro_step:
            # One tensor after another is turned into the sums' dtype.
            program.alloc("gradients", w * unit.largest)
            program.alloc("gradients", w * (unit.elements - unit.largest) - c * unit.elements)

    def _scatter(self, unit: UnitSizes, *, held: int) -> None:
        """Reduce gradients of `held` bytes an element to this rank's slice, which ends in fp32."""
        program, w = self.program, self.w
        sent = 2 if unit.exchanges else w
        size = sent * unit.gathered
        self._wait_for_scattering()
        program.free("communication", self.reduce_buffer)
        program.alloc("communication", size)
        self.reduce_buffer = size
        if self.on_cpu and held < sent:
            program.touch("communication", held * unit.largest)
        program.free("gradients", held * unit.elements)
        program.alloc("gradients", w * unit.shard)
        if unit.exchanges and self.is_sharded:
            # What is received, and on a CPU a part of it in fp32.
            program.touch("communication", size + (4 * unit.shard if self.on_cpu else 0))
        self._communicate(unit)
        if self.micro_step and unit.mode == "deferred":
            # The earlier micro-steps' sum, or what has been added to it.
            program.free("gradients", w * unit.shard)
        if self.is_last or unit.mode != "deferred":
            self._keep_slice(unit)

    def _keep_slice(self, unit: UnitSizes) -> None:
        """Add the reduced slice to the gradient that is there, or make it the gradient.

        Hybrid sharding keeps the all-reduced tensor of every unit, unless it is the gradient, to
        the end of the backward pass.
        """
        program, w = self.program, self.w
        is_other = w != 4 or self._adds_to_gradient(unit)
        program.alloc("gradients", 4 * unit.shard if w != 4 else 0)
        program.free("gradients", w * unit.shard if is_other else 0)
        if self._adds_to_gradient(unit):
            program.free("gradients", 4 * unit.shard if w != 4 else 0)
        if is_other and self.settings.replicas > 1:
            program.alloc("communication", w * unit.shard)
            self.all_reduced += w * unit.shard

    def _communicate(self, unit: UnitSizes) -> None:
        """Reduce to the slices' owners, then add up what the replica groups have."""
        if self.is_sharded:
            kind: EngineKind = "all_to_all" if unit.exchanges else "reduce_scatter"
            width = 2 if unit.exchanges else self.w
            self.scattering = self.communicate(
                kind, unit.gathered, width, group="shards", blocks=self.on_cpu
            )
        if self.settings.replicas > 1 and (self.is_last or unit.mode == "sharded"):
            addition = self.communicate(
                "all_reduce",
                unit.shard,
                self.w,
                group="replicas",
                blocks=self.on_cpu,
                after=self.scattering,
            )
            self.adding.append(addition)

    def _wait_for_scattering(self) -> None:
        if self.scattering is not None and not self.on_cpu:
            self.program.wait(self.scattering)
        self.scattering = None

    def _adds_to_gradient(self, unit: UnitSizes) -> bool:
        """Whether the slice has a gradient already when a reduced one comes."""
        if unit.mode == "sharded":
            return self.keeps_gradients or self.micro_step > 0
        return self.keeps_gradients and self.is_last
