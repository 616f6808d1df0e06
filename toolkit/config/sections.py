"""The sections of a run configuration: keys, defaults and the rules inside each section.

Every default passes the same checks as a value that a person writes. Types are strict: the text
`"8"` is not a number. A rule that spans several keys names each of them with its value.
"""

import os
import re
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError
from typing_extensions import Self

from toolkit.config.problems import OF_THE_KEY, describe_value
from toolkit.model.sizes import (
    GPT2_BLOCK_SIZE,
    PADDED_VOCAB_SIZE,
    PRESETS,
    Loss,
    ModelSizes,
    Preset,
)

# Far above any real run, and small enough that no product of them leaves 64 bits by accident.
_MAX_STEPS = 10**9
_MAX_TOKENS = 10**12
MAX_MICRO_BATCH = 2**20
# TensorBoard makes a folder of it, and W&B refuses most other characters.
_PROJECT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def _as_tuple(value: Any) -> Any:
    """A list in a file is a tuple here: frozen all the way down."""
    return tuple(value) if isinstance(value, list) else value


def _as_texts(value: Any) -> Any:
    """One text, a list of them or null, all as a tuple."""
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else _as_tuple(value)


def _expanded(path: str) -> str:
    """Put the home folder for a leading `~` and the environment's values for `$NAME`."""
    expanded = os.path.expandvars(os.path.expanduser(path))
    if not expanded or expanded.startswith("~") or "$" in expanded or "\0" in expanded:
        wrong = f"must be a path whose '~' and '$NAME' are known here, got {path[:120]!r}"
        raise PydanticCustomError(OF_THE_KEY, "{wrong}", {"wrong": wrong})
    return expanded


NonEmpty = Annotated[str, Field(min_length=1)]
NamedPath = Annotated[NonEmpty, AfterValidator(_expanded)]
Paths = Annotated[tuple[NamedPath, ...], BeforeValidator(_as_texts)]
Steps = Annotated[int, Field(ge=0, le=_MAX_STEPS)]
Tracker = Literal[
    "tensorboard",
    "wandb",
    "trackio",
    "comet_ml",
    "aim",
    "mlflow",
    "clearml",
    "dvclive",
    "swanlab",
]


class Section(BaseModel):
    """What all sections share: unknown keys and loose types are errors, and values are frozen."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        validate_default=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
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

    tokens_per_step: int = Field(default=524_288, ge=1, le=_MAX_TOKENS)
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
    betas: Annotated[tuple[float, ...], BeforeValidator(_as_tuple)] = (0.9, 0.95)
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


class TrainingConfig(Section):
    """How long to train and what to do on the way."""

    steps: int = Field(default=1_000, ge=1, le=_MAX_STEPS)
    """Optimizer steps of the whole run; the schedule ends here."""
    stop_at: int | None = Field(default=None, ge=1)
    """End early after this step and leave the schedule as it is."""
    log_every: int = Field(default=1, ge=1, le=_MAX_STEPS)
    """Steps between lines on the console; metrics.jsonl has every step."""
    eval_every: Steps = 0
    """Steps between evaluations; 0 never evaluates."""
    eval_sequences: int | None = Field(default=None, ge=1)
    """Validation sequences per evaluation; by default all of data.val."""
    sample_tokens: Steps = 0
    """Tokens of sample text to write with each evaluation; 0 writes none."""
    checkpoint_every: int | Literal["never"] = 250
    """Steps between checkpoints; 0 saves only the last state, `never` not even that."""
    peer_copy_every: Steps = 0
    """Steps between copies of the state to the memory of another machine; 0 makes none."""
    check_replicas_every: Steps = 100
    """Steps between comparisons of the ranks that must hold the same bits; 0 never compares."""
    keep_last: int = Field(default=3, ge=1)
    """Checkpoints to keep; older ones are deleted once a newer one is complete."""
    async_save: bool = False
    """Copy the state to host memory and write it while training continues."""
    on_save_error: Literal["stop", "warn"] = "stop"
    """When a checkpoint cannot be written, as on a full disk: end, or continue without it."""
    on_non_finite: Literal["raise", "skip", "roll_back"] = "raise"
    """When a gradient is NaN or infinite: end; skip that update; or skip it and, after
    non_finite_limit in a row, go back to the last checkpoint and on with the data that follows."""
    non_finite_limit: int = Field(default=3, ge=1)
    """Updates in a row that may be skipped before the run rolls back or ends."""
    on_loss_spike: Literal["warn", "roll_back"] = "warn"
    """When the loss is far above that of the steps before: report it, or roll back as well."""
    deterministic: bool = False
    """Kernels that add in one order, so that a GPU too resumes bit-equal; some are slower."""
    timeout_s: float = Field(default=600.0, gt=0.0, le=86_400.0)
    """Seconds without progress of a rank, or of waiting for another, that count as a hang."""
    profile: Annotated[tuple[int, ...] | None, BeforeValidator(_as_tuple)] = None
    """First and last step of a PyTorch profiler trace of each rank, in the run's folder."""
    record: Annotated[tuple[int, ...] | None, BeforeValidator(_as_tuple)] = None
    """First and last step whose phases, collectives, memory and losses each rank writes down in the
    run's folder, for `toolkit watch`."""
    trackers: Annotated[tuple[Tracker, ...], BeforeValidator(_as_texts)] = ()
    """Experiment trackers that also get the metrics, by Accelerate's names; one or a list."""
    tracker_project: str = "scaling-toolkit"
    """Project that trackers keep the run in, under `run_name`."""

    @field_validator("checkpoint_every", mode="before")
    @classmethod
    def _checkpoint_every_is_steps_or_never(cls, value: Any) -> Any:
        is_steps = type(value) is int and 0 <= value <= _MAX_STEPS
        if not is_steps and value != "never":
            got = describe_value(value)
            wrong = f"must be a number of steps from 0 to {_MAX_STEPS:,} or 'never', got {got}"
            raise PydanticCustomError(OF_THE_KEY, "{wrong}", {"wrong": wrong})
        return value

    @field_validator("tracker_project")
    @classmethod
    def _project_is_a_plain_name(cls, name: str) -> str:
        if not _PROJECT.fullmatch(name):
            raise ValueError(
                "training.tracker_project must be up to 100 letters, digits, '.', '_' or '-' and "
                f"start with a letter or digit, got {name[:120]!r}"
            )
        return name

    @field_validator("profile", "record")
    @classmethod
    def _steps_are_first_and_last(
        cls, steps: tuple[int, ...] | None, info: ValidationInfo
    ) -> tuple[int, ...] | None:
        # The first step of a start is checked, and on a CPU the second is profiled for its memory.
        if steps is not None and not (len(steps) == 2 and 3 <= steps[0] <= steps[1]):
            raise ValueError(
                f"training.{info.field_name} must be a first step of at least 3 and a last one "
                f"that is not before it, got {list(steps)}"
            )
        return steps

    @field_validator("trackers")
    @classmethod
    def _each_tracker_once(cls, trackers: tuple[Tracker, ...]) -> tuple[Tracker, ...]:
        return tuple(dict.fromkeys(trackers))

    @property
    def last_step(self) -> int:
        """The step that the run ends after."""
        return min(self.steps, self.stop_at or self.steps)
