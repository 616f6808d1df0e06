import pytest

from toolkit.config import RunConfig
from toolkit.config.problems import dotted_keys, unknown_key
from toolkit.config.synonyms import SYNONYMS

KEYS = dotted_keys(RunConfig)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "optimizer: {lerning_rate: 1}",
            "unknown key 'optimizer.lerning_rate'; did you mean 'optimizer.lr'?",
        ),
        ("training: {stpes: 5}", "unknown key 'training.stpes'; did you mean 'training.steps'?"),
        ("training: {lr: 1}", "unknown key 'training.lr'; did you mean 'optimizer.lr'?"),
        ("optimzer: {lr: 1}", "unknown key 'optimzer'; did you mean 'optimizer'?"),
        ("precsion: bf16", "unknown key 'precsion'; did you mean 'precision'?"),
        (
            "batch: {gradient_accumulation_steps: 4}",
            "unknown key 'batch.gradient_accumulation_steps'; did you mean "
            "'batch.tokens_per_step'?",
        ),
        ("qqqqqq: 1", "unknown key 'qqqqqq'"),
        ("training: {steps: '8'}", "training.steps must be an integer, got the text '8'"),
        ("training: {steps: 8.0}", "training.steps must be an integer, got the number 8.0"),
        ("training: {steps: true}", "training.steps must be an integer, got the boolean true"),
        ("training: {steps: null}", "training.steps must be an integer, got nothing (null)"),
        (
            "training: {steps: 99999999999999999999}",
            "training.steps must be an integer of at most 19 digits, got 20",
        ),
        (
            "optimizer: {weight_decay: -100000000000000000000}",
            "optimizer.weight_decay must be a number of at most 19 digits, got 21",
        ),
        ("seed: 010", "seed must be an integer, got the text '010'"),
        (
            "batch: {tokens_per_step: 524_288}",
            "batch.tokens_per_step must be an integer, got the text '524_288'",
        ),
        ("optimizer: {lr: true}", "optimizer.lr must be a number, got the boolean true"),
        ("model: {compile: yes}", "model.compile must be true or false, got the text 'yes'"),
        ("model: {compile: 1}", "model.compile must be true or false, got the number 1"),
        ("run_name: 7", "run_name must be text, got the number 7; quote it to make it text"),
        ("optimizer: 3", "optimizer must be a section with keys of its own, got the number 3"),
        ("data: {train: {a: b}}", "data.train must be a list, got a section"),
        (
            "data: {train: [a, 3]}",
            "data.train[1] must be text, got the number 3; quote it to make it text",
        ),
        ("data: {train: []}", "data.train must be a list that is not empty, got an empty list"),
        ("precision: fp8", "precision must be 'fp32', 'bf16' or 'fp16', got the text 'fp8'"),
        (
            "accumulation: shard",
            "accumulation must be 'replicated', 'sharded', 'deferred', 'auto' or "
            "{hold: [root, 0, 1]}, got the text 'shard'",
        ),
        ("accumulation: {hold: [wte]}", "accumulation.hold must be a list of block numbers and"),
        ("accumulation: {hold: [0, 0]}", "accumulation.hold names a unit twice: 0, 0"),
        ("accumulation: {held: [0]}", "accumulation has the keys hold, defer, keep, got 'held'"),
        ("accumulation: {hold: 4GB}", "accumulation.hold must be units or a size such as 4GiB"),
        ("accumulation: {}", "accumulation must have one of hold, defer, keep"),
        ("accumulation: {hold: [0], defer: [0]}", "accumulation holds and defers 0: choose one"),
        ("accumulation: {hold: [12]}", "accumulation names block 12, but the model's last is 11"),
        (
            "model: {preset: gpt3}",
            "model.preset must be 'gpt2', 'gpt2-medium', 'gpt2-large' or 'gpt2-xl', got the "
            "text 'gpt3'",
        ),
        ('output_dir: "\\ud800"', "output_dir: Input should be a valid string"),
        ("training: {trackers: [wandbb]}", "training.trackers[0] must be"),
        (
            "training: {checkpoint_every: -1}",
            "training.checkpoint_every must be a number of steps from 0 to 1,000,000,000 or "
            "'never', got the number -1",
        ),
        (
            "training: {checkpoint_every: sometimes}",
            "training.checkpoint_every must be a number of steps from 0 to 1,000,000,000 or "
            "'never', got the text 'sometimes'",
        ),
        (
            "training: {tracker_project: ../outside}",
            "training.tracker_project must be up to 100 letters",
        ),
    ],
)
def test_keys_and_types(problems, text, sentence):
    (line,) = problems(text)
    assert line.startswith(f"demo.yaml: {sentence}")


