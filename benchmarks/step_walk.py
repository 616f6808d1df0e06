"""The collectives of each engine's step in program order, and which of them it waits for. Pure.

As read in torch 2.13, under this toolkit's settings:

    ddp     all-reduces a bucket once its last gradient is there, and waits for all at the end of
            the backward pass; over gloo, too.
    fsdp2   over NCCL gathers one block ahead in both passes, and reduce-scatters behind the
            backward pass. Over gloo it waits for every collective: its calls are synchronous
            (`async_op=False`), and a CPU has no streams.

Payloads add up to what `toolkit.backends.communication` says of the step. DeepSpeed's stages are
in `benchmarks.zero_walk`.
"""

from collections.abc import Iterator, Sequence

from benchmarks.timeline import Compute, Timeline

from benchmarks.machine_profile import Kind, MachineProfile
from benchmarks.record import Arm
from toolkit.model.tensors import Tensor, block_tensors, root_tensors

GRADIENT_BYTES = 4
MIB = 1024**2
DDP_BUCKETS_BYTES = (1 * MIB, 25 * MIB)
"""Of DDP's first bucket and of all others: `dist._DEFAULT_FIRST_BUCKET_BYTES`, `bucket_cap_mb`."""
COMPUTE_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}


class StepWalk:
    """One optimizer step of one rank; by itself, of one that has no other.

    Args:
        arm: what is walked.
        compute: its seconds without communication.
        profile: what its collectives take.
    """

    def __init__(self, arm: Arm, compute: Compute, profile: MachineProfile) -> None:
        self.arm = arm
        self.computed = compute
        self.timeline = Timeline(profile)
        self.has_streams = profile.backend == "nccl"
        sizes = arm.model.model_sizes()
        self.layers = range(sizes.n_layer)
        self.root = root_tensors(sizes)
        self.block = block_tensors(0, sizes.n_embd)
        self.tensors = [*self.root, *(tensor for _ in self.layers for tensor in self.block)]
        self.width = COMPUTE_BYTES[arm.precision]
        self.head_share, self.block_share = layer_shares(arm)

    def walk(self) -> Timeline:
        """Return the clocks at the end of the step."""
        for micro_step in range(self.arm.grad_accum_steps):
            is_last = micro_step == self.arm.grad_accum_steps - 1
            self.forward(is_first=micro_step == 0)
            self.backward(reduces=is_last or self.arm.accumulation == "sharded")
        self.timeline.compute(self.computed.update_s)
        self.after_update()
        return self.timeline

    def forward(self, *, is_first: bool) -> None:
        """Compute the forward pass of a micro-step."""
        self.timeline.compute(self.computed.forward_s)

    def backward(self, *, reduces: bool) -> None:
        """Compute the backward pass of a micro-step, and reduce gradients or not."""
        self.timeline.compute(self.computed.backward_s)

    def after_update(self) -> None:
        """Communicate what the update has changed."""

    def gradients(self) -> Iterator[tuple[float, Tensor]]:
        """Yield the tensors as their gradients come, each with the computation just before it.

        The token embedding's is last: it is the head's as well. Those of a block come at its end.
        """
        backward_s = self.computed.backward_s
        wte, wpe, *norms = self.root
        yield self.head_share * backward_s, norms[0]
        yield 0.0, norms[1]
        for _ in self.layers:
            first, *others = reversed(self.block)
            yield self.block_share * backward_s, first
            yield from ((0.0, tensor) for tensor in others)
        yield 0.0, wpe
        yield 0.0, wte

    def on_stream(self, kind: Kind, payload_bytes: int) -> float:
        """Start a collective, and wait for it where there are no streams; return its end."""
        if self.has_streams:
            return self.timeline.start(kind, payload_bytes)
        return self.timeline.block(kind, payload_bytes)

    def bytes_of(self, tensors: Sequence[Tensor], width: int) -> int:
        """Return the bytes of some tensors in a dtype of `width` bytes."""
        return width * sum(tensor.elements for tensor in tensors)


def layer_shares(arm: Arm) -> tuple[float, float]:
    """Return the shares of a pass that the head and each block compute, by multiplications.

    Per token: V d for the head, 12 d^2 for a block's matrices and 2 T d for its attention.
    """
    d = arm.model.n_embd
    head = arm.model.vocab_size * d
    block = 12 * d * d + 2 * arm.seq_len * d
    whole = head + arm.model.n_layer * block
    return head / whole, block / whole


class DdpWalk(StepWalk):
    """Buckets that are reduced behind the backward pass."""

    def backward(self, *, reduces: bool) -> None:
        """Start a bucket's all-reduce when it is full; all are over when the pass is."""
        held, limits = 0, list(DDP_BUCKETS_BYTES)
        for seconds, tensor in self.gradients():
            self.timeline.compute(seconds)
            held += GRADIENT_BYTES * tensor.elements
            if reduces and held >= limits[0]:
                self.timeline.start("all_reduce", held)
                held, limits = 0, limits[-1:]
        if reduces and held:
            self.timeline.start("all_reduce", held)
        self.timeline.wait(self.timeline.network_s)


class Fsdp2Walk(StepWalk):
    """Blocks, and a root of all other tensors, each gathered and reduced by itself."""

    def forward(self, *, is_first: bool) -> None:
        """Gather the root, then one block ahead of the computation."""
        gathers = is_first or not (self.stays and self.arm.accumulation == "replicated")
        if gathers:
            self.timeline.wait(self.gather(self.root))
        self.blocks(self.computed.forward_s, gathers=gathers, reduces=False)
        self.timeline.compute(self.head_share * self.computed.forward_s)

    def backward(self, *, reduces: bool) -> None:
        """Gather again what was given back, and reduce each block behind its computation."""
        self.timeline.compute(self.head_share * self.computed.backward_s)
        self.blocks(self.computed.backward_s, gathers=not self.stays, reduces=reduces)
        if reduces:
            self.reduce(self.root)
        self.timeline.wait(self.timeline.network_s)

    @property
    def stays(self) -> bool:
        """Whether blocks stay gathered from forward to backward pass."""
        return self.arm.strategy == "fsdp2_no_reshard"

    def blocks(self, pass_s: float, *, gathers: bool, reduces: bool) -> None:
        """Compute the blocks of one pass, each gathered while the one before it computes."""
        over_s = self.gather(self.block) if gathers else self.timeline.now_s
        for layer in self.layers:
            self.timeline.wait(over_s)
            if gathers and layer != self.layers[-1]:
                over_s = self.gather(self.block)
            self.timeline.compute(self.block_share * pass_s)
            if reduces:
                self.reduce(self.block)

    def gather(self, tensors: Sequence[Tensor]) -> float:
        """Gather parameters; return when they are there."""
        return self.on_stream("all_gather", self.bytes_of(tensors, self.width))

    def reduce(self, tensors: Sequence[Tensor]) -> None:
        """Reduce gradients to their owners."""
        self.on_stream("reduce_scatter", self.bytes_of(tensors, GRADIENT_BYTES))
