from pathlib import Path

import pytest
import yaml

from toolkit.backends.strategies import STRATEGIES
from toolkit.errors import UsageError
from toolkit.launch_file import LaunchFile, load_launch_file, strategy_of

SHIPPED = Path(__file__).parents[1] / "configs" / "accelerate"
SECTIONS = ("fsdp_config", "deepspeed_config", "parallelism_config")


def change(settings, **changes):
    """Set keys at the top level or in the section that has their prefix; DELETE removes one."""
    for key, value in changes.items():
        section, _, name = key.partition("__")
        target = settings.setdefault(section, {}) if name else settings
        target[name or section] = value
        if value is DELETE:
            del target[name or section]
    return settings


DELETE = object()


@pytest.fixture
def load(tmp_path):
    """Load a shipped launch file with some keys changed."""

    def write_and_load(strategy, **changes):
        settings = yaml.safe_load((SHIPPED / f"{strategy}.yaml").read_text())
        path = tmp_path / "launch.yaml"
        path.write_text(yaml.safe_dump(change(settings, **changes)))
        return load_launch_file(path)

    return write_and_load


@pytest.fixture
def problems(load):
    def lines(strategy, **changes):
        with pytest.raises(UsageError) as caught:
            load(strategy, **changes)
        texts = str(caught.value).split("\n")
        assert all("launch.yaml: " in text for text in texts)
        return [text.partition("launch.yaml: ")[2] for text in texts]

    return lines


MESH_2_BY_2 = {
    "parallelism_config__parallelism_config_dp_replicate_size": 2,
    "parallelism_config__parallelism_config_dp_shard_size": 2,
}
FOUR_MACHINES = {"num_machines": 4, "main_process_ip": "10.0.0.1", "main_process_port": 29500}
SHARDS_OF_4 = {"parallelism_config__parallelism_config_dp_shard_size": 4}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_shipped_files_mean_what_they_are_called(strategy):
    launch = load_launch_file(SHIPPED / f"{strategy}.yaml")
    assert strategy_of(launch) == strategy
    assert launch.mixed_precision is None
    assert launch.replicas == (2 if strategy == "hsdp" else 1)


@pytest.mark.parametrize(
    ("changes", "replicas"),
    [
        ({"num_processes": 8}, 2),
        ({"num_processes": 32, **FOUR_MACHINES}, 4),
        ({"num_processes": 32, **FOUR_MACHINES, **SHARDS_OF_4}, 8),
        ({"num_processes": 8, **SHARDS_OF_4}, 2),
        (MESH_2_BY_2, 2),
    ],
)
def test_hybrid_sharding_has_one_group_per_machine_unless_the_file_says_otherwise(
    load, changes, replicas
):
    assert load("hsdp", **changes).replicas == replicas


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


@pytest.mark.parametrize(
    ("strategy", "changes", "sentence"),
    [
        ("ddp", {"num_proceses": 2}, "unknown key 'num_proceses'; did you mean 'num_processes'?"),
        (
            "zero3",
            {"deepspeed_config__zero_stge": 3},
            "unknown key 'deepspeed_config.zero_stge'; did you mean 'deepspeed_config.zero_stage'?",
        ),
        (
            "fsdp2",
            {"fsdp_config__fsdp_versoin": 2},
            "unknown key 'fsdp_config.fsdp_versoin'; did you mean 'fsdp_config.fsdp_version'?",
        ),
        (
            "fsdp2",
            {"fsdp_config__version": 2},
            "unknown key 'fsdp_config.version'; did you mean 'fsdp_config.fsdp_version'?",
        ),
        (
            "hsdp",
            {"parallelism_config__dp_shard_size": 2},
            "unknown key 'parallelism_config.dp_shard_size'; did you mean "
            "'parallelism_config.parallelism_config_dp_shard_size'?",
        ),
        (
            "ddp",
            {"zero_stage": 2},
            "unknown key 'zero_stage'; did you mean 'deepspeed_config.zero_stage'?",
        ),
        (
            "ddp",
            {"fsdp_confg__fsdp_version": 2},
            "unknown key 'fsdp_confg'; did you mean 'fsdp_config'?",
        ),
    ],
)
def test_slips_are_named_at_every_level(problems, strategy, changes, sentence):
    assert problems(strategy, **changes) == [sentence]


