"""The main job with one rank failing at step 3."""

import os
import sys
from typing import Any
from unittest.mock import patch

from toolkit.training.step import StepResult, train_step
from toolkit.training.worker import main

calls = iter(range(1, 100))


def failing_step(*arguments: Any, **settings: Any) -> StepResult:
    if next(calls) == 3 and os.environ["RANK"] == "1":
        raise ValueError("put in by the test at step 3")
    return train_step(*arguments, **settings)


if __name__ == "__main__":
    with patch("toolkit.training.loop.train_step", failing_step):
        sys.exit(main(sys.argv[1:]))
