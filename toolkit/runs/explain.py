"""Where a run's step time went, beside what was predicted."""

from pathlib import Path

from toolkit.config import load_run_config
from toolkit.errors import UsageError
from toolkit.prediction.calibration import Calibration, Here, NotCalibrated, find_calibration
from toolkit.prediction.waterfall import as_lines, waterfall
from toolkit.program.settings import StepSettings, settings_of_run
from toolkit.program.step import write_step
from toolkit.runs.record import RunRecord, read_run


def explain(path: Path) -> list[str]:
    """Return the waterfall of a run's step, given its folder or configuration.

    Raises:
        UsageError: it is no run, or none that has trained.
    """
    run = read_run(path)
    if not run.launch or run.summary is None:
        raise UsageError(f"{path} holds no finished start of a run; train it first")
    settings = settings_of_record(run)
    calibration, known = _calibration(settings, run)
    parts = waterfall(
        write_step(settings),
        calibration,
        step_s=run.summary.get("step_s"),
        measured=run.summary.get("step_parts_s"),
    )
    return [f"{settings.strategy} {settings.accumulation}, {known}", *as_lines(parts)]


def settings_of_record(run: RunRecord) -> StepSettings:
    """Return the step that a run trained."""
    config = load_run_config(run.folder / "config.yaml")
    return settings_of_run(
        config,
        run.launch["strategy"],
        world_size=run.launch["world_size"],
        replicas=run.launch["replicas"],
        device="cuda" if run.environment["devices"]["type"] == "cuda" else "cpu",
    )


def _calibration(settings: StepSettings, run: RunRecord) -> tuple[Calibration | None, str]:
    """Return what covers the run's machine, and how it is known or why it is not."""
    devices = run.environment["devices"]
    if not devices.get("names"):
        return None, "not predicted: the run was made before runs named their device"
    torch_version = run.environment["packages"]["torch"]
    where = Here(devices["names"][0], torch_version, devices["ranks"])
    try:
        found = find_calibration(settings, where)
    except NotCalibrated as missing:
        return None, f"not predicted: {missing}"
    return found, f"predicted by what was {found.source}"
