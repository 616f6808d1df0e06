"""What a launch file means."""

import pytest

from tests.launch.shipped import DELETE, MESH_2_BY_2, SHARDS_OF_4, SHIPPED
from toolkit.engines.strategies import STRATEGIES
from toolkit.launch.file import load_launch_file, strategy_of

FOUR_MACHINES = {"num_machines": 4, "main_process_ip": "10.0.0.1", "main_process_port": 29500}


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
def test_hybrid_sharding_has_one_group_per_machine_unless_the_file_has_others(
    load, changes, replicas
):
    assert load("hsdp", **changes).replicas == replicas


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
