"""The main job: `accelerate launch --config_file STRATEGY.yaml launch/train.py --config RUN.yaml`."""

import sys

from toolkit.training.worker import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
