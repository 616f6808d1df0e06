#!/usr/bin/env bash
# One machine: every GPU of it, or a few CPU processes.
#   STRATEGY=zero2 PROCESSES=8 CONFIG=configs/train/gpt2.yaml launch/one_node.sh [section.key=value ...]
set -euo pipefail
cd "$(dirname "$0")/.."

STRATEGY=${STRATEGY:-fsdp2}
PROCESSES=${PROCESSES:-2}
CONFIG=${CONFIG:-configs/train/demo.yaml}

[ -f "configs/accelerate/$STRATEGY.yaml" ] || {
  echo "error: STRATEGY=$STRATEGY has no launch file; there are" configs/accelerate/*.yaml >&2
  exit 2
}

# These let a run save and end; it has two minutes for that.
export PET_SIGNALS_TO_HANDLE=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1,SIGUSR2
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=${TORCH_ELASTIC_SHUTDOWN_TIMEOUT:-120}

exec accelerate launch \
  --config_file "configs/accelerate/$STRATEGY.yaml" \
  --num_processes "$PROCESSES" \
  launch/train.py --config "$CONFIG" "$@"
