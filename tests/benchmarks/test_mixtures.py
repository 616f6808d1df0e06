"""The report on points between the modes."""

from pathlib import Path

from benchmarks.mixtures import PICTURE, check_choice, check_predictions, main
from benchmarks.record import Case, Record, append_record
from tests.benchmarks.cases import case, record
from toolkit.engines.mixture import Mixture

MODES = ("sharded", "replicated", Mixture(keep=("root", 0, 1)), Mixture(hold=("root",)))
PEAKS_MIB = (10, 13, 12, 11)


def points(*seconds: float) -> dict[Case, list[Record]]:
    """Sharded, replicated, parameters kept, root held: with growing memory these send less."""
    found = {}
    for mode, step_s, mib in zip(MODES, seconds, PEAKS_MIB, strict=True):
        of = case(strategy="fsdp2", accumulation=mode, world_size=2, grad_accum_steps=4)
        found[of] = [record(of, step_s=[step_s], peak_memory_bytes=mib * 2**20)]
    return found


def test_where_what_sends_less_is_faster_the_choice_is_always_right() -> None:
    [sentence, _] = check_choice(points(4.0, 3.0, 2.0, 3.5), {})
    assert "In 4 of 4 budgets" in sentence
    assert "in 0 more than 3 %" in sentence


def test_where_it_is_slower_the_choice_is_counted_as_wrong() -> None:
    """Kept parameters, which send least, are slow: wrong for both budgets that they fit."""
    [sentence, _] = check_choice(points(4.0, 3.0, 9.0, 3.5), {})
    assert "In 2 of 4 budgets" in sentence
    assert "in 2 more than 3 %" in sentence


def test_where_all_of_a_setting_is_predicted_the_choice_by_seconds_is_judged_too() -> None:
    measured = points(4.0, 3.0, 9.0, 3.5)
    right = dict(zip(measured, (4.1, 3.1, 8.0, 3.6), strict=True))
    sentence = check_choice(measured, right)[2]
    assert "predicted to be fastest" in sentence
    assert "In 4 of 4 budgets" in sentence
    wrong = dict(zip(measured, (4.1, 3.1, 1.0, 3.6), strict=True))
    assert "In 2 of 4 budgets" in check_choice(measured, wrong)[2]
    partly = dict(list(right.items())[:3])
    assert len(check_choice(measured, partly)) == 2


def test_predictions_are_counted_by_link() -> None:
    measured = points(4.0, 3.0, 2.0, 3.5)
    predicted = dict(zip(measured, (4.3, 3.5, 1.9, 3.5), strict=True))
    [sentence, _] = check_predictions(measured, predicted)
    assert sentence.endswith("3 of 4 over unthrottled.")


def test_table_and_picture_lie_beside_the_records(tmp_path: Path) -> None:
    for repeats in points(4.0, 3.0, 2.0, 3.5).values():
        append_record(tmp_path, repeats[0])
    main(tmp_path)
    text = (tmp_path / "mixtures.md").read_text()
    assert "| fp32 | hold root |" in text
    assert (tmp_path / PICTURE).stat().st_size > 1000
