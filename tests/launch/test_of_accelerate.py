"""Launch files as Accelerate knows, writes, converts and reads them."""

import pytest
import yaml

from toolkit.errors import UsageError
from toolkit.launch.file import LaunchFile, load_launch_file, strategy_of

SECTIONS = ("fsdp_config", "deepspeed_config", "parallelism_config")


def test_every_key_of_accelerate_is_known():
    config_args = pytest.importorskip("accelerate.commands.config.config_args")
    assert set(config_args.ClusterConfig.__dataclass_fields__) <= set(LaunchFile.model_fields)


def test_nested_keys_are_those_the_launcher_takes():
    launch = pytest.importorskip("accelerate.commands.launch")
    accepted = {action.dest for action in launch.launch_command_parser()._actions}
    # The two of DeepSpeed's own file are known in order to be compared with the run.
    ours = {"train_micro_batch_size_per_gpu", "train_batch_size", "fsdp_ignored_modules"}
    for section in SECTIONS:
        kind = LaunchFile.model_fields[section].annotation.__args__[0]
        assert set(kind.model_fields) - ours <= accepted
        prefix = {"fsdp_config": "fsdp_", "parallelism_config": "parallelism_config_"}.get(section)
        if prefix:
            assert {name for name in accepted if name.startswith(prefix)} <= set(kind.model_fields)


def test_keys_of_fsdp_need_no_prefix_as_in_accelerate(tmp_path):
    path = tmp_path / "launch.yaml"
    path.write_text(
        "distributed_type: FSDP\nnum_processes: 2\n"
        "fsdp_config: {version: 2, reshard_after_forward: false, offload_params: no}\n"
    )
    assert strategy_of(load_launch_file(path)) == "fsdp2_no_reshard"


@pytest.mark.parametrize(
    "line", ["use_cpu: no", "same_network: yes", "downcast_bf16: no", "debug: off"]
)
def test_a_switch_may_be_written_as_accelerate_reads_it(tmp_path, line):
    path = tmp_path / "launch.yaml"
    path.write_text(f"distributed_type: MULTI_GPU\nnum_processes: 2\n{line}\n")
    assert not load_launch_file(path).use_cpu


GPUS = {"Which type of machine": "multi-GPU", "should be used for distributed training": 2}
SHARDED = {**GPUS, "FullyShardedDataParallel": True, "layer class names": "GPT2Block"}
ENGINE = {**GPUS, "want to use DeepSpeed": True}
MESH = {**SHARDED, "parallelism config": True, "FSDP shard size": 2}


@pytest.fixture
def answer(tmp_path, monkeypatch):
    """Let `accelerate config` ask its questions, and load the file it writes.

    An answer is found by words of its question; all other questions get their default.
    """
    cluster = pytest.importorskip("accelerate.commands.config.cluster")

    def given(question, answers, default):
        return next((answers[words] for words in answers if words in question), default)

    def write(answers):
        def ask_options(question, options, convert=lambda index: index, default=0):
            chosen = given(question, answers, None)
            return convert(default if chosen is None else options.index(chosen))

        def ask_field(question, convert=None, default=None, error_message=None):
            return given(question, answers, default)

        monkeypatch.setattr(cluster, "_ask_options", ask_options)
        monkeypatch.setattr(cluster, "_ask_field", ask_field)
        monkeypatch.setattr(cluster, "is_mps_available", lambda: False)
        path = tmp_path / "default_config.yaml"
        cluster.get_cluster_input().to_yaml_file(path)
        return load_launch_file(path)

    return write


