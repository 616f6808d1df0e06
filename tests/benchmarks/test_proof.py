"""One case in this process, and what is caught before it is timed."""

from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import proof, trainer
from benchmarks.fitting import estimate_bytes
from benchmarks.proof import DisagreementError, agree, first_step, prove
from benchmarks.trainer import CaseTrainer
from tests.benchmarks.cases import case
from tests.data.shard_files import write_llmc
from toolkit.engines.launched import read_launch
from toolkit.engines.traffic import Kind, Traffic
from toolkit.program.events import Program
from toolkit.program.readers.traffic import read_traffic
from toolkit.program.settings import StepSettings

pytestmark = pytest.mark.usefixtures("fresh_accelerate")


def proved(shards: list[str] | None = None, **changed: Any) -> tuple[CaseTrainer, dict[str, Any]]:
    of, launched = case(**changed), read_launch({})
    first = first_step(of, launched, torch.device("cpu"), shards=shards or [])
    built = CaseTrainer(of, launched, shards=shards or [])
    return built, prove(built, first, split_steps=2)


def test_a_case_is_proved_and_timed() -> None:
    trainer, found = proved()
    assert found["agreement"].ok
    assert found["agreement"].tolerance < 1e-4
    assert all(seen.calls == 0 for seen in found["collectives"].values())
    assert found["gradient_bytes_held"] == 4 * trainer.case.model.parameter_count
    # It counts what other tests left in this process; tests/memory compares it in one of its own.
    assert found["peak_memory_bytes"] >= 0.98 * estimate_bytes(trainer.case, "cpu")
    assert min(vars(found["split"]).values()) >= 0
    step_s = trainer.time_steps(3, warm_up=1)
    assert len(step_s) == 3
    assert min(step_s) > 0


def test_real_data_is_read_anew_for_each_step(tmp_path: Path) -> None:
    write_llmc(tmp_path / "shard_000000.bin", [i % 500 for i in range(3000)])
    trainer, found = proved([str(tmp_path)], data="real", precision="bf16")
    assert found["agreement"].ok
    done = trainer.steps_done
    trainer.time_steps(3, warm_up=1)
    assert trainer.steps_done == done + 4


def test_a_first_step_apart_from_the_reference_is_caught() -> None:
    reference = (2.0, 0.5, 1e-6)

    def result(loss: float, grad_norm: float) -> dict[str, float]:
        return {"loss": loss, "grad_norm": grad_norm}

    assert agree(result(2.0, 0.5), reference).ok
    with pytest.raises(DisagreementError, match=r"loss of the first step is 2\.01"):
        agree(result(2.01, 0.5), reference)
    with pytest.raises(DisagreementError, match="grad_norm of the first step"):
        agree(result(2.0, 0.25), reference)
    with pytest.raises(DisagreementError, match="grad_norm of the first step"):
        agree(result(2.0, float("nan")), reference)


def test_a_model_that_is_not_the_reference_s_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "SEED", 2)
    with pytest.raises(DisagreementError, match="plain PyTorch computes"):
        proved()


def test_counts_that_are_not_the_programs_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def another(program: Program, settings: StepSettings) -> dict[Kind, Traffic]:
        return read_traffic(program, settings) | {"all_reduce": Traffic(1, 4)}

    monkeypatch.setattr(proof, "read_traffic", another)
    monkeypatch.setattr(proof, "read_held", lambda _: 17)
    with pytest.raises(DisagreementError, match=r"all_reduce 0 bytes, not 4; .* held, not 17"):
        proved()
