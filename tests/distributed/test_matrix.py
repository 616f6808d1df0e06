"""The full matrix: every strategy, mode, world size, number of micro-steps and precision."""

from itertools import product

import pytest

from toolkit.engines.strategies import ACCUMULATIONS, STRATEGIES, Strategy
from toolkit.verify.cases import TINY
from toolkit.verify.run import MIXTURES, cases_of, controls_of, not_run, verify_launch
from toolkit.verify.verdict import Launch

pytestmark = [pytest.mark.distributed, pytest.mark.long]


@pytest.mark.parametrize(("strategy", "world_size"), list(product(STRATEGIES, (1, 2, 4))))
def test_every_case_is_equal_and_every_fault_caught(strategy: Strategy, world_size: int) -> None:
    launch = Launch(strategy, world_size)
    if (reason := not_run(launch)) is not None:
        pytest.skip(reason)
    cases = cases_of(
        launch,
        accumulations=(*ACCUMULATIONS, MIXTURES),
        grad_accum_steps=(1, 4),
        precisions=("fp32", "bf16"),
        steps=10,
    )
    report = verify_launch(launch, cases, TINY, controls=controls_of(launch), timeout_s=900)
    assert {verdict.case: verdict.problems for verdict in report.verdicts if verdict.problems} == {}
    assert [control.name for control in report.controls if control.by is None] == []
