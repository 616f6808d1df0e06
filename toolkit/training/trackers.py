"""What experiment trackers are given: a run's project, name, configuration and samples."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from toolkit.config import RunConfig, dotted_values

# Accelerate 1.15 hands each tracker one name, the project's, and keywords of its own. There is none
# for TensorBoard and DVCLive, whose files lie in the run's folder, and for Comet.
_NAME_KEYWORDS = {
    "wandb": "name",
    "trackio": "name",
    "mlflow": "run_name",
    "swanlab": "experiment_name",
    "clearml": "task_name",
    "aim": "experiment",
}
# Their log takes text beside numbers; others with a table show it there.
_TAKE_TEXT = ("tensorboard", "comet_ml")
# Where those that write to the disk keep their files, beside the ones that Accelerate hands the
# run's folder itself.
_FOLDER_KEYWORDS = {
    "wandb": ("dir", "."),  # in which it makes its own
    "swanlab": ("logdir", "swanlab"),
    "dvclive": ("dir", "dvclive"),
}


@contextmanager
def tracked(accelerator: Any, config: RunConfig, folder: Path) -> Iterator[None]:
    """Open the run in each of `training.trackers`, in the project where all runs are compared.

    What they write to the disk lies in the run's folder. However the run ends they are finished:
    the process ends without the interpreter's own end, at which they would write what is left.
    """
    accelerator.init_trackers(
        config.training.tracker_project,
        config=_plain(config),
        init_kwargs={
            tracker: _keywords(tracker, config, folder) for tracker in config.training.trackers
        },
    )
    try:
        yield
    finally:
        for tracker in accelerator.trackers:
            tracker.finish()


def log_sample(accelerator: Any, text: str, *, step: int) -> None:
    """Show a sample of text where a tracker shows text: TensorBoard, W&B, Comet and ClearML."""
    for tracker in accelerator.trackers:
        if hasattr(tracker, "log_table"):
            tracker.log_table("sample", columns=["text"], data=[[text]], step=step)
        elif tracker.name in _TAKE_TEXT:
            tracker.log({"sample": text}, step=step)


def _keywords(tracker: str, config: RunConfig, folder: Path) -> dict[str, str]:
    words = {}
    if tracker in _NAME_KEYWORDS:
        words[_NAME_KEYWORDS[tracker]] = config.run_name
    if tracker in _FOLDER_KEYWORDS:
        keyword, own = _FOLDER_KEYWORDS[tracker]
        words[keyword] = str(folder / own)
    return words


def _plain(config: RunConfig) -> dict[str, str | int | float]:
    """Return `section.key` to value, as trackers want it; what is no number becomes text."""
    return {
        key: value if isinstance(value, int | float) else str(value)
        for key, value in dotted_values(config.model_dump()).items()
    }
