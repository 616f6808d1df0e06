"""ZeRO stages 1 and 2: parameters whole, optimizer state in parts."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate

from toolkit.engines.deepspeed_config import DEEPSPEED_BUCKET
from toolkit.model.sizes import ModelSizes
from toolkit.model.tensors import Tensor, model_tensors
from toolkit.program.events import Program
from toolkit.program.settings import StepSettings
from toolkit.program.zero import ZeroWalk

ALIGNED_ELEMENTS = 2
"""To a multiple of which each rank's part is padded: `nccl_start_alignment_factor`."""


class ReplicatedParametersWalk(ZeroWalk):
    """What stages 1 and 2 share: a working copy of all parameters, gathered after the update."""

    def start(self) -> None:
        """Also the working copy."""
        super().start()
        self.program.alloc("parameters", self.c * self.parameters)

    def _gather_updated(self) -> None:
        if self.settings.world_size == 1:
            return
        for is_matrix in (True, False):
            elements = self._aligned_part(is_matrix=is_matrix) * self.settings.world_size
            self.communicate("all_gather", elements, self.c, blocks=True)

    def _aligned_part(self, *, is_matrix: bool) -> int:
        ranks = self.settings.world_size
        group = self.group[is_matrix]
        return -(-group // (ALIGNED_ELEMENTS * ranks)) * ALIGNED_ELEMENTS


class Zero1Bf16Walk(ReplicatedParametersWalk):
    """Stage 1 in bf16: DeepSpeed's BF16_Optimizer."""

    def start(self) -> None:
        """Also the fp32 sums of all gradients."""
        super().start()
        self.program.alloc("gradients", 4 * self.parameters)

    def end_backward(self) -> None:
        """Add each gradient to its fp32 sum, cast one after another."""
        self.program.touch("gradients", 4 * self.largest)

    def step(self) -> None:
        """Reduce all sums in flat copies of 5e8 elements at most, then update."""
        self.program.at("optimizer step")
        self.program.touch("communication", 4 * min(self.parameters, DEEPSPEED_BUCKET))
        sizes = [tensor.elements for tensor in self.by_group]
        for elements in filled_above(DEEPSPEED_BUCKET, sizes):
            self.communicate("all_reduce", elements, 4, blocks=True)
        self._update_owned()
        self.program.free("gradients", self.c * self.parameters)
        self._gather_updated()


class Zero12Walk(ReplicatedParametersWalk):
    """Stage 2, and stage 1 in fp32 and fp16.

    Gradients are reduced through a bucket of b elements, in the width computed with, which
    each moves into in turn; in stage 1 the bucket is fp32. A gradient of more than b elements is
    reduced where it is. What is reduced for several ranks at once is made one flat copy first, of
    at most b elements and one more rank's part, and low precision is cast to fp32 beside it.

    In fp16 and bf16 the results are added to the part's fp32 sums, made by the first reduction of a
    window. In fp32 all tensors that lie in the part are copied out of the bucket, anew in every
    micro-step that reduces, and then added to those of the micro-steps before.

    Where all matrices are larger than the bucket, as in blocks wider than 7,900, a run of 4 ranks
    took 1.0 % (bf16) and 1.5 % (fp32) more than this, coalesced 7.0 % less.

    Coalesced in fp32, the whole window's 4 P wait, then take this way tensor by tensor, first all
    matrices and of them first the token embedding.
    """

    def __init__(self, settings: StepSettings, program: Program) -> None:
        super().__init__(settings, program)
        self.stage_1 = settings.strategy == "zero1"
        self.keeps_all = self.replicated or self.stage_1
        self.held = 4 if self.keeps_all else self.c
        self.staged = 4 if self.stage_1 else self.c
        self.part = self._part(is_matrix=True)
        self.sums = 0 if settings.offload_optimizer else 4 * self._summed()
        self.has_sums = False
        # In low precision stage 2 leaves a gradient too large for the bucket on the parameter until
        # all is reduced, on the ranks whose part it touches (read in `reduce_ipg_grads`).
        leaves = self.c == 2 and not self.stage_1
        self.may_stay = leaves and whole_tensors(
            settings.sizes, settings.world_size, above=self.bucket
        )
        self.left = 0
        self.pending: list[Tensor] = []
        self.pending_elements = 0

    def _summed(self) -> int:
        """Elements of the sums: of the part, in fp32 of every tensor that it touches."""
        settings = self.settings
        return whole_tensors(settings.sizes, settings.world_size) if self.c == 4 else self.owned

    def enter(self, module: str, layer: int, *, backward: bool) -> None:
        """The first gradient makes the bucket.

        Stage 2 frees it with each backward pass, stage 1 with the window's last.
        """
        first_gradient = module == "ln_f" and backward
        if first_gradient and (not self.keeps_all or (self.stage_1 and self.micro_step == 0)):
            self.program.alloc("communication", self.staged * self.bucket)

    def gradient(self, tensor: Tensor) -> None:
        """Keep it for the whole window, or put it into the bucket."""
        if self.keeps_all:
            self._wait(tensor)
        else:
            self._collect(tensor)

    def end_backward(self) -> None:
        """Reduce the rest, or the whole window."""
        if self.keeps_all and not self.is_last:
            return
        if self.keeps_all:
            self._collect_window()
        self._reduce()
        if self.c == 4 and not self.keeps_all:
            self._add_to_earlier()
        self.program.free("gradients", self.held * self.left)
        self.program.free("communication", self.staged * self.bucket)
        self.left = 0

    def _collect_window(self) -> None:
        if not self.stage_1:
            self.program.alloc("communication", self.staged * self.bucket)
        for tensor in self.by_group:
            self._collect(tensor)

    def _collect(self, tensor: Tensor) -> None:
        """Move a gradient into the bucket, after reducing what has no room beside it."""
        if self.pending_elements + tensor.elements > self.bucket:
            self._reduce()
        self.pending.append(tensor)
        self.pending_elements += tensor.elements
        if tensor.elements <= self.bucket:
            self.program.free("gradients", self.held * tensor.elements)

    def _reduce(self) -> None:
        """Reduce the bucket, or the one gradient that is too large for it."""
        waiting, elements = self.pending, self.pending_elements
        self.pending, self.pending_elements = [], 0
        if not waiting:
            return
        alone = elements > self.bucket
        if self.c == 2:
            self._make_sums()
        self.program.touch("communication", self._copies(elements, alone=alone))
        pieces = self._pieces(waiting[0]) if alone else [elements]
        for size in filled_above(self.bucket, pieces):
            self.communicate("all_reduce", size, 4, blocks=True)
        if self.c == 4:
            self._make_sums()
        if alone:
            stays = min(elements, self.may_stay - self.left)
            self.left += stays
            self.program.free("gradients", self.held * (elements - stays))

    def _pieces(self, large: Tensor) -> Iterator[int]:
        """Yield the elements of each rank's part of a matrix that is too large for the bucket."""
        first = sum(tensor.elements for tensor in self.by_group[: self.by_group.index(large)])
        last = first + large.elements
        part = self._aligned_part(is_matrix=True)
        for start in range(first - first % part, last, part):
            yield min(start + part, last) - max(start, first)

    def _copies(self, elements: int, *, alone: bool) -> int:
        """Bytes that a reduction allocates: a flat copy, and its cast."""
        at_once = elements
        if alone:
            at_once = min(elements, (self.bucket // self.part + 1) * self.part)
        width = self.held if alone else self.staged
        # In low precision even one rank's tensors are kept separate.
        is_flattened = at_once > self.part or (self.c == 2 and not alone)
        return at_once * ((width if is_flattened else 0) + (4 if width == 2 else 0))

    def _make_sums(self) -> None:
        if not self.has_sums:
            self.program.alloc("gradients", self.sums)
        self.has_sums = True

    def _add_to_earlier(self) -> None:
        if self.micro_step:
            self.program.free("gradients", self.sums)
        self.has_sums = False

    def step(self) -> None:
        """In fp32 the part's gradients are made one flat tensor first."""
        self.program.at("optimizer step")
        self._update_owned()
        if self.c == 4:
            self.program.touch("gradients", 4 * self.owned)
        self.program.free("gradients", self.sums)
        self._gather_updated()


def filled_above(limit: int, sizes: Iterable[int]) -> Iterator[int]:
    """Yield the sums of what goes out together: sizes one after another until above the limit."""
    filled = 0
    for size in sizes:
        filled += size
        if filled > limit:
            yield filled
            filled = 0
    if filled:
        yield filled


def whole_tensors(sizes: ModelSizes, world_size: int, *, above: int = 0) -> int:
    """Return the elements of all tensors with a part in one rank's partition, the fullest rank's.

    DeepSpeed lays the tensors of each optimizer group one after another and cuts the row evenly. A
    rank inside one tensor holds no more than those where it begins and ends.

    Args:
        sizes: the model.
        world_size: ranks that the row is cut for.
        above: count only tensors of more elements than this.
    """
    tensors = model_tensors(sizes)
    rows = [[t.elements for t in tensors if t.is_matrix == kind] for kind in (True, False)]
    groups = [_Group(row, world_size, above) for row in rows]
    borders = {place // g.part for g in groups for end in g.ends for place in (end - 1, end)}
    return max(sum(group.touched(rank) for group in groups) for rank in borders)


class _Group:
    """One optimizer group: where its tensors end in the row, and what of them is counted so far."""

    def __init__(self, row: list[int], world_size: int, above: int) -> None:
        self.ends = list(accumulate(row))
        self.counted = [0, *accumulate(size if size > above else 0 for size in row)]
        self.part = -(-sum(row) // world_size)

    def touched(self, rank: int) -> int:
        """Elements of the counted tensors that a rank's part touches."""
        first = bisect_right(self.ends, rank * self.part)
        last = min(bisect_left(self.ends, (rank + 1) * self.part), len(self.ends) - 1)
        return self.counted[last + 1] - self.counted[first] if first <= last else 0
