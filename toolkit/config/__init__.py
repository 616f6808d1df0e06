"""The run's configuration: what is trained, as one frozen, fully checked value."""

from toolkit.config.load import dotted_values, dump_run_config, load_run_config, notes_on
from toolkit.config.run import RunConfig
from toolkit.config.sections import (
    BatchConfig,
    DataConfig,
    ModelConfig,
    OptimizerConfig,
)
from toolkit.config.training_section import TrainingConfig

__all__ = [
    "BatchConfig",
    "DataConfig",
    "ModelConfig",
    "OptimizerConfig",
    "RunConfig",
    "TrainingConfig",
    "dotted_values",
    "dump_run_config",
    "load_run_config",
    "notes_on",
]
