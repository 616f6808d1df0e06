import math

import pytest
from pydantic import ValidationError

from toolkit.config import RunConfig
from toolkit.config.problems import dotted_keys
from toolkit.model.sizes import ModelSizes

# The keys that scripts outside rely on.
CONTRACT = {
    "model": "preset n_layer n_head n_embd block_size vocab_size dropout activation_checkpointing "
    "compile loss",
    "data": "train val seq_len shuffle",
    "batch": "tokens_per_step micro_batch_size",
    "optimizer": "name lr min_lr warmup_steps betas weight_decay grad_clip",
    "training": "steps stop_at eval_every checkpoint_every keep_last",
}


def test_every_key_of_the_contract_exists():
    keys = set(dotted_keys(RunConfig))
    promised = {f"{section}.{key}" for section, names in CONTRACT.items() for key in names.split()}
    promised |= {"accumulation", "precision", "seed", "output_dir", "run_name"}
    assert promised <= keys


def test_every_key_has_a_description():
    def undescribed(model, prefix=""):
        for name, field in model.model_fields.items():
            if hasattr(field.annotation, "model_fields"):
                yield from undescribed(field.annotation, f"{name}.")
            elif not field.description:
                yield prefix + name

    assert list(undescribed(RunConfig)) == []


@pytest.mark.parametrize("key", ["eval_every", "peer_copy_every", "check_replicas_every"])
def test_never_is_an_interval(load, key):
    assert getattr(load(f"training: {{{key}: never}}").training, key) == 0


def test_an_empty_file_is_a_complete_run(load):
    config = load("")
    assert config.model.preset == "gpt2"
    assert config.model.sizes() == ModelSizes(12, 12, 768, 50_304, 1_024)
    assert config.data.seq_len == 1_024
    assert config.run_name == "demo"
    assert config.accumulation == "replicated"
    assert config.precision == "fp32"
    assert not config.model.compile


def test_configuration_is_frozen(load):
    with pytest.raises(ValidationError):
        load().seed = 2


def test_preset_gives_the_shape(load):
    model = load("model: {preset: gpt2-xl, vocab_size: 50257}").model
    assert (model.n_layer, model.n_head, model.n_embd) == (48, 25, 1600)
    assert model.sizes().parameter_count == 1_557_611_200


def test_shape_replaces_the_preset(load):
    model = load("model: {n_layer: 2, n_head: 2, n_embd: 64}").model
    assert (model.preset, model.n_layer, model.n_head, model.n_embd) == (None, 2, 2, 64)


def test_seq_len_follows_block_size(load):
    config = load("model: {block_size: 128}")
    assert config.data.seq_len == 128
    assert load("model: {block_size: 128}\ndata: {seq_len: 64}").data.seq_len == 64


def test_one_path_or_several(load):
    assert load("data: {train: a, val: [b, c]}").data.train == ("a",)
    assert load("data: {train: a, val: [b, c]}").data.val == ("b", "c")
    assert load("data: {val: null}").data.val == ()


def test_integers_serve_as_numbers_and_exponents_are_numbers(load):
    optimizer = load("optimizer: {lr: 3e-4, min_lr: 0, betas: [0, 1e-3]}").optimizer
    assert (optimizer.lr, optimizer.min_lr, optimizer.betas) == (3e-4, 0.0, (0.0, 1e-3))


