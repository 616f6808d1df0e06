"""`toolkit audit` from the outside: the command runs as it would without it, and is reported."""

import json
import os
import re
import sys
from pathlib import Path

import pytest

from tests.audit.launches import HERE, ROOT, TORCHRUN, audit, run

SCRIPT = """
import torch
from parts import Model, batches, loss_of
torch.manual_seed(0)
model, data = Model(), batches()
model.dropout = torch.nn.Dropout(0.5)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(5):
    tokens, targets = next(data)
    loss = loss_of(model.dropout(model(tokens)), targets)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    optimizer.zero_grad()
    print(loss.item().hex(), norm.item().hex(), torch.rand(1).item().hex())
print(torch.autograd.backward.__module__, torch.optim.Optimizer.__init__.__module__)
print([p.double().sum().item().hex() for p in model.parameters()], model._forward_pre_hooks)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "their.py"
    path.write_text(SCRIPT)
    return path


def test_outputs_are_bit_equal_with_and_without_and_nothing_stays(script: Path) -> None:
    plain = run(str(script))
    assert plain.returncode == 0, plain.stderr
    watched = audit("--", sys.executable, str(script))
    assert watched.returncode == 0, watched.stdout + watched.stderr
    own = watched.stdout[: watched.stdout.index("The run\n")]
    assert own == plain.stdout
    assert "nothing found" in watched.stdout


def test_stop_ends_the_command_after_the_watched_steps(script: Path) -> None:
    found = audit("--json", "--stop", "--steps", "2", "--", sys.executable, str(script))
    report = json.loads(found.stdout)
    assert report["ok"] is True
    assert len(report["steps"]) == 2
    assert len([line for line in found.stderr.splitlines() if line.startswith("0x")]) == 2


def test_a_failure_stays_visible_with_what_was_seen(tmp_path: Path, script: Path) -> None:
    script.write_text(SCRIPT.replace("range(5)", "range(2)") + "\nraise SystemExit(7)\n")
    page = tmp_path / "page.html"
    found = audit("--json", "--html", str(page), "--", sys.executable, str(script))
    assert found.returncode == 1
    report = json.loads(found.stdout)
    assert [finding["name"] for finding in report["findings"]] == ["command_failed"]
    assert "exit code 7" in report["findings"][0]["says"]
    assert len(report["steps"]) == 2
    assert "exit code 7" in page.read_text()


def test_no_name_of_the_scripts_is_read_as_html(tmp_path: Path, script: Path) -> None:
    name = "<script>alert('x')</script>&"
    added = f"model.register_parameter({name!r}, torch.nn.Parameter(torch.ones(1)))"
    renamed = SCRIPT.replace("model.dropout =", f"{added}\nmodel.dropout =", 1)
    renamed = renamed.replace("loss_of(", f"model._parameters[{name!r}] * loss_of(")
    renamed = renamed.replace("(model.parameters())", "(model.embedding.parameters())")
    folder = tmp_path / "<b>their"
    folder.mkdir()
    path, page = folder / "<i>their.py", tmp_path / "page.html"
    path.write_text(renamed)
    found = audit("--stop", "--steps", "1", "--html", str(page), "--", sys.executable, str(path))
    assert found.returncode == 1, found.stderr
    text = page.read_text()
    assert not {"<script>", "<b>", "<i>"} & set(re.findall(r"<\w+>?", text))
    assert "&lt;script&gt;alert(" in text
    assert "&lt;b&gt;their/&lt;i&gt;their.py:" in text


def test_another_sitecustomize_runs_as_well(tmp_path: Path, script: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os\nos.environ['SEEN'] = 'yes'\n")
    script.write_text("import os, sys\nprint(os.environ['SEEN'], *sys.path, sep='|')\n")
    path = f"{tmp_path}{os.pathsep}{ROOT}"
    found = run("-m", "toolkit", "audit", "--", sys.executable, str(script), PYTHONPATH=path)
    first = found.stdout.splitlines()[0]
    assert first.startswith("yes|")
    assert "startup" not in first


def test_a_command_that_is_not_there_is_one_sentence() -> None:
    found = audit("--", "no-such-launcher")
    assert found.returncode == 2
    assert found.stderr == "error: no-such-launcher cannot be started: No such file or directory\n"


@pytest.mark.long
@pytest.mark.distributed
def test_a_torchrun_launch_is_named_with_its_line() -> None:
    script = HERE / "faults" / "reduces_every_micro_step.py"
    found = audit("--json", "--", sys.executable, *TORCHRUN, str(script))
    report = json.loads(found.stdout)
    assert (report["engine"], report["world_size"]) == ("DDP", 2)
    step = report["steps"][0]
    assert (step["micro_steps"], step["reducing_micro_steps"]) == (4, 4)
    assert step["mode"] == "sharded"
    (finding,) = report["findings"]
    assert finding["name"] == "reduces_every_micro_step"
    assert finding["where"] == f"{script}:16"
