import pytest

from toolkit.config import dump_run_config, load_run_config
from toolkit.errors import UsageError


def test_a_section_with_all_keys_commented_out_is_its_default(load):
    assert load("optimizer:\n  # lr: 1\n") == load("")


@pytest.mark.parametrize(
    "name",
    ["../../x", "/x", "~x", "$X", "a/b", "-x", ".x", "..", "a b", "a\\0b", "a\\n", "x" * 101, ""],
)
def test_run_names_that_could_leave_the_folder_are_refused(problems, name):
    (line,) = problems(f'run_name: "{name}"')
    assert line.startswith("demo.yaml: run_name must be up to 100 letters")


@pytest.mark.parametrize("name", ["a", "2026-01-01", "gpt2.run_3-b", "x" * 100])
def test_plain_run_names_are_accepted(load, name):
    assert load(f"run_name: {name}").run_name == name


def test_a_file_name_that_cannot_name_a_run_is_named(tmp_path):
    path = tmp_path / "my run.yaml"
    path.write_text("")
    with pytest.raises(UsageError, match=r"my run\.yaml: the file's name cannot name the run; set"):
        load_run_config(path)
    assert load_run_config(path, ["run_name=mine"]).run_name == "mine"


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
        (("seed=1", "optimizer.lr=1"), "demo.yaml"),
        (("seed=1", "training.steps=5"), "override 'training.steps=5'"),
        (
            ("optimizer.warmup_steps=7", "seed=1", "training.steps=5"),
            "override 'optimizer.warmup_steps=7', override 'training.steps=5'",
        ),
    ],
)
def test_a_broken_rule_is_told_of_the_overrides_it_names(tmp_path, overrides, source) -> None:
    path = tmp_path / "demo.yaml"
    path.write_text("optimizer: {warmup_steps: 6}\ntraining: {steps: 5}")
    with pytest.raises(UsageError) as caught:
        load_run_config(path, overrides)
    said = str(caught.value).replace(f"{tmp_path}/", "")
    assert said.startswith(f"{source}: optimizer.warmup_steps ")


def test_the_same_override_twice_is_refused(load):
    with pytest.raises(UsageError, match="'seed' is overridden twice"):
        load("", "seed=1", "seed=2")


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
