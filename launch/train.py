"""The main job, for `accelerate launch --config_file STRATEGY.yaml`; `--help` says the rest."""

import sys

from toolkit.training.worker import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
