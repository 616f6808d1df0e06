import pytest

from toolkit.config import dump_run_config, load_run_config, notes_on
from toolkit.errors import UsageError


def test_a_section_with_all_keys_commented_out_is_its_default(load):
    assert load("optimizer:\n  # lr: 1\n") == load("")


@pytest.mark.parametrize(
    "name",
    [
        "../../x",
        "/x",
        "~x",
        "$X",
        "a/b",
        "-x",
        ".x",
        "..",
        " a",
        "a ",
        "a\\0b",
        "a\\n",
        "x" * 101,
        "",
    ],
)
def test_run_names_that_could_leave_the_folder_are_refused(problems, name):
    (line,) = problems(f'run_name: "{name}"')
    assert line.startswith("demo.yaml: run_name must be up to 100 printable")


@pytest.mark.parametrize(
    "name", ["a", "2026-01-01", "gpt2.run_3-b", "x" * 100, "mein Lauf", "Größe (2)"]
)
def test_plain_run_names_are_accepted(load, name):
    assert load(f"run_name: {name}").run_name == name


@pytest.mark.parametrize("name", ["my run", "größe", "3e-4", "gpt2 (copy)"])
def test_a_file_with_any_plain_name_names_its_run(tmp_path, name):
    path = tmp_path / f"{name}.yaml"
    path.write_text("")
    assert load_run_config(path).run_name == name


def test_a_file_name_that_cannot_name_a_run_is_named(tmp_path):
    path = tmp_path / "$run.yaml"
    path.write_text("")
    with pytest.raises(UsageError, match=r"run\.yaml: the file's name cannot name the run; set"):
        load_run_config(path)
    assert load_run_config(path, ["run_name=mine"]).run_name == "mine"


def test_text_in_an_override_may_look_like_a_number(load):
    assert load("", "run_name=3e-4").run_name == "3e-4"
    assert load("", "output_dir=2026").output_dir == "2026"


def test_paths_lead_where_a_shell_would(load, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("SCRATCH", "/scratch")
    config = load("output_dir: ~/runs\ndata: {train: [~/a, $SCRATCH/b], val: '${SCRATCH}/c'}")
    assert config.output_dir == "/home/me/runs"
    assert config.data.train == ("/home/me/a", "/scratch/b")
    assert config.data.val == ("/scratch/c",)


@pytest.mark.parametrize("path", ["$NOWHERE/runs", "~nobody-of-this-name/runs"])
def test_a_path_that_leads_nowhere_is_refused(problems, monkeypatch, path):
    monkeypatch.delenv("NOWHERE", raising=False)
    rule = f"must be a path whose '~' and '$NAME' are known here, got {path!r}"
    assert problems(f"output_dir: {path}\ndata: {{train: [a, {path}]}}") == [
        f"demo.yaml: data.train[1] {rule}",
        f"demo.yaml: output_dir {rule}",
    ]


def test_overrides_win_and_are_parsed_like_the_file(load):
    config = load(
        "optimizer: {lr: 1}", "optimizer.lr=3e-4", "seed=7", "data.val=[a, b]", "training.stop_at=5"
    )
    assert config.optimizer.lr == 3e-4
    assert config.seed == 7
    assert config.data.val == ("a", "b")
    assert config.training.stop_at == 5


def test_an_override_may_hold_an_equals_sign(load):
    assert load("", "data.train=a=b").data.train == ("a=b",)


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("optimizer.lr", "override 'optimizer.lr': has no '='; the form is section.key=value"),
        (
            "optimizer.lerning_rate=1",
            "unknown key 'optimizer.lerning_rate'; did you mean 'optimizer.lr'?",
        ),
        ("optimzer.lr=1", "unknown key 'optimzer.lr'; did you mean 'optimizer.lr'?"),
        ("lr=1", "unknown key 'lr'; did you mean 'optimizer.lr'?"),
        ("--optimizer.lr=1", "unknown key '--optimizer.lr'; did you mean 'optimizer.lr'?"),
        ("optimizer=3", "'optimizer' is a section; override one of its keys: optimizer.name, "),
        (
            "optimizer.lr=fast",
            "override 'optimizer.lr=fast': optimizer.lr must be a number, got the text 'fast'",
        ),
        ("optimizer.lr=[1", "override 'optimizer.lr=[1', line 1: "),
        (
            "seed=!!python/name:os.system",
            "override 'seed=!!python/name:os.system', line 1: the tag",
        ),
    ],
)
def test_bad_overrides(load, override, sentence):
    with pytest.raises(UsageError) as caught:
        load("", override)
    assert str(caught.value).startswith("override '")
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "source"),
    [
        ((), "demo.yaml"),
        (("seed=1", "training.steps=1"), "demo.yaml"),
        (("seed=1", "optimizer.lr=1e-6"), "override 'optimizer.lr=1e-6'"),
        (
            ("optimizer.lr=1", "seed=1", "optimizer.lr=1e-6"),
            "override 'optimizer.lr=1e-6'",
        ),
        (
            ("optimizer.min_lr=2", "seed=1", "optimizer.lr=1"),
            "override 'optimizer.min_lr=2', override 'optimizer.lr=1'",
        ),
    ],
)
def test_a_broken_rule_names_the_overrides_it_names(tmp_path, overrides, source) -> None:
    path = tmp_path / "demo.yaml"
    path.write_text("optimizer: {lr: 1e-5, min_lr: 1e-4}")
    with pytest.raises(UsageError) as caught:
        load_run_config(path, overrides)
    sentence = str(caught.value).replace(f"{tmp_path}/", "")
    assert sentence.startswith(f"{source}: optimizer.min_lr ")


def test_the_last_of_two_overrides_wins(load):
    overrides = ("seed=1", "optimizer.lr=1", "seed=2", "seed=2")
    config = load("", *overrides)
    assert config.seed == 2
    assert notes_on(config, overrides) == ["override 'seed=1' is replaced by the later 'seed=2'"]


def test_an_override_does_not_hide_a_broken_section(problems):
    (line,) = problems("optimizer: 3", "optimizer.lr=1")
    assert line == "demo.yaml: optimizer must be a section with keys of its own, got the number 3"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "model: {preset: gpt2-large}\nrun_name: '3e-4'",
        "model: {n_layer: 2, n_head: 2, n_embd: 64, block_size: 64}\ndata: {val: [a, b]}\n"
        "optimizer: {lr: 3e-05, betas: [0.9, 0.999]}\ntraining: {stop_at: 3, trackers: [wandb]}",
    ],
)
def test_dump_loads_back_to_an_equal_configuration(load, tmp_path, text):
    config = load(text)
    path = tmp_path / "config.yaml"
    path.write_text(dump_run_config(config))
    assert load_run_config(path) == config
    assert "seq_len: " in path.read_text()
