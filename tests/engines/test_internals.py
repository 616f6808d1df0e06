"""What the toolkit reaches for inside libraries: in one place each, named when it is gone."""

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import accelerate
import pytest
import torch
from accelerate.state import AcceleratorState

from toolkit.engines import accelerate_internals, deepspeed_internals, torch_internals
from toolkit.engines.attributes import check_attributes
from toolkit.errors import UsageError
from toolkit.shipped import ROOT

TOOLKIT = ROOT / "toolkit"
LIBRARIES = ("torch", "deepspeed", "accelerate")
# An audit reads whatever release a script uses: what it does not find ends the watch, which the
# report says, and not the script.
PLACES = {
    TOOLKIT / folder / f"{library}_internals.py"
    for folder in ("engines", "audit")
    for library in LIBRARIES
}
# Documented though they begin with an underscore.
DOCUMENTED = re.compile(r"_foreach_\w+|_asdict|_replace|_exit|_path")


def trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in TOOLKIT.rglob("*.py")}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def own_names() -> set[str]:
    """Private names that the toolkit itself defines."""
    found = set()
    for node in (node for tree in trees().values() for node in ast.walk(tree)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


def reached(tree: ast.Module) -> Iterator[str]:
    """Private attributes, and private modules and names of the libraries, that a file uses."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            yield node.attr
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in LIBRARIES:
            words = [*str(node.module).split("."), *(name.name for name in node.names)]
            yield from filter(is_private, words)


def test_nothing_private_of_a_library_is_reached_from_anywhere_else() -> None:
    own = own_names()
    strays = {
        f"{path.relative_to(ROOT)}: {name}"
        for path, tree in trees().items()
        if path not in PLACES
        for name in reached(tree)
        if name not in own and not DOCUMENTED.fullmatch(name)
    }
    assert strays == set()


def test_deepspeeds_undocumented_names_stand_in_its_place_alone() -> None:
    """They seldom begin with an underscore, so they are looked for by name."""
    tables = (deepspeed_internals.OPTIMIZERS, deepspeed_internals.PARAMETERS)
    names = {name for table in tables for row in table.values() for name in row}
    # Words that others have as well.
    names -= {"loss_scaler", "partition", "all_gather"}
    strays = {
        f"{path.relative_to(ROOT)}: {node.attr}"
        for path, tree in trees().items()
        if path not in PLACES
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in names
    }
    assert strays == set()


@pytest.mark.parametrize(
    "place", sorted(PLACES), ids=lambda path: f"{path.parent.name}-{path.stem}"
)
def test_the_version_that_was_read_is_in_the_range_that_is_asked_for(place: Path) -> None:
    name = ".".join(place.relative_to(ROOT).with_suffix("").parts)
    internals = importlib.import_module(name)
    library = place.stem.removesuffix("_internals")
    text = (ROOT / "pyproject.toml").read_text()
    [(lowest, limit)] = re.findall(rf'"{library}>=([\d.]+),<([\d.]+)"', text)

    def numbers(version: str) -> list[int]:
        return [int(part) for part in version.split(".")]

    assert numbers(lowest) <= numbers(internals.READ_IN) < numbers(limit)


def test_an_attribute_that_has_moved_is_named_with_both_versions() -> None:
    class Optimizer:
        kept = 1
        declared: int

    check_attributes("deepspeed", "0.19.8", Optimizer(), ["kept", "declared"])
    with pytest.raises(UsageError) as caught:
        check_attributes("deepspeed", "0.19.8", Optimizer(), ["kept", "gone", "lost"])
    sentence = str(caught.value)
    assert re.fullmatch(
        r"deepspeed [\d.]+: Optimizer has no gone, lost, which deepspeed 0\.19\.8 has and this "
        r"toolkit needs; pip install deepspeed==0\.19\.8",
        sentence,
    )


def test_accelerates_state_that_cannot_be_forgotten_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(AcceleratorState, "_reset_state")
    with pytest.raises(UsageError, match="AcceleratorState has no _reset_state"):
        accelerate_internals.forget_engine()


def test_accelerates_type_that_makes_sharding_real_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(accelerate, "PartialState", type("PartialState", (), {}))
    with pytest.raises(UsageError, match="PartialState has no distributed_type"):
        accelerate_internals.admit_sharding()


def test_accelerates_way_to_end_a_worker_is_replaced_or_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from accelerate.commands import launch

    monkeypatch.setattr("importlib.metadata.version", lambda name: "1.16.0")
    monkeypatch.setattr(launch, "_terminate_process_tree", None, raising=False)
    accelerate_internals.end_worker_by(print)
    assert launch._terminate_process_tree is print
    monkeypatch.delattr(launch, "_terminate_process_tree")
    with pytest.raises(UsageError, match="_terminate_process_tree"):
        accelerate_internals.end_worker_by(print)
    monkeypatch.setattr("importlib.metadata.version", lambda name: "1.15.0")
    accelerate_internals.end_worker_by(print)


def test_groups_that_torch_keeps_elsewhere_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(torch_internals.all_groups()) is list
    monkeypatch.delattr(torch.distributed.distributed_c10d, "_set_pg_timeout")
    with pytest.raises(UsageError, match="_set_pg_timeout"):
        torch_internals.all_groups()


def test_torchs_scaler_counts_under_the_key_that_is_read() -> None:
    assert torch_internals.SCALER_STATE in torch.amp.GradScaler("cpu").state_dict()


def test_everything_of_torch_that_is_imported_late_is_there() -> None:
    assert all(torch_internals.memory_trackers())
    assert torch_internals.fake_store()
    torch_internals.find_cpp_compiler()
