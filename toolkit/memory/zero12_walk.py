"""ZeRO stages 1 and 2: parameters whole, optimizer state in parts."""

from collections.abc import Iterator

from toolkit.backends.held_gradients import whole_tensors
from toolkit.memory.ledger import Ledger
from toolkit.memory.settings import StepSettings
from toolkit.memory.zero_walk import ZeroWalk
from toolkit.model.tensors import Tensor


class Zero1Bf16Walk(ZeroWalk):
    """Stage 1 in bf16: DeepSpeed's BF16_Optimizer."""

    def start(self) -> None:
        """Also the working copy and the fp32 sums of all gradients."""
        super().start()
        self.ledger.add("parameters", self.c * self.parameters)
        self.ledger.add("gradients", 4 * self.parameters)

    def end_backward(self) -> None:
        """Add each gradient to its fp32 sum, cast one after another."""
        self.ledger.touch("gradients", 4 * self.largest)

    def step(self) -> None:
        """Reduce all sums in one flat copy (up to DeepSpeed's 5e8 elements), then update."""
        self.ledger.at("optimizer step")
        self.ledger.touch("communication", 4 * min(self.parameters, 500_000_000))
        self._update_owned()
        self.ledger.drop("gradients", self.c * self.parameters)


class Zero2InPlaceWalk(ZeroWalk):
    """Stage 2 in fp16 and bf16 with a coalesced window, whose fp32 gradients stay where they are.

    They are reduced in turn, first all matrices: what together has no more than b = P / 8 elements
    in one flat copy, a larger one by itself and without a copy. The results are added to the part's
    fp32 sums, made when the first tensor of the part is reduced. The fullest rank is the first:
    what lies in its part comes first, and stays until all is reduced.
    """

    def start(self) -> None:
        """Also the working copy."""
        super().start()
        self.ledger.add("parameters", self.c * self.parameters)

    def gradient(self, tensor: Tensor) -> None:
        """Keep it for the whole window."""
        self._wait(tensor)

    def end_backward(self) -> None:
        """Reduce the whole window, then let go of the part's own gradients."""
        if not self.is_last:
            return
        own = 0
        reduced = {True: 0, False: 0}
        for bucket in self._buckets():
            flat = 4 * _elements(bucket) if len(bucket) > 1 else 0
            self.ledger.add("communication", flat)
            for kind in {tensor.is_matrix for tensor in bucket}:
                if not reduced[kind]:
                    self.ledger.add("gradients", 4 * self._part(is_matrix=kind))
            self.ledger.drop("communication", flat)
            for tensor in bucket:
                if reduced[tensor.is_matrix] >= self._part(is_matrix=tensor.is_matrix):
                    self.ledger.drop("gradients", 4 * tensor.elements)
                else:
                    own += 4 * tensor.elements
                reduced[tensor.is_matrix] += tensor.elements
        self.ledger.drop("gradients", own)

    def _buckets(self) -> Iterator[list[Tensor]]:
        """Yield what is reduced together."""
        bucket: list[Tensor] = []
        for tensor in sorted(self.tensors, key=lambda tensor: not tensor.is_matrix):
            if bucket and _elements([*bucket, tensor]) > self.bucket:
                yield bucket
                bucket = []
            bucket.append(tensor)
        yield bucket

    def step(self) -> None:
        """The sums are one flat tensor for each group already."""
        self.ledger.at("optimizer step")
        self._update_owned()
        for kind in (True, False):
            self.ledger.drop("gradients", 4 * self._part(is_matrix=kind))


def _elements(tensors: list[Tensor]) -> int:
    return sum(tensor.elements for tensor in tensors)


