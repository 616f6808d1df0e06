"""The keys of Accelerate's launch files, and which of their values this project supports.

Each key of Accelerate 1.15's `ClusterConfig` and of its nested sections is known here; one that
asks for what this project does not do is refused with the reason, and one that it does without is
noted. Defaults are Accelerate's own, so that leaving a key out is judged by what it then means.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PrivateAttr
from pydantic_core import PydanticCustomError

from toolkit.config.problems import OF_THE_KEY, describe_value
from toolkit.config.section import Section
from toolkit.counted import counted
from toolkit.engines.strategies import is_plain_sharding, replica_groups


def _only(*allowed: Any, why: str) -> BeforeValidator:
    """Accept the given values alone, with their types; absent in the file counts as the default."""
    named = [str(good).lower() if isinstance(good, bool) else str(good) for good in allowed if good]
    named += ["false"] if False in allowed and not named else []
    rule = f"must be {' or '.join(named)}" if named else "must be removed"

    def check(value: Any) -> Any:
        if not any(value == good and type(value) is type(good) for good in allowed):
            wrong = f"{rule}, got {describe_value(value)}: {why}"
            raise PydanticCustomError(OF_THE_KEY, "{wrong}", {"wrong": wrong})
        return value

    return BeforeValidator(check)


@dataclass(frozen=True)
class _Unused:
    """Marks a key whose values change nothing here; all but the `agreeing` ones are noted."""

    why: str
    agreeing: tuple[Any, ...] = (None, False)


def _unused(section: Section, prefix: str = "") -> Iterator[str]:
    """Yield a sentence for each value in the file that is not used."""
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, Section):
            yield from _unused(value, f"{name}.")
        for mark in field.metadata:
            is_written = name in section.model_fields_set
            if isinstance(mark, _Unused) and is_written and value not in mark.agreeing:
                shown = str(value).lower() if isinstance(value, bool) else value
                yield f"{prefix}{name}: {shown} is not used: {mark.why}"


# DeepSpeed's word for what the program decides.
_AUTO = BeforeValidator(lambda value: None if value == "auto" else value)
_TPU = _only(None, False, [], why="this project does not train on TPUs")
_ELSEWHERE = _only(None, why="this project does not use this part of Accelerate")
_FSDP1 = _Unused("it belongs to FSDP version 1, which FSDP2 has no need of")
_OF_TRANSFORMERS = _Unused("it concerns models of transformers")
_DATA_ONLY = _only(1, why="this project splits the data and the parameters, nothing else")
_NO_OFFLOAD = "accumulating with offload replaces gradients instead of adding to them"
_VERSION_1 = (
    "version 1 (the default) is not supported; accelerate to-fsdp2 converts a file to version 2"
)
_RESHARD = "version 1's sharding is fsdp_reshard_after_forward in FSDP2"
_UNIT = "each block must be a unit of its own, or the whole model is gathered at once"


class FsdpConfig(Section):
    """`fsdp_config`: how FSDP2 shards."""

    fsdp_version: Annotated[int, _only(2, why=_VERSION_1)] = 1
    fsdp_auto_wrap_policy: Annotated[
        str | None, _only("TRANSFORMER_BASED_WRAP", None, why=_UNIT)
    ] = None
    fsdp_transformer_layer_cls_to_wrap: Annotated[
        str | None,
        _only("Block", "GPT2Block", None, why=_UNIT),
        _Unused("the class of a block is Block here", agreeing=(None, "Block")),
    ] = None
    fsdp_reshard_after_forward: bool = True
    fsdp_state_dict_type: Annotated[
        Literal["SHARDED_STATE_DICT", "FULL_STATE_DICT"] | None,
        _Unused("each rank writes the part that it holds", agreeing=(None, "SHARDED_STATE_DICT")),
    ] = None
    fsdp_cpu_ram_efficient_loading: Annotated[
        bool, _Unused("every rank builds the same weights from the seed")
    ] = True
    # Held against the run's own setting in `toolkit.launch.check`.
    fsdp_activation_checkpointing: bool = False
    fsdp_activation_checkpointing_offload: Annotated[
        bool, _only(False, why="recomputed activations are not offloaded here")
    ] = False
    fsdp_offload_params: Annotated[bool, _only(False, why=_NO_OFFLOAD)] = False
    fsdp_ignored_modules: Annotated[None, _only(None, why="every parameter is sharded")] = None
    fsdp_min_num_params: Annotated[Any, _Unused("each block is a unit, whatever its size")] = None
    fsdp_sharding_strategy: Annotated[
        str | None, _only("FULL_SHARD", "SHARD_GRAD_OP", None, why=_RESHARD), _FSDP1
    ] = None
    fsdp_backward_prefetch: Annotated[Any, _FSDP1] = None
    fsdp_forward_prefetch: Annotated[Any, _FSDP1] = None
    fsdp_use_orig_params: Annotated[Any, _FSDP1] = None
    fsdp_sync_module_states: Annotated[bool, _FSDP1] = True


class DeepspeedConfig(Section):
    """`deepspeed_config`: the ZeRO stage; what else DeepSpeed needs follows from the run."""

    zero_stage: int = Field(default=2, ge=0, le=3)
    gradient_accumulation_steps: Annotated[int | None, _AUTO] = Field(default=None, ge=1)
    gradient_clipping: Annotated[float | None, _AUTO] = Field(default=None, ge=0.0)
    # Keys of DeepSpeed's own file, often written here; Accelerate drops them without a word.
    train_micro_batch_size_per_gpu: Annotated[int | None, _AUTO] = Field(default=None, ge=1)
    train_batch_size: Annotated[int | None, _AUTO] = Field(default=None, ge=1)
    offload_optimizer_device: Annotated[str | None, _only("none", None, why=_NO_OFFLOAD)] = None
    offload_param_device: Annotated[str | None, _only("none", None, why=_NO_OFFLOAD)] = None
    offload_optimizer_nvme_path: Annotated[str | None, _only("none", None, why=_NO_OFFLOAD)] = None
    offload_param_nvme_path: Annotated[str | None, _only("none", None, why=_NO_OFFLOAD)] = None
    zero3_init_flag: Annotated[bool | None, _OF_TRANSFORMERS] = None
    zero3_save_16bit_model: Annotated[bool | None, _OF_TRANSFORMERS] = None
    deepspeed_config_file: Annotated[
        None, _only(None, why="DeepSpeed's configuration is derived from the run configuration")
    ] = None
    deepspeed_hostfile: str | None = None
    deepspeed_exclusion_filter: str | None = None
    deepspeed_inclusion_filter: str | None = None
    deepspeed_multinode_launcher: (
        Literal["pdsh", "standard", "openmpi", "mvapich", "mpich", "nossh", "slurm"] | None
    ) = None
    deepspeed_moe_layer_cls_names: Annotated[None, _ELSEWHERE] = None


class ParallelismConfig(Section):
    """`parallelism_config`: the device mesh of hybrid sharding."""

    parallelism_config_dp_replicate_size: int = Field(default=1, ge=1)
    parallelism_config_dp_shard_size: int = Field(default=1, ge=1)
    parallelism_config_tp_size: Annotated[int, _DATA_ONLY] = 1
    parallelism_config_cp_size: Annotated[int, _DATA_ONLY] = 1
    parallelism_config_cp_backend: Annotated[None, _ELSEWHERE] = None
    parallelism_config_cp_comm_strategy: Annotated[None, _ELSEWHERE] = None
    parallelism_config_sp_size: Annotated[int, _DATA_ONLY] = 1
    parallelism_config_sp_backend: Annotated[None, _ELSEWHERE] = None
    parallelism_config_sp_seq_length: Annotated[None, _ELSEWHERE] = None
    parallelism_config_sp_seq_length_is_variable: Annotated[None, _ELSEWHERE] = None
    parallelism_config_sp_attn_implementation: Annotated[None, _ELSEWHERE] = None


class LaunchFile(Section):
    """A launch file: how many processes on how many machines, and under which strategy."""

    _path: str = PrivateAttr("launch file")

    compute_environment: Annotated[
        str, _only("LOCAL_MACHINE", why="SageMaker jobs are started by other means")
    ] = "LOCAL_MACHINE"
    distributed_type: Annotated[
        str,
        _only(
            *("MULTI_GPU", "FSDP", "DEEPSPEED", "NO"),
            why="these types alone start processes that know each other, MULTI_GPU also on CPUs",
        ),
    ]
    num_processes: int = Field(default=-1)
    num_machines: int = Field(default=1, ge=1)
    machine_rank: int = Field(default=0, ge=0)
    main_process_ip: str | None = None
    main_process_port: int | None = Field(default=None, ge=0, le=65_535)
    rdzv_backend: str | None = "static"
    same_network: bool = False
    gpu_ids: str | None = None
    mixed_precision: Literal["no", "fp16", "bf16"] | None = None
    use_cpu: bool = False
    debug: bool = False
    enable_cpu_affinity: bool = False
    main_training_function: str = "main"
    fsdp_config: FsdpConfig | None = None
    deepspeed_config: DeepspeedConfig | None = None
    parallelism_config: ParallelismConfig | None = None
    dynamo_backend: Annotated[
        str | None, _only("NO", None, why="the run configuration decides with model.compile")
    ] = None
    dynamo_config: Annotated[
        Any,
        _only(
            None, {"dynamo_backend": "NO"}, why="the run configuration decides with model.compile"
        ),
    ] = None
    fp8_config: Annotated[None, _ELSEWHERE] = None
    megatron_lm_config: Annotated[None, _ELSEWHERE] = None
    mpirun_config: Annotated[None, _ELSEWHERE] = None
    downcast_bf16: Annotated[Any, _only(False, "no", None, why="it is for TPUs")] = False
    tpu_name: Annotated[Any, _TPU] = None
    tpu_zone: Annotated[Any, _TPU] = None
    tpu_use_cluster: Annotated[Any, _TPU] = False
    tpu_use_sudo: Annotated[Any, _TPU] = False
    tpu_vm: Annotated[Any, _TPU] = None
    tpu_env: Annotated[Any, _TPU] = None
    command_file: Annotated[Any, _TPU] = None
    commands: Annotated[Any, _TPU] = None

    @property
    def replicas(self) -> int:
        """Replica groups of hybrid sharding on `num_processes`; 1 for every other strategy."""
        return self.replicas_on(self.num_processes)

    def replicas_on(self, world_size: int) -> int:
        """Return the replica groups on a number of ranks over all machines.

        Raises:
            UsageError: they cannot form the groups that the file asks for.
        """
        mesh = self.parallelism_config
        if mesh is None or not self.is_hybrid_on(world_size):
            return 1
        return replica_groups(
            groups=mesh.parallelism_config_dp_replicate_size,
            shards=mesh.parallelism_config_dp_shard_size,
            world_size=world_size,
            machines=self.num_machines,
        )

    def is_hybrid_on(self, world_size: int) -> bool:
        """Whether the device mesh has several replica groups on a number of ranks."""
        mesh = self.parallelism_config
        return mesh is not None and not is_plain_sharding(
            groups=mesh.parallelism_config_dp_replicate_size,
            shards=mesh.parallelism_config_dp_shard_size,
            world_size=world_size,
        )

    def notes(self) -> list[str]:
        """Return a sentence for each value that changes nothing, or more than it seems to."""
        notes = list(_unused(self))
        if self.parallelism_config and not self.is_hybrid_on(self.num_processes):
            notes.append(
                f"parallelism_config: one replica group of "
                f"{counted(self.num_processes, 'process', 'processes')} is "
                "plain sharding, without replicas"
            )
        if self.use_cpu:
            notes.append("use_cpu: true keeps the run on the CPU, also where there is a GPU")
        return notes

    @property
    def path(self) -> str:
        """The file it was read from, for messages."""
        return self._path
