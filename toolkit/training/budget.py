"""A budget for gradients and parameters, spent before a run begins."""

from toolkit.config import RunConfig
from toolkit.engines.launched import Launched
from toolkit.engines.mixture import Budget, Mixture
from toolkit.memory.hardware import with_unit
from toolkit.program.budget import cost_and_saving
from toolkit.program.settings import settings_of_run


def spend_budget(config: RunConfig, launched: Launched) -> tuple[RunConfig, list[str]]:
    """Return the run with the units that its budget buys, and a sentence about them.

    A run without a budget is returned as it is.
    """
    if not isinstance(config.accumulation, Budget):
        return config, []
    settings = settings_of_run(
        config,
        launched.strategy,
        world_size=launched.world_size,
        replicas=launched.replicas,
    )
    mixture = settings.accumulation
    assert isinstance(mixture, Mixture)
    held, saved = cost_and_saving(settings, mixture)
    sentence = (
        f"accumulation: {config.accumulation} is {mixture}: {with_unit(held)} held beyond sharded, "
        f"{with_unit(saved)} less communicated per step"
    )
    return config.model_copy(update={"accumulation": mixture}), [sentence]
