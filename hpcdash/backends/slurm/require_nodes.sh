# shellcheck shell=bash
require_nodes() {
  if [ "$SLURM_JOB_NUM_NODES" -ne "$1" ]; then
    echo "nodes given: $SLURM_JOB_NUM_NODES, asked for: $1. Not started." >&2
    exit 1
  fi
}
