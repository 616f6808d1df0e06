"""A run whose device does not come to the end of its third step."""

import sys
import time

import torch

from toolkit.launch.exit_code import end_process
from toolkit.training.callback import Callback, Phase
from toolkit.training.worker import main

_CYCLES = 2**62
_SECONDS = 3600.0


class Hang(Callback):
    """Gives a GPU a kernel that does not end, and the host of a CPU something to wait for."""

    def __init__(self) -> None:
        self._steps = 0

    def on_phase(self, phase: Phase) -> None:
        """Hang before the third update."""
        self._steps += phase == "optimizer"
        if phase == "optimizer" and self._steps == 3:
            if torch.cuda.is_available():
                torch.cuda._sleep(_CYCLES)
            else:
                time.sleep(_SECONDS)


if __name__ == "__main__":
    end_process(main(["--config", *sys.argv[1:]], [Hang()]))
