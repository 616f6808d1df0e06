import accelerate.tracking
import pytest

from toolkit.engines.build import _check_trackers
from toolkit.errors import UsageError


def test_a_tracker_that_is_not_installed_is_refused(monkeypatch):
    monkeypatch.setattr(accelerate.tracking, "get_available_trackers", lambda: ["tensorboard"])
    _check_trackers([])
    _check_trackers(["tensorboard"])
    with pytest.raises(UsageError, match=r"'wandb' is not installed.*installed: tensorboard"):
        _check_trackers(["tensorboard", "wandb"])
