"""The shipped launch files, and changes of them."""

from pathlib import Path

SHIPPED = Path(__file__).parents[2] / "configs" / "accelerate"


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
MESH_2_BY_2 = {
    "parallelism_config__parallelism_config_dp_replicate_size": 2,
    "parallelism_config__parallelism_config_dp_shard_size": 2,
}
SHARDS_OF_4 = {"parallelism_config__parallelism_config_dp_shard_size": 4}
