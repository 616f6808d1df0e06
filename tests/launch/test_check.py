from pathlib import Path

import pytest
import yaml

from toolkit.config import RunConfig
from toolkit.engines.launched import Launched
from toolkit.errors import UsageError
from toolkit.launch.check import check_files, check_launched, check_pair, pair_notes
from toolkit.launch.file import load_launch_file

SHIPPED = Path(__file__).parents[2] / "configs"


def run(**settings):
    """A run of 16 sequences a step, with some settings changed."""
    return RunConfig.model_validate(
        {
            "run_name": "small",
            "model": {"n_layer": 1, "n_head": 1, "n_embd": 8, "block_size": 8},
            "batch": {"tokens_per_step": 128, "micro_batch_size": 2},
            **settings,
        }
    )


@pytest.fixture
def launch(tmp_path):
    """A shipped launch file with keys of its DeepSpeed section, or others, added."""

    def load(strategy, deepspeed=None, **top):
        settings = yaml.safe_load((SHIPPED / "accelerate" / f"{strategy}.yaml").read_text()) | top
        if deepspeed:
            settings["deepspeed_config"] |= deepspeed
        path = tmp_path / f"{strategy}.yaml"
        path.write_text(yaml.safe_dump(settings))
        return load_launch_file(path)

    return load


def refusal(config, launch_file, **options):
    with pytest.raises(UsageError) as caught:
        check_pair(config, launch_file, **options)
    lines = str(caught.value).split("\n")
    assert all(".yaml with run configuration 'small': " in line for line in lines)
    return [line.partition("'small': ")[2] for line in lines]


def test_a_good_pair_gives_the_plan(launch):
    plan = check_pair(run(), launch("ddp"))
    assert (plan.world_size, plan.grad_accum_steps) == (2, 4)
    assert check_pair(run(), launch("ddp"), world_size=8).grad_accum_steps == 1


def test_settings_that_agree_with_the_run_are_accepted(launch):
    agreeing = {
        "gradient_accumulation_steps": 4,
        "gradient_clipping": 1.0,
        "train_micro_batch_size_per_gpu": 2,
        "train_batch_size": 16,
    }
    check_pair(run(), launch("zero2", agreeing, mixed_precision="no"))
    check_pair(run(precision="bf16"), launch("ddp", mixed_precision="bf16"))


def test_what_is_not_used_is_noted_for_the_pair(launch):
    file = launch("zero2", {"gradient_accumulation_steps": 1}, use_cpu=True)
    assert pair_notes(file, check_pair(run(), file)) == [
        "use_cpu: true keeps the run on the CPU, also where there is a GPU",
        "deepspeed_config.gradient_accumulation_steps: 1, Accelerate's default, is not used: "
        "4 micro-steps follow from batch.tokens_per_step",
    ]
    alone = check_pair(run(), file, world_size=8)
    assert alone.grad_accum_steps == 1
    assert len(pair_notes(file, alone)) == 1


def test_recomputation_may_be_asked_for_twice_but_not_only_in_the_launch_file(launch):
    asked = launch("fsdp2")
    asked = asked.model_copy(
        update={
            "fsdp_config": asked.fsdp_config.model_copy(
                update={"fsdp_activation_checkpointing": True}
            )
        }
    )
    (line,) = refusal(run(), asked)
    assert "activation_checkpointing: true, the run has model.activation_checkpointing: f" in line
    model = {"n_layer": 1, "n_head": 1, "n_embd": 8, "block_size": 8}
    check_pair(run(model={**model, "activation_checkpointing": True}), asked)


@pytest.mark.parametrize("use_cpu", [True, False])
def test_a_launch_file_may_keep_the_run_on_the_cpu(launch, use_cpu):
    path = Path(launch("ddp", use_cpu=use_cpu).path)
    found, notes = check_launched(run(), Launched("ddp", 0, 0, 2, 1, None), path)
    assert (found.on_cpu, bool(notes), found.config_file) == (use_cpu, use_cpu, str(path))


def test_a_launch_without_a_file_is_held_against_the_run_as_well():
    launched = Launched("fsdp2", 0, 0, 2, 1, None, recomputes=True)
    with pytest.raises(UsageError, match=r"the run has model\.activation_check"):
        check_launched(run(), launched, None)


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        (
            {"gradient_accumulation_steps": 8},
            "deepspeed_config.gradient_accumulation_steps: 8, the run has the micro-steps "
            "derived from batch.tokens_per_step: 4",
        ),
        (
            {"gradient_clipping": 0.5},
            "deepspeed_config.gradient_clipping: 0.5, the run has optimizer.grad_clip: 1.0",
        ),
        (
            {"train_micro_batch_size_per_gpu": 4},
            "deepspeed_config.train_micro_batch_size_per_gpu: 4, the run has "
            "batch.micro_batch_size: 2",
        ),
        (
            {"train_batch_size": 32},
            "deepspeed_config.train_batch_size: 32, the run has the sequences derived from "
            "batch.tokens_per_step: 16",
        ),
    ],
)
def test_a_second_source_that_disagrees_is_refused_with_both_values(launch, setting, sentence):
    (line,) = refusal(run(), launch("zero2", setting))
    assert line.startswith(f"the launch file has {sentence}; take ")


