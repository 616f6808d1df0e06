"""What is wrong in a launch file is named, with what was meant."""

import pytest

from tests.launch.shipped import DELETE, MESH_2_BY_2, SHARDS_OF_4


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
def test_typing_errors_are_named_at_every_level(problems, strategy, changes, sentence):
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
