"""Bytes of gradients a rank holds between two micro-steps, as closed formulas. Pure arithmetic.

With P parameters, N ranks and S shards in a group, in fp32 (4 bytes) under every precision, since
gradients are accumulated in fp32:

    single, ddp             4 P      in both modes: what DDP reduces stays whole on every rank
    fsdp2, ..._no_reshard   4 P      replicated: unsharded gradients are kept aside
                            4 P / N  sharded
    hsdp                    4 P      replicated
                            4 P / S  sharded; deferred keeps its reduced part aside until the
                                     all-reduce
    zero1                   4 P      stage 1 reduces at the boundary only; in bf16 6 P, since the
                                     last micro-step's own gradients stay beside the sums
    zero2                   4 P      replicated
                            4 P / N  sharded; in fp32 the tensors that lie across the border of a
                                     partition are kept whole (counted as of the rank where that is
                                     most), in bf16 there is a buffer for just the partition
    zero3                   4 P (1 + 1 / N)  replicated: the partition's buffer is there as well
                            4 P / N  sharded

Slices that do not divide evenly are padded.
"""

from toolkit.engines.strategies import Accumulation, Precision, Strategy
from toolkit.model.sizes import ModelSizes
from toolkit.program.zero12 import whole_tensors

_FP32_BYTES = 4


def held_gradient_bytes(
    strategy: Strategy,
    accumulation: Accumulation,
    *,
    precision: Precision,
    sizes: ModelSizes,
    world_size: int,
    replicas: int,
) -> int:
    """Return bytes between two micro-steps of one window, on the rank that holds most.

    Args:
        strategy: which engine.
        accumulation: when it reduces.
        precision: of the computation.
        sizes: the model; its tensors must divide by the shards, else padding comes on top.
        world_size: all ranks.
        replicas: replica groups of hybrid sharding, else 1.
    """
    whole = _FP32_BYTES * sizes.parameter_count
    shard = whole // (world_size // replicas)
    if strategy == "zero1" and precision == "bf16":
        return whole + whole // 2
    if strategy in ("single", "ddp", "zero1"):
        return whole
    if accumulation == "sharded" and strategy == "zero2" and precision == "fp32":
        return _FP32_BYTES * whole_tensors(sizes, world_size)
    if accumulation != "replicated":
        return shard
    return whole + shard if strategy == "zero3" else whole