def test_all_problems_are_reported_one_a_line(problems):
    lines = problems("seed: x\nprecsion: bf16\ntraining: {steps: 0}\noptimizer: {lr: -1}")
    assert len(lines) == 4
    assert all(line.startswith("demo.yaml: ") for line in lines)


def test_a_flood_of_problems_is_cut_short(problems):
    lines = problems("".join(f"key{i}: 1\n" for i in range(1_000)))
    assert len(lines) == 21
    assert lines[-1] == "demo.yaml: 980 more problems"


def test_hostile_keys_are_shown_harmlessly(problems):
    (line,) = problems('"a\\e[31m\\nb": 1')
    assert "\x1b" not in line
    (line,) = problems(f"{'k' * 500}: 1")
    assert len(line) < 200


def test_every_synonym_means_a_key_or_a_section_and_is_none_itself():
    sections = {key.partition(".")[0] for key in KEYS if "." in key}
    assert set(SYNONYMS.values()) <= {*KEYS, *sections}
    assert not SYNONYMS.keys() & {*KEYS, *sections, *(key.rpartition(".")[2] for key in KEYS)}


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("training.save_every", "training.checkpoint_every"),
        ("training.save_steps", "training.checkpoint_every"),
        ("training.max_steps", "training.steps"),
        ("training.max_iters", "training.steps"),
        ("training.num_train_epochs", "training.steps"),
        ("training.eval_interval", "training.eval_every"),
        ("training.learning_rate", "optimizer.lr"),
        ("training.gradient_accumulation_steps", "batch.tokens_per_step"),
        ("training.per_device_train_batch_size", "batch.micro_batch_size"),
        ("training.global_batch_size", "batch.tokens_per_step"),
        ("batch_size", "batch.micro_batch_size"),
        ("data.block_size", "model.block_size"),
        ("model.seq_len", "data.seq_len"),
        ("training.bf16", "precision"),
        ("training.warmup_iters", "optimizer.warmup_steps"),
        ("lr_scheduler", "optimizer"),
        ("checkpoint.interval", "training.checkpoint_every"),
        ("compile.enable", "model.compile"),
        ("run.name", "run_name"),
        ("training.wandb_project", "training.tracker_project"),
        ("training.eval-every", "training.eval_every"),
        ("training.save_evry", "training.checkpoint_every"),
        ("optimizer.lr_min", "optimizer.min_lr"),
        ("batch.microbatch_size", "batch.micro_batch_size"),
        ("model.n_heads", "model.n_head"),
        ("training.step", "training.steps"),
    ],
)
def test_a_hint_is_what_was_meant(written, meant):
    hint = unknown_key(written, KEYS, SYNONYMS)
    assert hint == f"unknown key '{written}'; did you mean '{meant}'?"


NO_COUNTERPART = (
    "training.profile_every optimizer.eps "
    "optimizer.momentum model.bias data.num_workers device backend init_from"
)


@pytest.mark.parametrize("key", NO_COUNTERPART.split())
def test_what_has_no_counterpart_gets_no_hint(key):
    assert unknown_key(key, KEYS, SYNONYMS) == f"unknown key '{key}'"
