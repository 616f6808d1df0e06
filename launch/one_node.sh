#!/usr/bin/env bash
# One machine: every GPU of it, or a few CPU processes.
#   STRATEGY=zero2 PROCESSES=8 CONFIG=configs/train/gpt2.yaml launch/one_node.sh [section.key=value ...]
set -euo pipefail
# Paths that a person gives are relative to where that person is, so nothing changes folder here.
ROOT=$(cd "$(dirname "$0")/.." && pwd)

STRATEGY=${STRATEGY:-fsdp2}
PROCESSES=${PROCESSES:-2}
CONFIG=${CONFIG:-$ROOT/configs/train/demo.yaml}

LAUNCH_FILE=$ROOT/configs/accelerate/$STRATEGY.yaml
[ -f "$LAUNCH_FILE" ] || {
  echo "error: STRATEGY=$STRATEGY has no launch file; there are" $(cd "$ROOT/configs/accelerate" && echo *.yaml) >&2
  exit 2
}

# SIGUSR1, too, lets a run save and end; it has two minutes for that.
export PET_SIGNALS_TO_HANDLE=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=${TORCH_ELASTIC_SHUTDOWN_TIMEOUT:-120}

exec accelerate launch \
  --config_file "$LAUNCH_FILE" \
  --num_processes "$PROCESSES" \
  "$ROOT/launch/train.py" --config "$CONFIG" "$@"