@pytest.mark.parametrize(
    ("strategy", "key", "decides"),
    [
        ("ddp", "gradient_accumulation_steps", "batch.tokens_per_step"),
        ("zero2", "gradient_accumulation_steps", "batch.tokens_per_step"),
        ("ddp", "gradient_clipping", "optimizer.grad_clip"),
        ("fsdp2", "fsdp_config__train_micro_batch_size_per_gpu", "batch.micro_batch_size"),
        ("single", "train_batch_size", "batch.tokens_per_step"),
    ],
)
def test_what_the_run_decides_is_not_looked_for_in_a_section(problems, strategy, key, decides):
    name = key.replace("__", ".")
    assert problems(strategy, **{key: 4}) == [
        f"{name} must be left out: the run configuration decides with {decides}"
    ]


@pytest.mark.parametrize(
    ("strategy", "changes", "sentence"),
    [
        ("ddp", {"num_processes": "2"}, "num_processes must be an integer, got the text '2'"),
        ("ddp", {"num_processes": 0}, "num_processes must be at least 1 over all machines, got 0"),
        (
            "ddp",
            {"num_processes": DELETE},
            "num_processes must be at least 1 over all machines, got -1",
        ),
        ("ddp", {"distributed_type": DELETE}, "distributed_type is missing"),
        (
            "ddp",
            {"use_cpu": True},
            "use_cpu must be false, got the boolean true: with true the launcher starts "
            "processes that do not know each other",
        ),
        (
            "ddp",
            {"distributed_type": "MULTI_CPU"},
            "distributed_type must be MULTI_GPU or FSDP or DEEPSPEED or NO, got the text "
            "'MULTI_CPU'",
        ),
        ("ddp", {"distributed_type": "MEGATRON_LM"}, "distributed_type must be"),
        (
            "ddp",
            {"compute_environment": "AMAZON_SAGEMAKER"},
            "compute_environment must be LOCAL_MACHINE",
        ),
        (
            "ddp",
            {"mixed_precision": "fp8"},
            "mixed_precision must be 'no', 'fp16' or 'bf16', got the text 'fp8'",
        ),
        ("ddp", {"main_process_port": 70000}, "main_process_port must be at most 65535"),
        ("ddp", {"gpu_ids": 0}, "gpu_ids must be text, got the number 0"),
        (
            "ddp",
            {"dynamo_config": {"dynamo_backend": "INDUCTOR"}},
            "dynamo_config must be left out",
        ),
        ("ddp", {"fp8_config": {"backend": "TE"}}, "fp8_config must be left out"),
        ("ddp", {"tpu_use_cluster": True}, "tpu_use_cluster must be"),
        (
            "zero2",
            {"deepspeed_config__zero_stage": 4},
            "deepspeed_config.zero_stage must be at most 3, got the number 4",
        ),
        (
            "zero2",
            {"deepspeed_config__zero_stage": "2"},
            "deepspeed_config.zero_stage must be an integer, got the text '2'",
        ),
        (
            "zero2",
            {"deepspeed_config__zero_stage": 0},
            "zero_stage 0 shards nothing; use distributed_type: MULTI_GPU",
        ),
        (
            "zero2",
            {"deepspeed_config__gradient_accumulation_steps": "8"},
            "deepspeed_config.gradient_accumulation_steps must be an integer, got the text '8'",
        ),
        (
            "zero2",
            {"deepspeed_config__gradient_clipping": "auto"},
            "deepspeed_config.gradient_clipping must be a number, got the text 'auto'",
        ),
        (
            "zero2",
            {"deepspeed_config__deepspeed_config_file": "ds.json"},
            "deepspeed_config.deepspeed_config_file must be left out, got the text 'ds.json': "
            "DeepSpeed's configuration is derived from the run",
        ),
        (
            "zero2",
            {"deepspeed_config__offload_optimizer_device": "cpu"},
            "deepspeed_config.offload_optimizer_device must be none, got the text 'cpu': "
            "accumulating with offload",
        ),
        (
            "fsdp2",
            {"fsdp_config__fsdp_version": 1},
            "fsdp_config.fsdp_version must be 2, got the number 1: version 1",
        ),
        (
            "fsdp2",
            {"fsdp_config__fsdp_version": DELETE},
            "fsdp_config.fsdp_version must be 2, got the number 1: version 1 (the default)",
        ),
        (
            "fsdp2",
            {"fsdp_config__fsdp_version": "2"},
            "fsdp_config.fsdp_version must be 2, got the text '2'",
        ),
        (
            "fsdp2",
            {"fsdp_config__fsdp_offload_params": True},
            "fsdp_config.fsdp_offload_params must be false, got the boolean true: "
            "accumulating with offload",
        ),
        (
            "fsdp2",
            {"fsdp_config__fsdp_activation_checkpointing": True},
            "fsdp_config.fsdp_activation_checkpointing must be false, got the boolean true: "
            "the run configuration decides with model.activation_checkpointing",
        ),
        (
            "fsdp2",
            {"fsdp_config__fsdp_cpu_ram_efficient_loading": DELETE},
            "fsdp_config.fsdp_cpu_ram_efficient_loading must be false, got the boolean true",
        ),
        (
            "fsdp2",
            {"fsdp_config__fsdp_transformer_layer_cls_to_wrap": "GPT2Block"},
            "fsdp_config.fsdp_transformer_layer_cls_to_wrap must be Block",
        ),
        (
            "fsdp2",
            {"fsdp_config__fsdp_reshard_after_forward": "FULL_SHARD"},
            "fsdp_config.fsdp_reshard_after_forward must be true or false, got the text "
            "'FULL_SHARD'",
        ),
        (
            "fsdp2",
            {"fsdp_config__fsdp_sharding_strategy": "FULL_SHARD"},
            "fsdp_config.fsdp_sharding_strategy must be left out, got the text 'FULL_SHARD': "
            "it belongs to FSDP version 1",
        ),
        ("fsdp2", {"fsdp_config": DELETE}, "fsdp_config is missing"),
        (
            "ddp",
            {"deepspeed_config__zero_stage": 2},
            "deepspeed_config has no effect with distributed_type: MULTI_GPU",
        ),
        (
            "single",
            {"num_processes": 2},
            "distributed_type: NO starts one process, but num_processes is 2",
        ),
        (
            "ddp",
            {
                "num_processes": 3,
                "num_machines": 2,
                "main_process_ip": "10.0.0.1",
                "main_process_port": 29500,
            },
            "num_processes 3 is no multiple of num_machines 2",
        ),
        ("ddp", {"machine_rank": 1}, "machine_rank 1 is not below num_machines 1"),
        (
            "ddp",
            {"num_machines": 2},
            "num_machines 2 needs main_process_ip and a fixed main_process_port",
        ),
        (
            "hsdp",
            {**MESH_2_BY_2, "num_processes": 6},
            "parallelism_config_dp_replicate_size 2 x parallelism_config_dp_shard_size 2 = 4, "
            "but num_processes is 6; set one of the two",
        ),
        ("hsdp", {"num_processes": 5}, "5 processes cannot form 2 equal replica groups"),
        (
            "hsdp",
            {**SHARDS_OF_4, "num_processes": 6},
            "6 processes cannot form equal replica groups of 4",
        ),
        ("hsdp", SHARDS_OF_4, "one replica group of 4 processes is plain sharding; use fsdp2"),
        ("hsdp", {"num_processes": 2}, "2 replica groups on 2 processes leave nothing to shard"),
        (
            "hsdp",
            {"parallelism_config__parallelism_config_tp_size": 2},
            "parallelism_config.parallelism_config_tp_size must be 1",
        ),
        (
            "hsdp",
            {"fsdp_config__fsdp_reshard_after_forward": False},
            "parallelism_config, hybrid sharding, needs fsdp_reshard_after_forward: true",
        ),
    ],
)
def test_values_that_would_not_be_in_force_are_refused(problems, strategy, changes, sentence):
    assert problems(strategy, **changes)[0].startswith(sentence)


