"""What experiment trackers are given at the start: project, name and configuration of the run."""

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


def start_trackers(accelerator: Any, config: RunConfig) -> None:
    """Open the run in each of `training.trackers`, in the project where all runs are compared."""
    accelerator.init_trackers(
        config.training.tracker_project,
        config=_plain(config),
        init_kwargs={
            tracker: {keyword: config.run_name} for tracker, keyword in _NAME_KEYWORDS.items()
        },
    )


def _plain(config: RunConfig) -> dict[str, str | int | float]:
    """Return `section.key` to value, as trackers want it; what is no number becomes text."""
    return {
        key: value if isinstance(value, int | float) else str(value)
        for key, value in dotted_values(config.model_dump()).items()
    }
