#!/usr/bin/env bash
# What each pod of launch/kubernetes/jobset.yaml runs, as the container's first process: its place
# among the machines is its index in the job, and machine 0's address is the name of pod 0.
#   NODES=2 MAIN_ADDRESS=gpt2-machine-0-0.gpt2 CONFIG=/data/run.yaml entrypoint.sh [section.key=value ...]
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)

# The first process of a container is ended by a signal only where it handles it.
trap 'echo "error: stopped before the run was started; start it again" >&2; exit 75' TERM INT

export NODES=${NODES:-1}
export NODE_RANK=${NODE_RANK:-${JOB_COMPLETION_INDEX:?the pod of a job that is not Indexed}}
export MAIN_ADDRESS=${MAIN_ADDRESS:-localhost}

# A pod has its name once it is placed, which may take longer than for this one.
seconds=${ADDRESS_TIMEOUT_S:-600}
until getent hosts "$MAIN_ADDRESS" > /dev/null; do
  if [ "$SECONDS" -ge "$seconds" ]; then
    echo "error: MAIN_ADDRESS=$MAIN_ADDRESS is no known name after $seconds s" >&2
    exit 4
  fi
  sleep 1
done

trap - TERM INT
exec "$root/launch/several_nodes.sh" "$@"
