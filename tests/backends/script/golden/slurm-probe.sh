#!/bin/bash
# 2 nodes × 4 GPUs = 8; one command per node
#SBATCH --job-name=hpcdash_exp-1a2b
#SBATCH --output=/home/ann/launches/hpcdash_exp-1a2b/%j.out
#SBATCH --error=/home/ann/launches/hpcdash_exp-1a2b/%j.err
#SBATCH --gpus=8
#SBATCH --nodes=1-8
#SBATCH --tasks-per-node=1
#SBATCH --gpus-per-task=4
#SBATCH --time=01:00:00
#SBATCH --signal=B:USR1@600
#SBATCH --no-requeue

# shellcheck disable=SC2016,SC2317

# For the command, on every node:
export DATA=/data

# Command for each node:
IFS= read -r -d '' command << 'END_OF_COMMAND'
# TERM is meant for the programs: this shell exits after they do.
trap exit TERM
# USR1 is meant for the programs: this shell keeps running.
trap : USR1
python train.py
END_OF_COMMAND

# The command can `import hpcdash.job` from this zip; job_library = false leaves it out.
export PYTHONPATH=/home/ann/launches/hpcdash_exp-1a2b/hpcdash-job.zip"${PYTHONPATH:+:$PYTHONPATH}"

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

# Each start begins from scratch unless the command itself finds its checkpoint. With checkpoints = "FOLDER" in
# the request, hpcdash sets the checkpoint to resume from: ${HPCDASH_RESUME_FROM:+--resume "$HPCDASH_RESUME_FROM"}

require_nodes() {
  if [ "$SLURM_JOB_NUM_NODES" -ne "$1" ]; then
    echo "nodes given: $SLURM_JOB_NUM_NODES, asked for: $1. Not started." >&2
    exit 1
  fi
}
require_nodes 2

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
IFS= read -r -d '' probe << 'END_OF_PROBE'
nvidia-smi -L > /dev/null &&
  test -d "$DATA"
END_OF_PROBE
prepare_nodes "$probe" 300 USR1 \
  'node NODE failed the probe (status STATUS):' \
  'submit with exclude_nodes = ["NODE"], or --exclude=NODE'

# Report the status of the task that failed, not 143 from the ones srun then terminates.
IFS= read -r -d '' on_node << 'END_OF_ON_NODE'
trap : TERM USR1
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

# In the background, so that this shell can handle signals meanwhile; $! is set as soon as it starts.
start_nodes() {
  srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 \
    bash -c "$on_node" on_node bash -c "$command" &
}

hpcdash_step=1
# All processes of the step, on every node; by srun itself where the controller does not answer.
signal_nodes() {
  scancel --signal="$1" "$SLURM_JOB_ID.$hpcdash_step" || kill -s "$1" "$!"
}

# A signal cuts wait short while the command still runs.
wait_nodes() {
  while :; do
    interrupted=
    status=0
    wait "$!" || status=$?
    [ -n "$interrupted" ] || break
  done
}

# USR1 is sent 600 s before the time limit (Slurm: up to 60 s earlier), only to the batch shell.
# It is passed on to the command on all nodes.
pass_on() {
  interrupted=1
  signal_nodes "$1"
}
trap 'pass_on USR1' USR1

interrupted=
start_nodes
wait_nodes
exit "$status"
