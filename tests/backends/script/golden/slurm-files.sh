#!/bin/bash
# 2 nodes × 4 GPUs = 8; deepspeed on each node
#SBATCH --job-name=hpcdash_exp-1a2b
#SBATCH --output=/home/ann/launches/hpcdash_exp-1a2b/%j.out
#SBATCH --error=/home/ann/launches/hpcdash_exp-1a2b/%j.err
#SBATCH --gpus=8
#SBATCH --nodes=1-8
#SBATCH --tasks-per-node=1
#SBATCH --gpus-per-task=4
#SBATCH --time=01:00:00
#SBATCH --chdir=/home/ann/launches/hpcdash_exp-1a2b/code
#SBATCH --begin=2026-12-01T08:00:00
#SBATCH --no-requeue

# shellcheck disable=SC2016,SC2317

# For the command, on every node:
export DATA=/data

# Command for each node:
IFS= read -r -d '' command << 'END_OF_COMMAND'
# TERM is meant for the programs: this shell exits after they do.
trap exit TERM
. /home/ann/launches/hpcdash_exp-1a2b/secrets.sh || exit
ranks=$(seq -s , 0 "$((4 - 1))")
world=$(for node in $(seq "$SLURM_JOB_NUM_NODES"); do printf ',"n%s":[%s]' "$node" "$ranks"; done)
world=$(printf '{%s}' "${world#,}" | base64 | tr -d '\n' | tr '+/' '-_')
python -m deepspeed.launcher.launch \
  --world_info="$world" --node_rank="$SLURM_PROCID" \
  --master_addr="$MASTER_ADDR" --master_port="$MASTER_PORT" \
  train.py --lr 1e-3
END_OF_COMMAND

# The command can `import hpcdash.job` from this zip; job_library = false leaves it out.
export PYTHONPATH=/home/ann/launches/hpcdash_exp-1a2b/hpcdash-job.zip"${PYTHONPATH:+:$PYTHONPATH}"

# Writes what is installed where this starts into the launch's folder $1, if there is no list yet: that of the first of
# the Pythons $3… in the PATH $2.
note_packages() (
  cd -- "$1" || exit 0
  [ ! -e packages.txt ] || exit 0
  path=$2
  shift 2
  timeout -k 5 30 "$(PATH=${path:-$PATH} type -P "$@" | head -n 1)" -c '
import json, os, pathlib, sys
from importlib import metadata
found = set()
for package in metadata.distributions():
    commit = json.loads(package.read_text("direct_url.json") or "{}").get("vcs_info", {}).get("commit_id", "")
    found.add("%s==%s%s" % (package.metadata["Name"], package.version, commit and "  # " + commit))
print("python==%s" % sys.version.split()[0], *sorted(found), sep="\n")
for file in sorted(pathlib.Path(os.environ.get("CONDA_PREFIX", "/-"), "conda-meta").glob("*.json")):
    print("conda " + file.stem)
' | head -c 262144 > "packages.txt.$$"
  if [ -s "packages.txt.$$" ]; then mv -- "packages.txt.$$" packages.txt; else rm -f -- "packages.txt.$$"; fi
) < /dev/null > /dev/null 2>&1
note_packages /home/ann/launches/hpcdash_exp-1a2b '' python python3

# When this job's time is over, for hpcdash.job: Slurm is queried once where it does not report it itself, and without
# an answer it is the start plus the limit of $1 seconds, or unknown.
set_end_time() {
  export HPCDASH_END_TIME HPCDASH_END_TIME_OF="$SLURM_JOB_ID"
  HPCDASH_END_TIME=${SLURM_JOB_END_TIME:-$(SLURM_TIME_FORMAT=%s timeout 20 squeue --all --noheader --format=%e \
    --jobs="${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}" 2> /dev/null)}
  case $HPCDASH_END_TIME in
    '' | *[!0-9]*) HPCDASH_END_TIME=${1:+$(($(date +%s) + $1))} ;;
  esac
}
set_end_time 3600

require_nodes() {
  if [ "$SLURM_JOB_NUM_NODES" -ne "$1" ]; then
    echo "nodes given: $SLURM_JOB_NUM_NODES, asked for: $1. Not started." >&2
    exit 1
  fi
}
require_nodes 2
# Where the ranks meet: the first node, on a port of this job's own.
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_PORT=$((20000 + SLURM_JOB_ID % 12000))
export MASTER_ADDR MASTER_PORT

# Runs on a node: $1 is its name, $2 the text, $3 its limit in seconds, $4 the early signal, which is for the command,
# and the rest what to report of a failure. Output is shown with the node's name before it.
IFS= read -r -d '' node_step << 'END_OF_NODE_STEP'
[ -z "$4" ] || trap '' "$4"
timeout -k 10 "$3" bash -c "$2" 2>&1 < /dev/null | timeout "$(($3 + 20))" sed -u "s/^/$1: /" >&2
status=${PIPESTATUS[0]}
node=$1
shift 4
report=${*//NODE/$node}
[ "$status" -eq 0 ] || echo "hpcdash: ${report/STATUS/$status}" >&2
exit "$status"
END_OF_NODE_STEP
# A step of its own, with all of the job's GPUs. On all nodes, whichever fails first; then the job ends with 1.
prepare_nodes() {
  [ -z "$3" ] || trap '' "$3"
  env -u SLURM_GPUS_PER_TASK -u SLURM_TRES_PER_TASK srun \
    --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --mpi=none \
    --kill-on-bad-exit=0 ${SLURM_CPUS_PER_TASK:+"--cpus-per-task=$SLURM_CPUS_PER_TASK"} \
    bash -c 'exec bash -c "$0" node_step "${SLURMD_NODENAME:-$HOSTNAME}" "$@"' "$node_step" "$@" || exit 1
  [ -z "$3" ] || trap - "$3"
}

# Runs on each node before the command starts anywhere; if it fails on any node, the job exits with 1.
IFS= read -r -d '' hook << 'END_OF_HOOK'
. /home/ann/launches/hpcdash_exp-1a2b/secrets.sh
module load cuda
pip install --user -r requirements.txt
END_OF_HOOK
prepare_nodes "$hook" 3600 '' \
  'the startup hook failed on node NODE (status STATUS)'

# Report the status of the task that failed, not 143 from the ones srun then terminates.
IFS= read -r -d '' on_node << 'END_OF_ON_NODE'
trap : TERM
"$@"
status=$?
[ "$status" -ne 143 ] || status=1
exit "$status"
END_OF_ON_NODE

# What fails on one node ends all.
export SLURM_KILL_BAD_EXIT=1
export SLURM_MPI_TYPE="${SLURM_MPI_TYPE:-pmi2}"
# srun takes no CPUs a task from the job by itself, since 22.05.
[ -z "${SLURM_CPUS_PER_TASK:-}" ] || export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"

srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 \
  --wait=60 --kill-on-bad-exit=1 \
  bash -c "$on_node" on_node bash -c "$command"
