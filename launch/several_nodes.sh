#!/usr/bin/env bash
# Run this on every machine, with a NODE_RANK of its own from 0 to NODES - 1.
#   NODES=2 NODE_RANK=0 MAIN_ADDRESS=10.0.0.1 PROCESSES_PER_NODE=8 STRATEGY=hsdp \
#     CONFIG=configs/train/gpt2.yaml launch/several_nodes.sh [section.key=value ...]
set -euo pipefail
# Paths in CONFIG and in what follows it are those of the caller, who may be anywhere.
root=$(cd "$(dirname "$0")/.." && pwd)

# A job has no login shell that would have activated an environment.
command -v accelerate > /dev/null || PATH=$root/.venv/bin:$PATH

STRATEGY=${STRATEGY:-hsdp}
PROCESSES_PER_NODE=${PROCESSES_PER_NODE:-8}
CONFIG=${CONFIG:-$root/configs/train/gpt2.yaml}
# All machines must name the same port, so none can be picked here.
MAIN_PORT=${MAIN_PORT:-29500}

[ -f "$root/configs/accelerate/$STRATEGY.yaml" ] || {
  names=$(cd "$root" && echo configs/accelerate/*.yaml)
  echo "error: STRATEGY=$STRATEGY has no launch file; there are $names" >&2
  exit 2
}

# `accelerate launch`, which also names whom it waits for, and lets a run save when a signal comes.
exec python -m toolkit.launch.launcher launch \
  --config_file "$root/configs/accelerate/$STRATEGY.yaml" \
  --num_machines "${NODES:?how many machines}" \
  --machine_rank "${NODE_RANK:?this machine, from 0}" \
  --main_process_ip "${MAIN_ADDRESS:?address of machine 0}" \
  --main_process_port "$MAIN_PORT" \
  --num_processes $((NODES * PROCESSES_PER_NODE)) \
  "$root/launch/train.py" --config "$CONFIG" "$@"
