"""Other calculators' formulas, re-expressed from their code and documentation, for comparison.

They claim different things: accelerate's and DeepSpeed's are about model states alone. `None`
where a formula does not cover a configuration. With P parameters, W ranks, and s, b, h,
a, L the sequence, micro-batch, width, heads and layers:

    accelerate estimate-memory        16 P ("training using Adam")
    DeepSpeed, ZeRO-2 and 3           2 P + 18 P / W, and 4 x largest layer + 18 P / W
    EleutherAI calc_transformer_mem   states by stage and s b h L (34 + 5 a s / h), its
                                      without constants for communication and miscellany
    Megatron-LM, no parallelism       18 P, or 6 P + 12 P / W where states are sharded, and
                                      34 s b h L
"""

from toolkit.memory.states import Stage, model_state_bytes
from toolkit.model.tensors import model_tensors
from toolkit.program.settings import StepSettings

_STAGES: dict[str, Stage] = {"zero1": 1, "zero2": 2, "zero3": 3}


def accelerate(settings: StepSettings) -> int | None:
    """16 bytes a parameter."""
    return 16 * settings.sizes.parameter_count


def deepspeed(settings: StepSettings) -> int | None:
    """Model states of stages 2 and 3; FSDP2 is taken as stage 3."""
    parameters, ranks = settings.sizes.parameter_count, settings.world_size
    if settings.strategy == "zero2":
        return 2 * parameters + 18 * parameters // ranks
    if _stage(settings) == 3:
        largest = max(tensor.elements for tensor in model_tensors(settings.sizes))
        return 4 * largest + 18 * parameters // ranks
    return None


def eleuther(settings: StepSettings) -> int | None:
    """States by stage, activations without recomputation."""
    if settings.activation_checkpointing:
        return None
    sizes, seq = settings.sizes, settings.seq_len
    states = model_state_bytes(
        sizes.parameter_count, stage=_stage(settings), ranks=settings.world_size
    )
    per_layer = 34 + 5 * sizes.n_head * seq / sizes.n_embd
    return states + round(
        seq * settings.micro_batch_size * sizes.n_embd * sizes.n_layer * per_layer
    )


def megatron(settings: StepSettings) -> int | None:
    """Weights, optimizer and selective recomputation's activations."""
    if settings.activation_checkpointing:
        return None
    sizes = settings.sizes
    sharded = settings.strategy not in ("single", "ddp")
    per_parameter = 6 + 12 / settings.world_size if sharded else 18
    activations = 34 * settings.seq_len * settings.micro_batch_size * sizes.n_embd * sizes.n_layer
    return round(per_parameter * sizes.parameter_count) + activations


def _stage(settings: StepSettings) -> Stage:
    if settings.strategy in ("single", "ddp"):
        return 0
    return _STAGES.get(settings.strategy, 3)


RIVALS = {
    "accelerate": accelerate,
    "deepspeed": deepspeed,
    "eleuther": eleuther,
    "megatron": megatron,
}