class Zero12Walk(ZeroWalk):
    """Stage 2, and stage 1 in fp32 and fp16.

    Gradients are reduced through a bucket of b = P / 8 elements, in the width computed with, which
    each moves into in turn; in stage 1 the bucket is fp32. A gradient of more than b elements is
    reduced where it is. What is reduced for several ranks at once is made one flat copy first, of
    at most b elements and one more rank's part, and low precision is cast to fp32 beside it.

    In fp16 and bf16 the results are added to the part's fp32 sums, made by the first reduction of a
    window. In fp32 all tensors that lie in the part are copied out of the bucket, anew in every
    micro-step that reduces, and then added to those of the micro-steps before.

    Coalesced in fp32, the whole window's 4 P wait, then take this way tensor by tensor, first all
    matrices and of them first the token embedding.
    """

    def __init__(self, settings: StepSettings, ledger: Ledger) -> None:
        super().__init__(settings, ledger)
        self.stage_1 = settings.strategy == "zero1"
        self.keeps_all = self.replicated or self.stage_1
        self.held = 4 if self.keeps_all else self.c
        self.staged = 4 if self.stage_1 else self.c
        self.part = self._part(is_matrix=True)
        self.sums = 0 if settings.offload_optimizer else 4 * self._summed()
        self.has_sums = False
        self.left = 0

    def _summed(self) -> int:
        """Elements of the sums: of the part, in fp32 of every tensor that it touches."""
        settings = self.settings
        return whole_tensors(settings.sizes, settings.world_size) if self.c == 4 else self.owned

    def start(self) -> None:
        """Also the working copy."""
        super().start()
        self.ledger.add("parameters", self.c * self.parameters)

    def enter(self, module: str, layer: int, *, backward: bool) -> None:
        """The first gradient makes the bucket.

        Stage 2 frees it with each backward pass, stage 1 with the window's last.
        """
        first_gradient = module == "ln_f" and backward
        if first_gradient and (not self.keeps_all or (self.stage_1 and self.micro_step == 0)):
            self.ledger.add("communication", self.staged * self.bucket)

    def gradient(self, tensor: Tensor) -> None:
        """Keep it for the whole window, or put it into the bucket."""
        if self.keeps_all:
            self._wait(tensor)
        else:
            self._collect(tensor.elements)

    def end_backward(self) -> None:
        """Reduce the rest, or the whole window."""
        if self.keeps_all and not self.is_last:
            return
        if self.keeps_all:
            self._collect_window()
        self._reduce()
        if self.c == 4 and not self.keeps_all:
            self._add_to_earlier()
        self.ledger.drop("gradients", self.left)
        self.ledger.drop("communication", self.staged * self.bucket)
        self.left = 0

    def _collect_window(self) -> None:
        if not self.stage_1:
            self.ledger.add("communication", self.staged * self.bucket)
        for tensor in sorted(self.tensors, key=lambda tensor: not tensor.is_matrix):
            self._collect(tensor.elements)

    def _collect(self, elements: int) -> None:
        """Move a gradient into the bucket, after reducing what has no room beside it."""
        if self.pending + elements > self.bucket:
            self._reduce()
        self.pending += elements
        if elements <= self.bucket:
            self.ledger.drop("gradients", self.held * elements)

    def _reduce(self) -> None:
        """Reduce the bucket, or the one gradient that is too large for it."""
        elements, self.pending = self.pending, 0
        if not elements:
            return
        alone = elements > self.bucket
        if self.c == 2:
            self._make_sums()
        self.ledger.touch("communication", self._copies(elements, alone=alone))
        if self.c == 4:
            self._make_sums()
        if alone and self.c == 2 and not self.stage_1:
            # The rank that it belongs to leaves it on the parameter until all is reduced.
            self.left += self.held * elements
        elif alone:
            self.ledger.drop("gradients", self.held * elements)

    def _copies(self, elements: int, *, alone: bool) -> int:
        """Bytes that a reduction allocates: a flat copy, and its cast."""
        at_once = elements
        if alone:
            at_once = min(elements, (self.bucket // self.part + 1) * self.part)
        width = self.held if alone else self.staged
        # In low precision even one rank's tensors are told apart.
        is_flattened = at_once > self.part or (self.c == 2 and not alone)
        return at_once * ((width if is_flattened else 0) + (4 if width == 2 else 0))

    def _make_sums(self) -> None:
        if not self.has_sums:
            self.ledger.add("gradients", self.sums)
        self.has_sums = True

    def _add_to_earlier(self) -> None:
        if self.micro_step:
            self.ledger.drop("gradients", self.sums)
        self.has_sums = False

    def step(self) -> None:
        """In fp32 the part's gradients are made one flat tensor first."""
        self.ledger.at("optimizer step")
        self._update_owned()
        if self.c == 4:
            self.ledger.touch("gradients", 4 * self.owned)
        self.ledger.drop("gradients", self.sums)
