"""ZeRO stages 1 and 2: parameters whole, optimizer state in parts."""

from toolkit.memory.ledger import Ledger
from toolkit.memory.settings import StepSettings
from toolkit.memory.tensors import Tensor
from toolkit.memory.zero_walk import ZeroWalk


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
        self._gather_updated()
        self.ledger.drop("gradients", self.c * self.parameters)


class Zero12Walk(ZeroWalk):
    """Stage 2, and stage 1 in fp32 and fp16."""

    def __init__(self, settings: StepSettings, ledger: Ledger) -> None:
        super().__init__(settings, ledger)
        self.keeps_all = self.replicated or settings.strategy == "zero1"
        self.sums = 4 * (self._whole_tensors() if self.c == 4 else self.owned)
        if settings.offload_optimizer:
            self.sums = 0

    def _whole_tensors(self) -> int:
        """Elements of all tensors that lie in a part wholly or partly, where that is most.

        In fp32 a rank keeps the gradients of such tensors whole. Matrices and vectors are two flat
        groups, each cut into equal parts.
        """
        ranks = self.settings.world_size
        held = [0] * ranks
        for is_matrix in (True, False):
            group = [t.elements for t in self.tensors if t.is_matrix == is_matrix]
            part = -(-sum(group) // ranks)
            begin = 0
            for elements in group:
                for rank in range(begin // part, (begin + elements - 1) // part + 1):
                    held[rank] += elements
                begin += elements
        return max(held)

    def start(self) -> None:
        """Also the working copy."""
        super().start()
        self.ledger.add("parameters", self.c * self.parameters)

    def gradient(self, tensor: Tensor) -> None:
        """Keep it for the whole window, or reduce it with its bucket."""
        if self.keeps_all:
            super().gradient(tensor)
            return
        if tensor.elements > self.bucket:
            self.ledger.touch("communication", 4 * tensor.elements if self.c == 2 else 0)
            self.ledger.drop("gradients", self.c * tensor.elements)
            return
        self._collect(tensor.elements, self.c, copies=self._copies)

    @property
    def _copies(self) -> int:
        """A flat copy of the bucket, and in low precision one in fp32 beside it."""
        return self.c + (4 if self.c == 2 else 0)

    def enter(self, module: str, layer: int, *, backward: bool) -> None:
        """The first gradient makes the buffer that a bucket is collected in.

        Stage 2 frees it with each backward pass, stage 1 with the window's last.
        """
        first_gradient = module == "ln_f" and backward
        stage_1 = self.settings.strategy == "zero1"
        if first_gradient and (not self.keeps_all or (stage_1 and self.micro_step == 0)):
            self.ledger.add("communication", self.c * self.bucket)

    def end_backward(self) -> None:
        """Reduce the rest; the first reduction of a window makes the sums."""
        if not self.keeps_all:
            self._flush(self.c, copies=self._copies)
            if self.micro_step == 0:
                self.ledger.add("gradients", self.sums)
            self.ledger.drop("communication", self.c * self.bucket)
        elif self.is_last:
            self._reduce_window()

    def _reduce_window(self) -> None:
        """Reduce all gradients of the window, the largest alone, in fp32."""
        if self.settings.strategy != "zero1":
            self.ledger.add("communication", self.c * self.bucket)
        self.ledger.add("gradients", self.sums)
        if self.c == 2:
            self.ledger.touch("communication", 4 * self.largest)
        self.ledger.touch("communication", self._copies * min(self.bucket, self.parameters))
        self.ledger.drop("gradients", self.c * self.parameters)
        self.ledger.drop("communication", self.c * self.bucket)

    def step(self) -> None:
        """In fp32 the part's gradients are made one flat tensor first."""
        self.ledger.at("optimizer step")
        self._update_owned()
        if self.c == 4:
            self.ledger.touch("gradients", 4 * self.owned)
        self.ledger.drop("gradients", self.sums)
        self._gather_updated()
