"""FSDP2 and hybrid sharding: groups that are gathered, computed with, freed, and reduced.

A group is one block, or the root: embeddings and last norm, which stay gathered from the forward
pass to the end of the backward pass. With p elements in a group, s in one rank's padded slice of it
and S shards, c bytes per element computed with:

    always                    4 s of parameters, 8 s of moments, 4 s of gradients once reduced
    to gather                 c s of low-precision slices, c S s of buffer, c p of parameters; the
                              buffer is kept until the next group has been copied out of its own
    backward                  the next block's buffer, prefetched; c p of gradients
    to gather, S = 1          c s of low-precision slices, tensor by tensor; c p of parameters
    to reduce                 4 S s of input, kept until the next group reduces; 4 s of output
    hybrid, A > 1, sharded    4 s of every group, all-reduced, to the end of the backward pass
    without reduction         4 p of gradients, however many ranks there are

`fsdp2_no_reshard` keeps c p of every group from the forward to the backward pass. Where it does
not reduce (replicated) nothing is given back before the last micro-step, so every group is gathered
once per window: c P of parameters throughout, and no gather buffer after the first forward pass.

Gathers move c S s, reductions 4 S s, and hybrid sharding's all-reduce across its replicas 4 s.
On a GPU all of them have streams of their own: one group is gathered ahead of the computation, and
one is reduced behind it (torch 2.13, `_fsdp_param_group.py`, `FSDPCommContext`). Over gloo each is
waited for where it stands: the calls are synchronous (`async_op=False`), and a CPU has no streams.
"""

from toolkit.model.tensors import Tensor, block_tensors, root_tensors
from toolkit.program.engine import EngineWalk
from toolkit.program.events import Collective, Program
from toolkit.program.settings import StepSettings