@pytest.mark.parametrize(("said", "precision"), [("no", "bf16"), ("bf16", "fp32")])
def test_two_precisions_are_refused(launch, said, precision):
    (line,) = refusal(run(precision=precision), launch("ddp", mixed_precision=said))
    assert f"mixed_precision: {said}, the run has precision: {precision}" in line


def test_impossible_accumulation_is_refused(launch):
    (line,) = refusal(run(accumulation="sharded"), launch("zero1"))
    assert line.startswith("accumulation 'sharded' is impossible with strategy 'zero1'")
    check_pair(run(accumulation="deferred"), launch("hsdp"))


def test_world_sizes_that_do_not_fit_are_refused(launch):
    assert "x 3 ranks = 96" in refusal(run(), launch("ddp"), world_size=3)[0]
    assert refusal(run(), launch("single"), world_size=2) == [
        "strategy 'single' is one process, but 2 were asked for"
    ]
    lines = refusal(run(batch={"tokens_per_step": 240}), launch("hsdp"), world_size=5)
    assert lines == ["5 processes cannot form 2 equal replica groups"]


def test_all_disagreements_are_reported(launch):
    config = run(accumulation="deferred", precision="bf16")
    assert len(refusal(config, launch("zero2", mixed_precision="no"), world_size=3)) == 3


def test_files_are_distinguished_and_paired(tmp_path):
    good = tmp_path / "good.yaml"
    good.write_text("batch: {tokens_per_step: 4096}")
    report = check_files([good, SHIPPED / "accelerate/ddp.yaml", SHIPPED / "accelerate/hsdp.yaml"])
    assert report.problems == []
    assert [line.partition(": ")[2].partition(",")[0] for line in report.good[:3]] == [
        "run configuration",
        "launch file",
        "launch file",
    ]
    assert len(report.good) == 5


def test_notes_stand_beside_what_they_are_about(tmp_path, launch):
    path = tmp_path / "short.yaml"
    path.write_text(
        "batch: {tokens_per_step: 4096}\noptimizer: {warmup_steps: 10}\ntraining: {steps: 4}\n"
    )
    file = launch("zero2", {"gradient_accumulation_steps": 1}, use_cpu=True).path
    report = check_files([path, file])
    assert report.problems == []
    notes = [line.partition(": note: ") for line in report.good if ": note: " in line]
    assert [(where, note.split()[0]) for where, _, note in notes] == [
        (str(path), "optimizer.warmup_steps"),
        (file, "use_cpu:"),
        (f"{path} with {file}", "deepspeed_config.gradient_accumulation_steps:"),
    ]


def test_a_run_alone_that_no_number_of_ranks_fits_is_refused_with_the_nearest_sizes(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("batch: {tokens_per_step: 1000}\n")
    (line,) = check_files([path]).problems
    assert line.startswith(f"{path}: batch.tokens_per_step 1,000 cannot be cut")
    assert "set batch.tokens_per_step to 1,024 (the smallest that fits)" in line


@pytest.mark.parametrize("text", ["", "# seed: 1\n", "{}"])
def test_a_file_without_keys_is_neither_kind(tmp_path, text):
    path = tmp_path / "ddp.yaml"
    path.write_text(text)
    report = check_files([path])
    assert report.good == []
    assert report.problems == [
        f"{path}: holds no key, so it is no run configuration and no launch file"
    ]


def test_every_bad_file_is_reported_and_the_rest_still_checked(tmp_path):
    contents = {
        "run.yaml": "optimizer: {lerning_rate: 1}\nseed: x\n",
        "launch.yaml": "distributed_typo: MULTI_GPU\nnum_proceses: 2\n",
        "odd.yaml": "batch: {tokens_per_step: 3072}\n",
    }
    for name, text in contents.items():
        (tmp_path / name).write_text(text)
    paths = [tmp_path / name for name in (*contents, "absent.yaml")]
    report = check_files([*paths, SHIPPED / "accelerate/ddp.yaml"])
    text = "\n".join(report.problems)
    assert "unknown key 'optimizer.lerning_rate'" in text
    assert "seed must be an integer" in text
    assert "unknown key 'num_proceses'; did you mean 'num_processes'?" in text
    assert "unknown key 'distributed_typo'; did you mean 'distributed_type'?" in text
    assert "absent.yaml: cannot be read" in text
    assert "cannot be cut into whole micro-steps" in text
    assert [line.rpartition("/")[2] for line in report.good] == [
        "odd.yaml: run configuration, 124,475,904 parameters",
        "ddp.yaml: launch file, strategy ddp, num_processes 2",
    ]
