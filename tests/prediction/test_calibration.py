"""A step is predicted where a calibration covers it; elsewhere a sentence says what is missing."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.prediction.test_profiled import SIZES, STEP, machine
from toolkit.prediction.calibration import Here, NotCalibrated, find_calibration, keep_profile
from toolkit.prediction.machine_profile import MachineProfile
from toolkit.prediction.waterfall import as_lines, waterfall
from toolkit.program.settings import StepSettings
from toolkit.program.step import write_step

HERE = Here("AMD EPYC", "2.13.0+cpu", ranks_per_machine=2)
TWO = replace(STEP, strategy="zero2", accumulation="sharded", world_size=2, grad_accum_steps=3)
H100 = Here("NVIDIA H100 80GB HBM3", "2.13.0", ranks_per_machine=8)


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MachineProfile:
    """A profile that this machine's cache keeps."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = machine(1.0)
    environment = found.environment.model_copy(
        update={"cpu": "AMD EPYC", "versions": {"torch": "2.13.0+cpu"}}
    )
    found = found.model_copy(update={"environment": environment})
    keep_profile(found)
    return found


def test_a_measured_machine_covers_its_ranks(measured: MachineProfile) -> None:
    step = find_calibration(TWO, HERE).predict(write_step(TWO))
    assert step.step_s > step.exposed_s > 0


@pytest.mark.parametrize(
    ("settings", "here", "said"),
    [
        (TWO, replace(HERE, torch="2.12.0"), "with torch 2.12.0; toolkit plan --here --gpus 2"),
        (TWO, replace(HERE, device="another"), "2 ranks on another"),
        (replace(TWO, world_size=4), replace(HERE, ranks_per_machine=4), "4 ranks on AMD EPYC"),
        (TWO, replace(HERE, ranks_per_machine=1), "links between machines"),
        (replace(TWO, precision="bf16"), HERE, "measured in fp32, not bf16"),
        (replace(STEP, strategy="hsdp", accumulation="sharded", world_size=2, replicas=2), HERE,
         "without replica groups"),
    ],
)  # fmt: skip
def test_what_is_not_covered_is_named(
    measured: MachineProfile, settings: StepSettings, here: Here, said: str
) -> None:
    with pytest.raises(NotCalibrated, match=said):
        find_calibration(settings, here)


def test_a_gpu_is_covered_by_published_rows_in_bf16_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    on_gpus = replace(
        TWO,
        strategy="fsdp2",
        world_size=8,
        device="cuda",
        precision="bf16",
        sizes=replace(SIZES, n_layer=24, n_embd=1024, vocab_size=50304),
    )
    assert find_calibration(on_gpus, H100).predict(write_step(on_gpus)).step_s > 0
    for settings, here, said in (
        (replace(on_gpus, precision="fp16"), H100, "in bf16, not fp16"),
        (replace(on_gpus, sizes=SIZES), H100, "124M to 65B"),
        (on_gpus, replace(H100, device="NVIDIA H200"), "no calibration covers 8 ranks on NVIDIA"),
    ):
        with pytest.raises(NotCalibrated, match=said):
            find_calibration(settings, here)


def test_the_parts_of_a_waterfall_add_up(measured: MachineProfile) -> None:
    program = write_step(TWO)
    calibration = find_calibration(TWO, HERE)
    found = {
        part.name: part
        for part in waterfall(program, calibration, step_s=1.0, measured={"passes": 0.5})
    }
    step = calibration.predict(program)
    summed = ("both passes", "optimizer", "waiting")
    assert sum(found[name].predicted_s or 0 for name in summed) == pytest.approx(step.step_s)
    assert found["both passes"].measured_s == 0.5
    assert found["unexplained"].measured_s == pytest.approx(1.0 - step.step_s)
    assert found["all-reduce, exposed"].predicted_s == pytest.approx(step.by_kind["all_reduce"][1])


def test_a_waterfall_without_a_calibration_has_what_was_measured_alone() -> None:
    lines = list(as_lines(waterfall(write_step(TWO), None, step_s=0.25)))
    assert lines[-1].split() == ["step", "-", "250.0"]
    assert not any("unexplained" in line for line in lines)
