"""The sections of a run configuration: keys, defaults and the rules inside each section.

Every default passes the same checks as a value that a person writes. Types are strict: the text
`"8"` is not a number. A rule that spans several keys names each of them with its value.
"""

from typing import Annotated, Any, Literal, get_args

from pydantic import (
    BeforeValidator,
    Field,
    field_validator,
    model_validator,
)
from typing_extensions import Self

from toolkit.config.section import (
    MAX_MICRO_BATCH,
    MAX_TOKENS,
    Paths,
    Section,
    Steps,
    as_tuple,
)
from toolkit.model.sizes import (
    GPT2_BLOCK_SIZE,
    PADDED_VOCAB_SIZE,
    PRESETS,
    Loss,
    ModelSizes,
    Preset,
)


class ModelConfig(Section):
    """The GPT-2 that is trained."""

    preset: Preset | None = "gpt2"
    """A published size; or leave it out and give n_layer, n_head and n_embd."""
    n_layer: int = Field(default=PRESETS["gpt2"].n_layer, ge=1, le=1_000)
    """Number of blocks."""
    n_head: int = Field(default=PRESETS["gpt2"].n_head, ge=1, le=1_000)
    """Attention heads per block; divides n_embd."""
    n_embd: int = Field(default=PRESETS["gpt2"].n_embd, ge=1, le=100_000)
    """Width of the residual stream."""
    block_size: int = Field(default=GPT2_BLOCK_SIZE, ge=1, le=2**20)
    """Longest sequence the position embedding has room for, in tokens."""
    vocab_size: int = Field(default=PADDED_VOCAB_SIZE, ge=2, le=2**24)
    """Rows of the token embedding; GPT-2's 50,257 padded to a multiple of 64."""
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Probability of dropping an activation; 0 for pre-training."""
    activation_checkpointing: bool = False
    """Recompute each block in the backward pass instead of keeping its activations."""
    compile: bool = False
    """Compile each block with torch.compile."""
    loss: Loss = "plain"
    """`chunked` never holds the logits of more than one piece of the sequence."""

    @model_validator(mode="before")
    @classmethod
    def _resolve_shape(cls, values: Any) -> Any:
        """A preset fills in the shape; a shape that is given by hand has no preset."""
        if not isinstance(values, dict):
            return values
        given = {name for name in ("n_layer", "n_head", "n_embd") if values.get(name) is not None}
        preset = values.get("preset", None if given else "gpt2")
        if preset is None:
            missing = [name for name in ("n_layer", "n_head", "n_embd") if name not in given]
            if missing:
                raise ValueError(
                    "model needs a preset, or n_layer, n_head and n_embd together; missing: "
                    + ", ".join(f"model.{name}" for name in missing)
                )
            return {**values, "preset": None}
        shape = PRESETS[preset]._asdict() if preset in get_args(Preset) else {}
        clashes = [
            f"model.{name} {values[name]!r} contradicts model.preset '{preset}', which has "
            f"{shape[name]}; give the preset or the shape"
            for name in shape
            if name in given and values[name] != shape[name]
        ]
        if clashes:
            raise ValueError("\n".join(clashes))
        return {**values, "preset": preset, **shape}

    @model_validator(mode="after")
    def _heads_divide_width(self) -> Self:
        if self.n_embd % self.n_head:
            raise ValueError(
                f"model.n_embd {self.n_embd} is no multiple of model.n_head {self.n_head}"
            )
        return self

    def sizes(self) -> ModelSizes:
        """Return the numbers that fix the model's shapes."""
        return ModelSizes(
            n_layer=self.n_layer,
            n_head=self.n_head,
            n_embd=self.n_embd,
            vocab_size=self.vocab_size,
            block_size=self.block_size,
        )


class DataConfig(Section):
    """The token shards that are read."""

    train: Annotated[Paths, Field(min_length=1)] = ("data/default/train",)
    """Folder or pattern of training shards, or a list of them."""
    val: Paths = ()
    """The same for validation shards; without it nothing is evaluated."""
    seq_len: int = Field(default=GPT2_BLOCK_SIZE, ge=1)
    """Tokens per sequence, at most model.block_size, which is the default."""
    shuffle: bool = True
    """Visit the sequences of each epoch in an order drawn from the seed."""


class BatchConfig(Section):
    """The global batch, from which the number of micro-steps is derived."""

    tokens_per_step: int = Field(default=524_288, ge=1, le=MAX_TOKENS)
    """Tokens per optimizer step over all ranks of all machines."""
    micro_batch_size: int = Field(default=1, ge=1, le=MAX_MICRO_BATCH)
    """Sequences per rank and micro-step; changes memory and speed, never what is learned."""


class OptimizerConfig(Section):
    """The optimizer and its learning-rate schedule: linear warm-up, then cosine decay."""

    name: Literal["adamw", "sgd"] = "adamw"
    """`sgd` has no momentum and serves to compare updates exactly."""
    lr: float = Field(default=6e-4, gt=0.0, le=1e3)
    """Learning rate at the end of warm-up."""
    min_lr: float = Field(default=0.0, ge=0.0)
    """Learning rate at training.steps."""
    warmup_steps: Steps = 0
    """Steps of linear warm-up from near zero to lr."""
    betas: Annotated[tuple[float, ...], BeforeValidator(as_tuple)] = (0.9, 0.95)
    """AdamW's decay rates of the first and second moment."""
    weight_decay: float = Field(default=0.1, ge=0.0)
    """Decoupled weight decay on matrices; biases and norms have none."""
    grad_clip: float = Field(default=1.0, ge=0.0)
    """Largest global gradient norm; 0 never clips."""

    @field_validator("betas")
    @classmethod
    def _betas_are_two_rates(cls, betas: tuple[float, ...]) -> tuple[float, ...]:
        if len(betas) != 2 or not all(0.0 <= beta < 1.0 for beta in betas):
            raise ValueError(
                f"optimizer.betas must be two numbers of at least 0 and below 1, got {list(betas)}"
            )
        return betas

    @model_validator(mode="after")
    def _decay_goes_down(self) -> Self:
        if self.min_lr > self.lr:
            raise ValueError(f"optimizer.min_lr {self.min_lr} is above optimizer.lr {self.lr}")
        return self
