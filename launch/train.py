"""The main job, for `accelerate launch --config_file STRATEGY.yaml`; `--help` has the rest."""

import sys

from toolkit.launch.exit_code import end_process
from toolkit.training.worker import main

if __name__ == "__main__":
    end_process(main(sys.argv[1:]))
