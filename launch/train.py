"""The main job, for `accelerate launch --config_file STRATEGY.yaml`; `--help` says the rest."""

import sys

from toolkit.training.worker import end_process, main

if __name__ == "__main__":
    end_process(main(sys.argv[1:]))
