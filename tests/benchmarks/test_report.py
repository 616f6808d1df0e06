"""The report on made-up records: its files, its page, and the page in a real browser."""

import base64
import csv
import json
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.comparison import pairs_of
from benchmarks.measured import measured_cases
from benchmarks.record import append_record
from benchmarks.report import POLICY, main
from benchmarks.tables import cases_table, prediction_table
from tests.benchmarks.plausible import case, profile, record, unmeasured

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
PANELS = {"speed": 2, "time": 2, "ratio": 1, "bytes": 2, "memory": 2, "prediction": 1}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A folder of records, and that of the report on them."""
    folder, out = (tmp_path_factory.mktemp(name) for name in ("records", "report"))
    swept = [
        case(strategy, mode, grad_accum_steps=a, link_mbit_per_s=link)
        for strategy in ("ddp", "zero3")
        for mode in ("replicated", "sharded")
        for a, link in [(1, 100), (4, 100), (4, 1000)]
    ]
    lines = [record(of, repeat) for of in swept for repeat in range(2)]
    lines.append(unmeasured(case("zero2", "sharded"), error="rank 1 said <nothing> & died"))
    lines.append(unmeasured(case("fsdp2", "sharded"), skipped="it needs 900 GiB"))
    (folder / "records.jsonl").write_text("".join(f"{r.model_dump_json()}\n" for r in lines))
    for link in (100, 1000):
        (folder / f"profile_{link}.json").write_text(profile(link).model_dump_json())
    assert main([str(folder), "--out", str(out)]) == 0
    return folder, out


@pytest.fixture(scope="module")
def html(folders: tuple[Path, Path]) -> str:
    return (folders[1] / "report.html").read_text()


def test_columns_for_predictions_are_shown_where_there_are_any() -> None:
    modes = [case("ddp", mode, link_mbit_per_s=100) for mode in ("replicated", "sharded")]
    cases = measured_cases([record(of) for of in modes])
    predicted = {of: 1.0 for of in modes}
    names = {"predicted", "predicted, ms", "error", "named right"}
    for seconds, shown in ((predicted, names), ({}, set())):
        tables = [prediction_table(pairs_of(cases, seconds)), cases_table(cases, seconds)]
        columns = {name for table in tables for name in table.columns}
        assert columns & names == shown
        assert {"measured", "step, ms"} <= columns


def test_no_records_are_said_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == (
        f"error: {tmp_path}/records.jsonl: no records, so there is nothing to report\n"
    )
    assert not (tmp_path / "out").exists()


def test_a_damaged_line_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    append_record(tmp_path, record(case("ddp", "sharded")))
    with (tmp_path / "records.jsonl").open("a") as file:
        file.write('{"case": {"strategy": "dd\n')
    assert main([str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert f"{tmp_path}/records.jsonl:2: " in capsys.readouterr().err


def test_a_place_that_is_no_folder_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    append_record(tmp_path, record(case("ddp", "sharded")))
    assert main([str(tmp_path), "--out", str(tmp_path / "records.jsonl")]) == 2
    assert capsys.readouterr().err.startswith(f"error: --out {tmp_path}/records.jsonl: ")


def test_every_chart_is_in_the_page_and_a_picture(html: str, folders: tuple[Path, Path]) -> None:
    shown = Counter(re.findall(r'<svg [^>]*aria-labelledby="(\w+)-\d+-title"', html))
    assert shown == PANELS
    assert {path.stem for path in folders[1].glob("*.png")} == set(PANELS)


def test_what_was_not_measured_is_listed_with_the_reason(html: str) -> None:
    assert "failed: rank 1 said &lt;nothing&gt; &amp; died" in html
    assert "skipped: it needs 900 GiB" in html
    assert "failed: 1, skipped: 1" in html


def test_the_records_are_attached(html: str, folders: tuple[Path, Path]) -> None:
    folder, out = folders
    attached = dict(re.findall(r'download="([^"]+)" href="data:[^"]*;base64,([^"]*)"', html))
    for path in (folder / "records.jsonl", out / "records.csv"):
        assert base64.b64decode(attached[path.name]) == path.read_bytes()
    with (out / "records.csv").open() as file:
        rows = list(csv.DictReader(file))
    written = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    assert [row["strategy"] for row in rows] == [line["case"]["strategy"] for line in written]
    measured = [line["error"] is None and line["skipped"] is None for line in written]
    assert [bool(row["step_s"]) for row in rows] == measured
    assert [bool(row["predicted_step_s"]) for row in rows] == measured


def test_a_page_that_cannot_be_written_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    append_record(tmp_path, unmeasured(case("zero2", "sharded"), error="it crashed"))
    (tmp_path / "out" / "report.html").mkdir(parents=True)
    assert main([str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == f"error: {tmp_path}/out/report.html: Is a directory\n"


def test_ids_are_unique_and_colours_are_the_pages(html: str) -> None:
    ids = re.findall(r'\bid="([^"]+)"', html)
    assert len(ids) == len(set(ids))
    used = re.findall(r'href="#([^"]+)"', html) + re.findall(r"url\(#([^)]+)\)", html)
    assert used
    assert set(used) <= set(ids)
    drawn = "".join(re.findall(r"<svg.*?</svg>", html, re.DOTALL))
    assert set(re.findall(r"#[0-9a-f]{6}\b", drawn)) == set()


@pytest.fixture(scope="module")
def browser() -> str:
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip(f"no browser to open the page in: none of {', '.join(BROWSERS)} is installed")
    return found


def opened(browser: str, page: Path, *options: str) -> tuple[str, list[str]]:
    """Return the document as the browser has it, and what it wrote to the page's console."""
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]
    done = subprocess.run(
        [*command, *options, "--dump-dom", page.as_uri()],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def test_a_browser_finds_the_charts_and_no_error(browser: str, folders: tuple[Path, Path]) -> None:
    document, console = opened(browser, folders[1] / "report.html")
    assert document.count("<svg") == sum(PANELS.values())
    assert console == []


def test_charts_are_seen_and_fit_a_phone_and_what_is_loaded_from_elsewhere_is_noticed(
    browser: str, html: str, tmp_path: Path
) -> None:
    measure = """<img src="https://nowhere.invalid/"><script>
    const charts = [...document.querySelectorAll("svg")].map(c => c.getBoundingClientRect());
    document.title = JSON.stringify({
      smallest: Math.min(...charts.map(c => Math.min(c.width, c.height))),
      window: innerWidth, page: document.documentElement.scrollWidth});
    </script></body>"""
    page = tmp_path / "page.html"
    allowed = html.replace(POLICY, f"{POLICY}; script-src 'unsafe-inline'")
    page.write_text(allowed.replace("</body>", measure))
    document, console = opened(browser, page, "--window-size=390,800")
    seen = json.loads(re.findall("<title>({.*})</title>", document)[0])
    assert seen["smallest"] > 200
    assert seen["page"] <= seen["window"]
    assert any("nowhere.invalid" in line for line in console)