@pytest.mark.parametrize(
    ("strategy", "key", "value"),
    [
        ("fsdp2", "fsdp_config__fsdp_auto_wrap_policy", "SIZE_BASED_WRAP"),
        ("fsdp2", "fsdp_config__fsdp_activation_checkpointing_offload", True),
        ("fsdp2", "fsdp_config__fsdp_ignored_modules", "lm_head"),
        ("fsdp2", "fsdp_config__fsdp_min_num_params", 1),
        ("fsdp2", "fsdp_config__fsdp_backward_prefetch", "BACKWARD_PRE"),
        ("fsdp2", "fsdp_config__fsdp_forward_prefetch", True),
        ("fsdp2", "fsdp_config__fsdp_use_orig_params", True),
        ("fsdp2", "fsdp_config__fsdp_sync_module_states", True),
        ("zero2", "deepspeed_config__gradient_accumulation_steps", 0),
        ("zero2", "deepspeed_config__gradient_clipping", -1.0),
        ("zero2", "deepspeed_config__train_micro_batch_size_per_gpu", 0),
        ("zero2", "deepspeed_config__train_batch_size", 0),
        ("zero2", "deepspeed_config__offload_param_device", "cpu"),
        ("zero2", "deepspeed_config__offload_optimizer_nvme_path", "/nvme"),
        ("zero2", "deepspeed_config__offload_param_nvme_path", "/nvme"),
        ("zero2", "deepspeed_config__deepspeed_moe_layer_cls_names", "MLP"),
        ("hsdp", "parallelism_config__parallelism_config_dp_replicate_size", 0),
        ("hsdp", "parallelism_config__parallelism_config_dp_shard_size", 0),
        ("hsdp", "parallelism_config__parallelism_config_cp_size", 2),
        ("hsdp", "parallelism_config__parallelism_config_sp_size", 2),
        ("ddp", "num_machines", 0),
        ("ddp", "machine_rank", -1),
        ("ddp", "downcast_bf16", True),
        ("ddp", "dynamo_backend", "INDUCTOR"),
        ("ddp", "megatron_lm_config", {"tp_degree": 2}),
        ("ddp", "mpirun_config", {"mpirun_hostfile": "hosts"}),
        ("ddp", "tpu_name", "pod"),
    ],
)
def test_each_key_refuses_what_the_project_does_not_do(problems, strategy, key, value):
    assert f"{key.rpartition('__')[2]} must be " in problems(strategy, **{key: value})[0]


def test_the_smallest_launch_file_names_the_type(tmp_path):
    path = tmp_path / "launch.yaml"
    path.write_text("distributed_type: 'NO'\n")
    assert load_launch_file(path).num_processes == 1


def test_what_accelerate_config_writes_is_accepted(tmp_path):
    """The interactive command's answers for two GPUs, with its harmless keys."""
    path = tmp_path / "default_config.yaml"
    path.write_text(
        "compute_environment: LOCAL_MACHINE\ndebug: false\ndistributed_type: MULTI_GPU\n"
        "downcast_bf16: 'no'\nenable_cpu_affinity: false\ngpu_ids: all\nmachine_rank: 0\n"
        "main_training_function: main\nmixed_precision: 'no'\nnum_machines: 1\nnum_processes: 2\n"
        "rdzv_backend: static\nsame_network: true\ntpu_env: []\ntpu_use_cluster: false\n"
        "tpu_use_sudo: false\nuse_cpu: false\nfsdp_config: {}\n"
    )
    assert strategy_of(load_launch_file(path)) == "ddp"


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
