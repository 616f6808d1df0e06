"""`toolkit estimate`: its options, outputs and refusals."""

import json
from pathlib import Path

import pytest

from tests.memory.command import run
from toolkit.commands import estimate as command
from toolkit.engines.strategies import supported_pairs
from toolkit.memory.report import estimate_row
from toolkit.model.sizes import preset_sizes


def test_json_has_the_promised_keys(monkeypatch, capsys) -> None:
    assert run(monkeypatch, "--preset", "gpt2-xl", "--gpu", "H200", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["parameters"] == 1_557_686_400
    pairs = [(row["strategy"], row["accumulation"]) for row in answer["rows"]]
    assert pairs == supported_pairs()
    for row in answer["rows"]:
        parts = dict(row["bytes"])
        assert parts.pop("peak") == sum(parts.values())
        assert set(parts) == {
            *("parameters", "gradients", "optimizer", "activations", "loss"),
            *("communication", "other"),
        }
        assert {"world_size", "micro_batch_size", "seq_len", "precision"} <= row.keys()
        assert row["method"] == "formula"
        assert row["fits"] == {"H200": True}


def test_a_run_configuration_is_read(monkeypatch, capsys, run_file: Path) -> None:
    assert run(monkeypatch, "--config", str(run_file), "--world-size", "2", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["model"]["n_embd"] == 16
    assert {row["micro_batch_size"] for row in answer["rows"]} == {4}


def test_knobs_without_a_configuration_key_are_options(monkeypatch, capsys) -> None:
    def peak(strategy: str, tokens: int, *words: str, waves: int = 1) -> int:
        sizes = (f"data.seq_len={tokens // 8}", f"batch.tokens_per_step={2 * waves * tokens}")
        asked = ("--strategies", strategy, "--world-size", "2", "--micro-batch-size", "8", *words)
        assert run(monkeypatch, *asked, "--json", *sizes) == 0
        return json.loads(capsys.readouterr().out)["rows"][-1]["bytes"]["peak"]

    parameters = preset_sizes("gpt2").parameter_count
    assert peak("single", 8, "--foreach") > peak("single", 8)
    assert peak("single", 4096, "--attention", "math") > peak("single", 4096)
    assert peak("fsdp2", 4096, "--no-set-to-none") > peak("fsdp2", 4096)
    views, apart = (
        peak("ddp", 8, *words, waves=2) for words in ((), ("--no-gradient-as-bucket-view",))
    )
    assert apart - views == 4 * parameters
    assert peak("zero2", 8, "--offload-optimizer") - peak("zero2", 8) < -4 * parameters


def test_a_compiled_run_is_a_range(monkeypatch, capsys) -> None:
    words = ("--strategies", "fsdp2", "model.compile=true")
    assert run(monkeypatch, *words) == 0
    row = next(s for s in capsys.readouterr().out.splitlines() if s.startswith("fsdp2"))
    low, dash, high = row.split()[2:5]
    assert dash == "-"
    assert float(low) < float(high)
    assert run(monkeypatch, *words, "--json") == 0
    first = json.loads(capsys.readouterr().out)["rows"][0]
    assert first["lowest_peak"] < first["bytes"]["peak"]


def test_a_picture_is_drawn_where_it_reports(monkeypatch, capsys, tmp_path: Path) -> None:
    words = ("--strategies", "fsdp2", "--json", "--plot")
    for name, written in (("step.svg", "step.svg"), ("step", "step.png")):
        assert run(monkeypatch, *words, str(tmp_path / name)) == 0
        said = capsys.readouterr()
        assert said.err == f"drawn in {tmp_path / written}\n"
        assert json.loads(said.out)["rows"]
    assert (tmp_path / "step.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "step.svg").read_text()
    assert run(monkeypatch, *words, str(tmp_path)) == 2
    sentence = f"error: --plot {tmp_path}: is a folder; name a file, such as {tmp_path}/step.png\n"
    assert capsys.readouterr().err == sentence


def test_what_cannot_be_traced_is_skipped_and_named(monkeypatch, capsys) -> None:
    monkeypatch.setattr(command, "_row", lambda settings, method: estimate_row(settings))
    assert run(monkeypatch, "--method", "trace", "--json") == 0
    said = capsys.readouterr()
    shown = {row["strategy"] for row in json.loads(said.out)["rows"]}
    assert shown == {"single", "fsdp2", "fsdp2_no_reshard", "hsdp"}
    assert said.err == "not traced: ddp, zero1, zero2, zero3, which need real tensors\n"


def test_the_header_shows_how_a_step_is_cut_and_when_modes_cannot_differ(
    monkeypatch, capsys
) -> None:
    words = ("--micro-batch-size", "8", "--strategies", "single,ddp,zero2", "--world-size")
    assert run(monkeypatch, *words, "64") == 0
    lines = capsys.readouterr().out.splitlines()
    assert "8 sequences x 1,024 tokens x 1 micro-step x 64 ranks" in lines[1]
    assert "8 sequences x 1,024 tokens x 64 micro-steps x 1 rank " in lines[2]
    assert lines[3].startswith(
        "one micro-step per step accumulates nothing: the modes of ddp, zero"
    )
    assert run(monkeypatch, *words, "32") == 0
    assert "accumulates nothing" not in capsys.readouterr().out


def test_hybrid_sharding_has_a_group_per_machine(monkeypatch, capsys) -> None:
    def groups(*words: str) -> tuple[int, int]:
        assert run(monkeypatch, "--strategies", "hsdp", "--json", *words) == 0
        row = json.loads(capsys.readouterr().out)["rows"][0]
        return row["replica_groups"], row["group_size"]

    assert groups("--world-size", "64") == (8, 8)
    assert groups("--world-size", "64", "--per-machine", "4") == (16, 4)
    assert groups("--world-size", "8") == (2, 4)
    assert run(monkeypatch, "--strategies", "hsdp", "--world-size", "64") == 0
    assert "hsdp 8 x 8  replicated" in capsys.readouterr().out


def test_what_is_skipped_is_named_with_the_reason(monkeypatch, capsys) -> None:
    assert run(monkeypatch, "--strategies", "hsdp,fsdp2", "--world-size", "2") == 0
    said = capsys.readouterr()
    assert said.err.startswith("skipped: hsdp: 2 replica groups on 2 processes leave nothing")
    assert "fsdp2" in said.out


def test_an_accumulation_mode_is_a_filter_where_it_is_an_override(
    monkeypatch, capsys, run_file: Path
) -> None:
    def shown(*words: str) -> set[str]:
        assert run(monkeypatch, "--json", *words) == 0
        return {row["accumulation"] for row in json.loads(capsys.readouterr().out)["rows"]}

    assert shown("accumulation=sharded") == {"sharded"}
    assert shown("--config", str(run_file), "accumulation=deferred", "--world-size", "4") == {
        "deferred"
    }
    run_file.write_text(run_file.read_text() + "accumulation: sharded\n")
    both = shown("--config", str(run_file), "--strategies", "ddp", "--world-size", "2")
    assert both == {"replicated", "sharded"}
    assert run(monkeypatch, "--strategies", "zero1,ddp", "accumulation=sharded") == 0
    reason = "skipped: zero1: DeepSpeed's stage 1 reduces gradients only at the boundary\n"
    assert capsys.readouterr().err == reason


def test_ranks_that_do_not_divide_the_step_are_answered_for(
    monkeypatch, capsys, run_file: Path
) -> None:
    words = ("--config", str(run_file), "--strategies", "ddp", "--world-size", "3")
    assert run(monkeypatch, *words, "--gpu", "T4", "--max-micro-batch", "--json") == 0
    said = capsys.readouterr()
    assert "batch.tokens_per_step 512 cannot be cut into micro-steps of 384 tokens on 3" in said.err
    assert "assumed is 384 tokens per step = 4 sequences x 32 tokens x 1 micro-step" in said.err
    assert "no batch.micro_batch_size cuts it on 3 ranks" in said.err
    row = json.loads(said.out)["rows"][0]
    assert row["bytes"]["peak"] > 0
    assert row["largest_micro_batch_size"] == 0


def test_a_trace_reports_what_it_is_at(monkeypatch, capsys) -> None:
    tiny = ("model.n_layer=1", "model.n_head=1", "model.n_embd=8", "model.vocab_size=16")
    words = ("--method", "trace", "--strategies", "single", "data.seq_len=8", "--json")
    assert run(monkeypatch, *words, *tiny) == 0
    said = capsys.readouterr()
    assert said.err.splitlines() == [
        f"tracing single replicated on 1 rank, step {step} of 2" for step in (1, 2)
    ]
    assert json.loads(said.out)["rows"][0]["method"] == "trace"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["model.n_layer=0", "model.n_head=1", "model.n_embd=8"], "at least 1, got the number 0"),
        (["model.n_layer=1", "model.n_head=3", "model.n_embd=8"], "no multiple of model.n_head 3"),
        (["data.seq_len=2048"], "data.seq_len 2048 is above model.block_size 1024"),
        (["--gpu", "Z80"], "--gpu: unknown 'Z80'; there are"),
        (["--preset", "gpt3"], "error: --preset gpt3: model.preset must be 'gpt2'"),
        (["--micro-batch-size", "0"], "error: --micro-batch-size 0: batch.micro_batch_size must"),
        (["model.preset=gpt3"], "error: override 'model.preset=gpt3': model.preset must be"),
        (
            ["--device", "cpu", "precision=fp16"],
            "precision 'fp16' is not available on device 'cpu'",
        ),
        (["--device", "cpu", "--gpu", "T4"], "--gpu T4: with --device cpu there is no GPU to fit"),
        (["--strategies", "single", "accumulation=sharded"], "none of single runs on 8 ranks: "),
        (["--max-micro-batch"], "--max-micro-batch needs --gpu"),
        (["--gpu", ""], "--gpu: unknown ''; there are T4, "),
        (["--method", "trace", "--strategies", "ddp,single"], "ddp needs real tensors"),
        (
            ["--offload-optimizer", "--strategies", "single,fsdp2"],
            "--offload-optimizer is for zero1, zero2, zero3 alone, and --strategies single,fsdp2",
        ),
        (["--gradient-as-bucket-view", "--strategies", "zero2"], "is for ddp alone"),
        (
            ["--method", "trace", "--strategies", "single", "--foreach"],
            "--method trace runs the loop's own step; foreach cannot be changed in it",
        ),
        (["--plot", "no/such/folder/x.png"], "no/such/folder/x.png: No such file or directory\n"),
        (["--plot", "x.xyz"], "--plot x.xyz: Format 'xyz' is not supported"),
        (["--strategies", "hsdp", "--world-size", "2"], "none of hsdp runs on 2 ranks"),
        (
            ["model.n_layer=1000", "model.n_head=1", "model.n_embd=100000"],
            "120,006,433,000,000 parameters; at most 1,000,000,000,000",
        ),
    ],
)
def test_bad_input_is_a_sentence(monkeypatch, capsys, words, sentence) -> None:
    assert run(monkeypatch, *words) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert sentence in said
