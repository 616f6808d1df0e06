#!/usr/bin/env bash
# One machine: every GPU of it, or a few CPU processes.
#   STRATEGY=zero2 PROCESSES=8 CONFIG=configs/train/gpt2.yaml launch/one_node.sh [section.key=value ...]
set -euo pipefail
# Paths in CONFIG and in what follows it are those of the caller, who may be anywhere.
root=$(cd "$(dirname "$0")/.." && pwd)

STRATEGY=${STRATEGY:-fsdp2}
PROCESSES=${PROCESSES:-2}
CONFIG=${CONFIG:-$root/configs/train/demo.yaml}

[ -f "$root/configs/accelerate/$STRATEGY.yaml" ] || {
  names=$(cd "$root" && echo configs/accelerate/*.yaml)
  echo "error: STRATEGY=$STRATEGY has no launch file; there are $names" >&2
  exit 2
}

# These let a run save and end; it has two minutes for that.
export PET_SIGNALS_TO_HANDLE=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1,SIGUSR2
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=${TORCH_ELASTIC_SHUTDOWN_TIMEOUT:-120}

exec accelerate launch \
  --config_file "$root/configs/accelerate/$STRATEGY.yaml" \
  --num_processes "$PROCESSES" \
  "$root/launch/train.py" --config "$CONFIG" "$@"