def slice_of(tensor: Tensor, shards: int) -> int:
    """Return the elements of the largest slice of dimension 0; all slices are padded to it."""
    return -(-tensor.rows // shards) * tensor.columns


class Group:
    """One unit of sharding."""

    def __init__(self, tensors: list[Tensor], shards: int) -> None:
        self.tensors = tensors
        self.elements = sum(tensor.elements for tensor in tensors)
        self.shard = sum(slice_of(tensor, shards) for tensor in tensors)
        self.gathered = self.shard * shards
        self.largest = max(tensor.elements for tensor in tensors)


class Fsdp2Walk(EngineWalk):
    """`fully_shard` on every block and on the model."""

    def __init__(self, settings: StepSettings, program: Program) -> None:
        super().__init__(settings, program)
        sizes, shards = settings.sizes, settings.shards
        self.c = settings.width
        self.block = Group(block_tensors(0, sizes.n_embd), shards)
        self.root = Group(root_tensors(sizes), shards)
        self.sharded = sizes.n_layer * self.block.shard + self.root.shard
        self.on_cpu = settings.device == "cpu"
        self.is_sharded = shards > 1
        self.gathers_again = settings.strategy != "fsdp2_no_reshard"
        self.stays_gathered = not self.gathers_again and settings.accumulation == "replicated"
        self.gather_buffers: list[int] = []
        self.gathering: Collective | None = None
        self.scattering: Collective | None = None
        self.adding: list[Collective] = []
        self.reduce_buffer = 0
        self.all_reduced = 0

    def start(self) -> None:
        """Allocate the slices and their moments."""
        self.program.alloc("parameters", 4 * self.sharded)
        self.program.alloc("optimizer", self.moments(self.sharded))
        if self.keeps_gradients:
            self.program.alloc("gradients", 4 * self.sharded)

    @property
    def reduces(self) -> bool:
        """Whether this micro-step reduces gradients."""
        return self.is_last or self.settings.accumulation != "replicated"

    def begin_micro_step(self, micro_step: int, *, is_last: bool) -> None:
        """Gather the root."""
        super().begin_micro_step(micro_step, is_last=is_last)
        if self._is_gathered:
            return
        self.program.at("gather")
        # The root waits for all computation before it: the parameters may have been updated.
        self._gather(self.root, ahead=False)
        self._copy_out(self.root, backward=False)

    @property
    def _is_gathered(self) -> bool:
        """Whether an earlier micro-step has left the parameters gathered."""
        return self.stays_gathered and self.micro_step > 0

    def enter(self, module: str, layer: int, *, backward: bool) -> None:
        """Gather a block; in the backward pass it has been prefetched, and prefetches the next."""
        if module == "lm_head" and backward and self.gathers_again:
            self._gather(self.block)
        if module != "block":
            return
        if not backward and not self._is_gathered:
            self._gather(self.block)
            self._copy_out(self.block, backward=False)
        elif backward and self.gathers_again:
            self._copy_out(self.block, backward=True)
            if layer:
                self._gather(self.block)

    def leave(self, module: str, layer: int, *, backward: bool) -> None:
        """Give the block's parameters back, and after the backward pass reduce its gradients."""
        if module != "block":
            return
        if not backward:
            if self.gathers_again:
                self.program.free("parameters", self.c * self.block.elements)
            return
        self._reduce(self.block)

    def end_forward(self) -> None:
        """The last gather buffer goes when the root has computed."""
        self._free_gather_buffers()

    def gradient(self, tensor: Tensor) -> None:
        """Low-precision gradients are kept; fp32 ones add up on the gathered parameters."""
        if self.c == 4 and self.micro_step and self.settings.accumulation == "replicated":
            self.program.free("gradients", 4 * tensor.elements)

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

    def _gather(self, group: Group, *, ahead: bool = True) -> None:
        if not self.is_sharded:
            return
        cast = self.c * group.shard if self.c == 2 else 0
        size = self.c * group.gathered
        self.program.alloc("communication", cast)
        self.program.alloc("communication", size)
        self.program.free("communication", cast)
        self.gather_buffers.append(size)
        self.gathering = self.communicate(
            "all_gather",
            group.gathered,
            self.c,
            group="shards",
            blocks=self.on_cpu,
            ahead=ahead and not self.on_cpu,
        )

    def _copy_out(self, group: Group, *, backward: bool) -> None:
        """Free every buffer but, in the forward pass, the one just copied out of."""
        if not self.is_sharded:
            self._copy_alone(group)
            return
        assert self.gathering is not None
        if not self.on_cpu:
            self.program.wait(self.gathering)
        self.program.alloc("parameters", self.c * group.elements)
        kept = self.gather_buffers[len(self.gather_buffers) - (not backward) :]
        self._free_gather_buffers()
        self.program.alloc("communication", sum(kept))
        self.gather_buffers = kept

    def _copy_alone(self, group: Group) -> None:
        """One rank copies its tensors one by one, each cast first; a cast lives until the next."""
        earlier = 0
        for tensor in group.tensors:
            cast = self.c * tensor.elements if self.c == 2 else 0
            self.program.alloc("communication", cast)
            self.program.free("communication", earlier)
            self.program.alloc("parameters", self.c * tensor.elements)
            earlier = cast
        self.program.free("communication", earlier)

    def _free_gather_buffers(self) -> None:
        self.program.free("communication", sum(self.gather_buffers))
        self.gather_buffers = []

    def _reduce(self, group: Group) -> None:
        """After a group's backward pass: sum up locally, or reduce to the slices' owners."""
        program, c = self.program, self.c
        replicated = self.settings.accumulation == "replicated"
        held = c
        if replicated and c == 2:
            held = 4
            if self.micro_step:
                # Adding to another dtype makes a copy on a CPU; a GPU's kernel casts as it reads.
                program.touch("gradients", 4 * group.largest if self.on_cpu else 0)
                program.free("gradients", c * group.elements)
        if self.is_last or not self.stays_gathered:
            program.free("parameters", c * group.elements)
        if not self.reduces:
            if replicated and c == 2 and not self.micro_step:
                # One tensor after another is turned into fp32.
                program.alloc("gradients", 4 * group.largest)
                program.alloc(
                    "gradients", 4 * (group.elements - group.largest) - c * group.elements
                )
            return
        if replicated and c == 2 and not self.micro_step:
            held = c
        self._scatter(group, held)

    def _scatter(self, group: Group, held: int) -> None:
        """Reduce gradients of `held` bytes an element to this rank's slice, in fp32."""
        program = self.program
        size = 4 * group.gathered
        self._wait_for_scattering()
        program.free("communication", self.reduce_buffer)
        program.alloc("communication", size)
        self.reduce_buffer = size
        if self.on_cpu and held == 2:
            program.touch("communication", held * group.largest)
        program.free("gradients", held * group.elements)
        program.alloc("gradients", 4 * group.shard)
        self._communicate(group)
        if self.micro_step and self.settings.accumulation == "deferred":
            # The earlier micro-steps' sum, or what has been added to it.
            program.free("gradients", 4 * group.shard)
        if self._adds_to_gradient:
            # The sum is in the gradient that was there; hybrid sharding keeps the all-reduced
            # tensor of every group to the end of the backward pass.
            program.free("gradients", 4 * group.shard)
            if self.settings.replicas > 1:
                program.alloc("communication", 4 * group.shard)
                self.all_reduced += 4 * group.shard

    def _communicate(self, group: Group) -> None:
        """Reduce to the slices' owners, then add up what the replica groups have."""
        if self.is_sharded:
            self.scattering = self.communicate(
                "reduce_scatter", group.gathered, 4, group="shards", blocks=self.on_cpu
            )
        if self.settings.replicas > 1 and self._adds_up_replicas:
            addition = self.communicate(
                "all_reduce",
                group.shard,
                4,
                group="replicas",
                blocks=self.on_cpu,
                after=self.scattering,
            )
            self.adding.append(addition)

    @property
    def _adds_up_replicas(self) -> bool:
        return self.is_last or self.settings.accumulation == "sharded"

    def _wait_for_scattering(self) -> None:
        if self.scattering is not None and not self.on_cpu:
            self.program.wait(self.scattering)
        self.scattering = None

    @property
    def _adds_to_gradient(self) -> bool:
        """Whether the slice has a gradient already when a reduced one comes."""
        if self.settings.accumulation == "sharded":
            return self.keeps_gradients or self.micro_step > 0
        return self.keeps_gradients and self.is_last
