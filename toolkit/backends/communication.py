"""What each strategy should communicate in one optimizer step, as closed formulas. Pure arithmetic.

With P parameters, B of them in blocks and R = P - B outside (embeddings, last norm), A micro-steps
and payloads as `toolkit.backends.collectives` defines them, in elements:

    ddp           all-reduce      P      once, or A times when sharded
    fsdp2         all-gather      2B + R per micro-step: blocks for forward and for backward, the
                                  rest once, as it stays gathered in between
    ..._no_reshard                B + R  per micro-step
                  reduce-scatter  P      once, or A times when sharded
    hsdp          as fsdp2 inside the shard group, and an all-reduce of the shard, P / S, once, or
                  A times when sharded
    zero1, zero2  all-reduce      P      once, or A times when sharded: DeepSpeed all-reduces whole
                                  buckets and keeps its part, whatever the configuration says
                  all-gather      P      once, after the update
    zero3         reduce-scatter  P      once, or A times when sharded
                  all-gather      at least every matrix once, at most twice and the token embedding
                                  four times per micro-step: each use gathers anew (that one serves
                                  the embedding and the head) unless a prefetch has left it in
                                  place; the small persistent parameters once, after the update

In a world of one nobody gathers and FSDP2 does not reduce; DDP and DeepSpeed do, with themselves.
Gathers move the precision of the computation, reductions fp32. Slices that do not divide evenly
are padded, which adds at most the number of shards minus 1 rows to each tensor.
"""

from dataclasses import dataclass

from toolkit.backends.strategies import Accumulation, Precision, Strategy
from toolkit.model.sizes import ModelSizes

_REDUCED_BYTES = 4
_COMPUTE_BYTES: dict[Precision, int] = {"fp32": 4, "bf16": 2, "fp16": 2}


@dataclass(frozen=True)
class Expected:
    """Payload bytes of one kind per optimizer step and rank; equal bounds mean an exact formula."""

    at_least: int
    at_most: int

    def admits(self, found: int) -> bool:
        """Whether a count is what the formula says."""
        return self.at_least <= found <= self.at_most


def expected_bytes(
    strategy: Strategy,
    accumulation: Accumulation,
    *,
    sizes: ModelSizes,
    grad_accum_steps: int,
    precision: Precision,
    world_size: int,
    replicas: int,
) -> dict[str, Expected]:
    """Return payload bytes by kind: `all_reduce`, `reduce_scatter`, `all_gather`.

    Args:
        strategy: which engine.
        accumulation: when it reduces.
        sizes: the model; its tensors must divide by the shards, else padding comes on top.
        grad_accum_steps: micro-steps A.
        precision: of the computation.
        world_size: all ranks.
        replicas: replica groups of hybrid sharding, else 1.
    """
    parameters = sizes.parameter_count
    reductions = 1 if accumulation == "replicated" else grad_accum_steps
    gradients = parameters * _REDUCED_BYTES
    width = _COMPUTE_BYTES[precision]
    nothing = Expected(0, 0)
    found = dict.fromkeys(("all_reduce", "reduce_scatter", "all_gather"), nothing)
    if strategy == "single":
        return found
    if strategy == "ddp":
        found["all_reduce"] = _exactly(reductions * gradients)
    elif strategy in ("zero1", "zero2"):
        found["all_reduce"] = _exactly(reductions * gradients)
        found["all_gather"] = _exactly(parameters * width)
    elif strategy == "zero3":
        found["reduce_scatter"] = _exactly(reductions * gradients)
        found["all_gather"] = _zero3_gathers(sizes, grad_accum_steps, width)
    else:
        gathered = _fsdp2_gathered(strategy, sizes)
        found["reduce_scatter"] = _exactly(reductions * gradients)
        found["all_gather"] = _exactly(grad_accum_steps * gathered * width)
    if strategy == "hsdp":
        shards = world_size // replicas
        across = grad_accum_steps if accumulation == "sharded" else 1
        found["all_reduce"] = _exactly(across * gradients // shards)
    if world_size == 1:
        found["all_gather"] = nothing
        if strategy in ("fsdp2", "fsdp2_no_reshard"):
            found["reduce_scatter"] = nothing
    return found


def _exactly(count: int) -> Expected:
    return Expected(count, count)


def _block_parameters(sizes: ModelSizes) -> int:
    return sizes.n_layer * (12 * sizes.n_embd**2 + 13 * sizes.n_embd)


def _fsdp2_gathered(strategy: Strategy, sizes: ModelSizes) -> int:
    """Elements gathered per micro-step."""
    again = 0 if strategy == "fsdp2_no_reshard" else _block_parameters(sizes)
    return sizes.parameter_count + again


def _zero3_gathers(sizes: ModelSizes, grad_accum_steps: int, width: int) -> Expected:
    small = _persistent_parameters(sizes)
    once = sizes.parameter_count - small
    every_use = 2 * once + 2 * sizes.vocab_size * sizes.n_embd
    return Expected(
        at_least=(grad_accum_steps * once + small) * width,
        at_most=(grad_accum_steps * every_use + small) * width,
    )


def _persistent_parameters(sizes: ModelSizes) -> int:
    """Biases and norms: tensors of up to 10 n_embd elements, which stage 3 keeps gathered."""
    return sizes.n_layer * 13 * sizes.n_embd + 2 * sizes.n_embd