@pytest.mark.parametrize(
    ("text", "key", "rule"),
    [
        ("training: {steps: 0}", "training.steps", "at least 1"),
        ("training: {keep_last: 0}", "training.keep_last", "at least 1"),
        ("training: {eval_every: -1}", "training.eval_every", "at least 0"),
        ("training: {stop_at: 0}", "training.stop_at", "at least 1"),
        ("batch: {micro_batch_size: 0}", "batch.micro_batch_size", "at least 1"),
        ("data: {seq_len: 0}", "data.seq_len", "at least 1"),
        ("model: {dropout: 1}", "model.dropout", "below 1"),
        ("model: {vocab_size: 1}", "model.vocab_size", "at least 2"),
        ("optimizer: {lr: 0}", "optimizer.lr", "above 0"),
        ("optimizer: {lr: 1e400}", "optimizer.lr", "a finite number"),
        ("optimizer: {grad_clip: .nan}", "optimizer.grad_clip", "a finite number"),
        ("optimizer: {weight_decay: -0.1}", "optimizer.weight_decay", "at least 0"),
        ("seed: -1", "seed", "at least 0"),
        ("seed: 4294967296", "seed", "below 4294967296"),
        ("output_dir: ''", "output_dir", "some text"),
        ("model: {n_layer: 0, n_head: 1, n_embd: 1}", "model.n_layer", "at least 1"),
        ("model: {n_layer: 1, n_head: 0, n_embd: 1}", "model.n_head", "at least 1"),
        ("model: {n_layer: 1, n_head: 1, n_embd: 0}", "model.n_embd", "at least 1"),
        ("model: {block_size: 0}", "model.block_size", "at least 1"),
        ("batch: {tokens_per_step: 0}", "batch.tokens_per_step", "at least 1"),
        ("optimizer: {min_lr: -1}", "optimizer.min_lr", "at least 0"),
        ("optimizer: {grad_clip: -1}", "optimizer.grad_clip", "at least 0"),
        ("training: {eval_sequences: 0}", "training.eval_sequences", "at least 1"),
        ("model: 3", "model", "a section with keys of its own"),
    ],
)
def test_ranges(problems, text, key, rule):
    (line,) = problems(text)
    assert line.startswith(f"demo.yaml: {key} must be {rule}, got ")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("model: {n_layer: 2}", "missing: model.n_head, model.n_embd"),
        ("model: {preset: null}", "missing: model.n_layer, model.n_head, model.n_embd"),
        (
            "model: {preset: gpt2, n_layer: 4}",
            "model.n_layer 4 contradicts model.preset 'gpt2', which has 12",
        ),
        (
            "model: {n_layer: 2, n_head: 3, n_embd: 64}",
            "model.n_embd 64 is no multiple of model.n_head 3",
        ),
        ("data: {seq_len: 2048}", "data.seq_len 2048 is above model.block_size 1024"),
        (
            "optimizer: {lr: 1e-4, min_lr: 1e-3}",
            "optimizer.min_lr 0.001 is above optimizer.lr 0.0001",
        ),
        ("optimizer: {betas: [0.9]}", "optimizer.betas must be two numbers"),
        ("optimizer: {betas: [0.9, 1.0]}", "optimizer.betas must be two numbers"),
    ],
)
def test_impossible_combinations(problems, text, sentence):
    (line,) = problems(text)
    assert line.startswith("demo.yaml: ")
    assert sentence in line


@pytest.mark.parametrize(
    ("text", "notes"),
    [
        ("", []),
        ("optimizer: {warmup_steps: 10}\ntraining: {steps: 10, stop_at: 10}", []),
        (
            "optimizer: {lr: 1e-3, warmup_steps: 10}\ntraining: {steps: 4}",
            [
                "optimizer.warmup_steps 10 is beyond training.steps 4: the run ends in warm-up, "
                "at a learning rate of 0.0004"
            ],
        ),
        (
            "training: {steps: 10, stop_at: 11}",
            ["training.stop_at 11 is beyond training.steps 10: the run ends after 10"],
        ),
        (
            "training: {sample_tokens: 9}",
            [
                "training.sample_tokens is 9, but samples come with evaluations and "
                "training.eval_every is 0: no samples"
            ],
        ),
        (
            "training: {eval_every: 5}",
            ["training.eval_every is 5, but data.val names no shards: no validation loss"],
        ),
        ("training: {eval_every: 5, sample_tokens: 9}\ndata: {val: a}", []),
    ],
)
def test_what_is_clear_is_done_and_noted(load, text, notes):
    assert load(text).notes() == notes


@pytest.mark.parametrize(("stop_at", "last"), [("null", 10), ("4", 4), ("10", 10), ("11", 10)])
def test_a_run_ends_at_the_earlier_of_its_two_ends(load, stop_at, last):
    assert load(f"training: {{steps: 10, stop_at: {stop_at}}}").training.last_step == last


@pytest.mark.parametrize("trackers", ["wandb", "[wandb]", "[wandb, wandb]"])
def test_a_tracker_may_stand_alone_or_be_named_twice(load, trackers):
    assert load(f"training: {{trackers: {trackers}}}").training.trackers == ("wandb",)


def test_no_number_in_the_defaults_is_infinite():
    def numbers(value):
        if isinstance(value, dict):
            for inner in value.values():
                yield from numbers(inner)
        elif isinstance(value, float):
            yield value

    assert all(math.isfinite(number) for number in numbers(RunConfig().model_dump()))


def test_paths_may_begin_in_the_home_folder(load, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    run = load(
        "output_dir: ~/runs\ndata: {train: ~/a, val: [./~, '~/b*']}", "data.train=[~/c, d/~/e]"
    )
    assert run.output_dir == "/home/me/runs"
    assert run.data.train == ("/home/me/c", "d/~/e")
    assert run.data.val == ("./~", "/home/me/b*")