@pytest.mark.parametrize(
    ("answers", "strategy"),
    [
        ({"Which type of machine": "No distributed training"}, "single"),
        ({"Which type of machine": "No distributed training", "CPU only": True}, "single"),
        (GPUS, "ddp"),
        ({**GPUS, "mixed precision?": "bf16"}, "ddp"),
        (SHARDED, "fsdp2"),
        ({**SHARDED, "_no_split_modules": True}, "fsdp2"),
        ({**SHARDED, "resharding after forward": False}, "fsdp2_no_reshard"),
        ({**SHARDED, "FSDP activation checkpointing": True}, "fsdp2"),
        (MESH, "fsdp2"),
        ({**MESH, "should be used for distributed training": 4, "replicate size": 2}, "hsdp"),
        ({**ENGINE, "ZeRO optimization stage": 1}, "zero1"),
        ({**ENGINE, "gradient clipping?": True, "accumulation steps": 4}, "zero2"),
        ({**ENGINE, "ZeRO optimization stage": 3, "zero.Init": True}, "zero3"),
    ],
)
def test_what_accelerate_config_writes_is_accepted(answer, answers, strategy):
    assert strategy_of(answer(answers)) == strategy


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ({"Which type of machine": "multi-CPU", "should be used": 2}, "MULTI_GPU also on CPUs"),
        ({**SHARDED, "FSDP version": 1}, "accelerate to-fsdp2 converts a file to version 2"),
        ({**SHARDED, "auto wrap policy": "SIZE_BASED_WRAP"}, "must be TRANSFORMER_BASED_WRAP"),
        ({**SHARDED, "offload parameters": True}, "fsdp_offload_params must be false"),
        ({**ENGINE, "offload optimizer states": "cpu"}, "offload_optimizer_device must be none"),
        ({**ENGINE, "json file": True}, "deepspeed_config_file must be removed"),
    ],
)
def test_what_accelerate_config_writes_for_something_else_is_refused(answer, answers, words):
    with pytest.raises(UsageError, match=words):
        answer(answers)


def test_accelerates_basic_file_is_accepted(tmp_path):
    default = pytest.importorskip("accelerate.commands.config.default")
    path = tmp_path / "basic.json"
    default.write_basic_config(save_location=str(path))
    assert strategy_of(load_launch_file(path)) in ("single", "ddp")


def test_what_accelerate_converts_from_fsdp1_is_accepted(tmp_path):
    to_fsdp2 = pytest.importorskip("accelerate.commands.to_fsdp2")
    fsdp1 = {
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_backward_prefetch": "BACKWARD_PRE",
        "fsdp_cpu_ram_efficient_loading": True,
        "fsdp_forward_prefetch": False,
        "fsdp_offload_params": False,
        "fsdp_sharding_strategy": "SHARD_GRAD_OP",
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        "fsdp_sync_module_states": True,
        "fsdp_use_orig_params": True,
    }
    settings = {"distributed_type": "FSDP", "num_processes": 2, "fsdp_config": fsdp1}
    path = tmp_path / "launch.yaml"
    path.write_text(yaml.safe_dump(settings))
    with pytest.raises(UsageError, match="accelerate to-fsdp2"):
        load_launch_file(path)
    path.write_text(yaml.safe_dump(to_fsdp2.convert_config_to_fsdp2(settings)))
    assert strategy_of(load_launch_file(path)) == "fsdp2_no_reshard"


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("distributed_type: NO", "distributed_type"),
        ("mixed_precision: no", "mixed_precision"),
        ("main_process_ip: 2026-01-01", "main_process_ip"),
        ("main_process_ip: 1_000", "main_process_ip"),
    ],
)
def test_text_that_accelerate_would_read_otherwise_must_be_quoted(tmp_path, line, key):
    path = tmp_path / "launch.yaml"
    rest = "" if key == "distributed_type" else "distributed_type: MULTI_GPU\n"
    path.write_text(f"{rest}num_processes: 1\n{line}\n")
    with pytest.raises(UsageError, match=f"launch.yaml: Accelerate reads {key} as .*quote text"):
        load_launch_file(path)


def test_a_date_that_does_not_exist_is_no_traceback(tmp_path):
    path = tmp_path / "launch.yaml"
    path.write_text("distributed_type: MULTI_GPU\nmain_process_ip: 2026-13-45\n")
    with pytest.raises(UsageError, match="Accelerate cannot read it"):
        load_launch_file(path)
