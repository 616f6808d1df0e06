from pathlib import Path

import pytest
import yaml

from toolkit.engines.strategies import STRATEGIES
from toolkit.errors import UsageError
from toolkit.launch.file import LaunchFile, load_launch_file, strategy_of

SHIPPED = Path(__file__).parents[2] / "configs" / "accelerate"
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
        f"{name} must be removed: the run configuration decides with {decides}"
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
            "dynamo_config must be {'dynamo_backend': 'NO'}, got a section",
        ),
        ("ddp", {"fp8_config": {"backend": "TE"}}, "fp8_config must be removed"),
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
            {"deepspeed_config__deepspeed_config_file": "ds.json"},
            "deepspeed_config.deepspeed_config_file must be removed, got the text 'ds.json': "
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
            {"fsdp_config__fsdp_transformer_layer_cls_to_wrap": "BertLayer"},
            "fsdp_config.fsdp_transformer_layer_cls_to_wrap must be Block or GPT2Block, got the "
            "text 'BertLayer': each block must be a unit",
        ),
        (
            "fsdp2",
            {"fsdp_config__fsdp_reshard_after_forward": "FULL_SHARD"},
            "fsdp_config.fsdp_reshard_after_forward must be true or false, got the text "
            "'FULL_SHARD'",
        ),
        (
            "fsdp2",
            {"fsdp_config__fsdp_sharding_strategy": "HYBRID_SHARD"},
            "fsdp_config.fsdp_sharding_strategy must be FULL_SHARD or SHARD_GRAD_OP, got the text "
            "'HYBRID_SHARD': version 1's sharding is fsdp_reshard_after_forward in FSDP2",
        ),
        (
            "fsdp2",
            {"fsdp_config__fsdp_sharding_strategy": "SHARD_GRAD_OP"},
            "fsdp_sharding_strategy: SHARD_GRAD_OP is FSDP version 1's name for "
            "fsdp_reshard_after_forward: false, but that is true",
        ),
        (
            "fsdp2",
            {
                "fsdp_config__fsdp_sync_module_states": False,
                "fsdp_config__fsdp_cpu_ram_efficient_loading": True,
            },
            "fsdp_sync_module_states: false is refused by Accelerate's launcher unless",
        ),
        ("ddp", {"ipex_config": {}}, "ipex_config must be removed: Accelerate has no such key"),
        ("ddp", {"num_proceses": None}, "unknown key 'num_proceses'; did you mean"),
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
def test_values_that_would_not_be_effective_are_refused(problems, strategy, changes, sentence):
    assert problems(strategy, **changes)[0].startswith(sentence)


@pytest.mark.parametrize(
    ("strategy", "key", "value"),
    [
        ("fsdp2", "fsdp_config__fsdp_auto_wrap_policy", "SIZE_BASED_WRAP"),
        ("fsdp2", "fsdp_config__fsdp_activation_checkpointing_offload", True),
        ("fsdp2", "fsdp_config__fsdp_ignored_modules", "lm_head"),
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


@pytest.mark.parametrize(
    ("strategy", "changes", "notes"),
    [
        ("ddp", {}, []),
        ("ddp", {"use_cpu": True}, ["use_cpu: true keeps the run on the CPU"]),
        ("fsdp2", {"fsdp_config__fsdp_auto_wrap_policy": DELETE}, []),
        ("fsdp2", {"fsdp_config__fsdp_transformer_layer_cls_to_wrap": DELETE}, []),
        (
            "fsdp2",
            {"fsdp_config__fsdp_transformer_layer_cls_to_wrap": "GPT2Block"},
            ["fsdp_config.fsdp_transformer_layer_cls_to_wrap: GPT2Block is not used: the class"],
        ),
        (
            "fsdp2",
            {"fsdp_config__fsdp_cpu_ram_efficient_loading": True},
            ["fsdp_config.fsdp_cpu_ram_efficient_loading: true is not used: every rank builds"],
        ),
        ("fsdp2", {"fsdp_config__fsdp_cpu_ram_efficient_loading": DELETE}, []),
        ("ddp", {"dynamo_config": {"dynamo_backend": "NO"}}, []),
        (
            "fsdp2",
            {
                "fsdp_config__fsdp_sharding_strategy": "FULL_SHARD",
                "fsdp_config__fsdp_backward_prefetch": "BACKWARD_PRE",
                "fsdp_config__fsdp_use_orig_params": True,
                "fsdp_config__fsdp_min_num_params": 100_000_000,
                "fsdp_config__fsdp_forward_prefetch": False,
            },
            [
                "fsdp_config.fsdp_min_num_params: 100000000 is not used",
                "fsdp_config.fsdp_sharding_strategy: FULL_SHARD is not used: it belongs to FSDP",
                "fsdp_config.fsdp_backward_prefetch: BACKWARD_PRE is not used",
                "fsdp_config.fsdp_use_orig_params: true is not used",
            ],
        ),
        (
            "zero3",
            {"deepspeed_config__zero3_init_flag": True},
            ["deepspeed_config.zero3_init_flag: true is not used: it concerns models of trans"],
        ),
        (
            "zero2",
            {
                "deepspeed_config__gradient_clipping": "auto",
                "deepspeed_config__gradient_accumulation_steps": "auto",
                "deepspeed_config__train_batch_size": "auto",
                "deepspeed_config__train_micro_batch_size_per_gpu": "auto",
            },
            [],
        ),
    ],
)
def test_what_the_run_does_without_is_taken_and_noted(load, strategy, changes, notes):
    launch = load(strategy, **changes)
    assert strategy_of(launch) == strategy
    found = launch.notes()
    assert len(found) == len(notes)
    assert all(note.startswith(start) for note, start in zip(found, notes, strict=True))


def test_a_mesh_of_one_replica_is_plain_sharding(load):
    launch = load("hsdp", **SHARDS_OF_4)
    assert (strategy_of(launch), launch.replicas) == ("fsdp2", 1)
    assert launch.notes() == [
        "parallelism_config: one replica group of 4 processes is plain sharding, without replicas"
    ]


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
