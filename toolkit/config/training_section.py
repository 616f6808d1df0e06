"""The section `training` of a run configuration."""

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from toolkit.config.problems import OF_THE_KEY, describe_value
from toolkit.config.section import MAX_STEPS, Interval, Section, Steps, as_texts, as_tuple

# TensorBoard makes a folder of it, and W&B refuses most other characters.
_PROJECT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
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


class TrainingConfig(Section):
    """How long to train and what to do on the way."""

    steps: int = Field(default=1_000, ge=1, le=MAX_STEPS)
    """Optimizer steps of the whole run; the schedule ends here."""
    stop_at: int | None = Field(default=None, ge=1)
    """End early after this step and leave the schedule as it is."""
    log_every: int = Field(default=1, ge=1, le=MAX_STEPS)
    """Steps between lines on the console; metrics.jsonl has every step."""
    eval_every: Interval = 0
    """Steps between evaluations; 0 or `never` for none."""
    eval_sequences: int | None = Field(default=None, ge=1)
    """Validation sequences per evaluation; by default all of data.val."""
    sample_tokens: Steps = 0
    """Tokens of sample text to write with each evaluation; 0 writes none."""
    checkpoint_every: int | Literal["never"] = 250
    """Steps between checkpoints; 0 saves only the last state, `never` not even that."""
    peer_copy_every: Interval = 0
    """Steps between copies of the state to the memory of another machine; 0 or `never` for none."""
    check_replicas_every: Interval = 100
    """Steps between comparisons of the ranks that must hold the same bits; 0 or `never` for none.
    """
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
    profile: Annotated[tuple[int, ...] | None, BeforeValidator(as_tuple)] = None
    """First and last step of a PyTorch profiler trace of each rank, in the run's folder."""
    record: Annotated[tuple[int, ...] | None, BeforeValidator(as_tuple)] = None
    """First and last step whose phases, collectives, memory and losses each rank writes down in the
    run's folder, for `toolkit watch`."""
    trackers: Annotated[tuple[Tracker, ...], BeforeValidator(as_texts)] = ()
    """Experiment trackers that also get the metrics, by Accelerate's names; one or a list."""
    tracker_project: str = "scaling-toolkit"
    """Project that trackers keep the run in, under `run_name`."""

    @field_validator("checkpoint_every", mode="before")
    @classmethod
    def _checkpoint_every_is_steps_or_never(cls, value: Any) -> Any:
        is_steps = type(value) is int and 0 <= value <= MAX_STEPS
        if not is_steps and value != "never":
            got = describe_value(value)
            wrong = f"must be a number of steps from 0 to {MAX_STEPS:,} or 'never', got {got}"
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
