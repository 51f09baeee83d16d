#!/bin/bash
# 2 nodes × 4 GPUs = 8; the command once on each node
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

# What runs on each node:
IFS= read -r -d '' command << 'END_OF_COMMAND'
# TERM is for the programs: this shell ends after them.
trap exit TERM
# USR1 is for the programs: this shell goes on.
trap : USR1
python train.py
END_OF_COMMAND

# The command can `import hpcdash.job` from this zip; job_library = false leaves it out.
export PYTHONPATH=/home/ann/launches/hpcdash_exp-1a2b/hpcdash-job.zip"${PYTHONPATH:+:$PYTHONPATH}"

# When this job's time is over, for hpcdash.job: Slurm is asked once where it does not say so itself.
HPCDASH_END_TIME=${SLURM_JOB_END_TIME:-$(SLURM_TIME_FORMAT=%s timeout 20 squeue --all --noheader --format=%e \
  --jobs="${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}" 2> /dev/null)}
case $HPCDASH_END_TIME in
  '' | *[!0-9]*) HPCDASH_END_TIME=$(($(date +%s) + 3600)) ;;
esac
export HPCDASH_END_TIME HPCDASH_END_TIME_OF="$SLURM_JOB_ID"

# Each start is from the beginning, unless the command itself looks for what it saved. With checkpoints = "FOLDER" in
# the request it is told which checkpoint to go on from: ${HPCDASH_RESUME_FROM:+--resume "$HPCDASH_RESUME_FROM"}

if [ "$SLURM_JOB_NUM_NODES" -ne 2 ]; then
  echo "nodes given: $SLURM_JOB_NUM_NODES, asked for: 2. Not started." >&2
  exit 1
fi

# On each node before the command starts anywhere; where it fails on any the job ends with 1.
IFS= read -r -d '' probe << 'END_OF_PROBE'
nvidia-smi -L > /dev/null &&
  test -d "$DATA"
END_OF_PROBE
# $1 is the node, $2 the text; what it prints is shown with the node's name before it.
IFS= read -r -d '' on_probed << 'END_OF_ON_PROBED'
trap '' USR1
timeout -k 10 300 bash -c "$2" 2>&1 < /dev/null | timeout 320 sed -u "s/^/$1: /" >&2
status=${PIPESTATUS[0]}
step="submit with exclude_nodes = [\"$1\"], or --exclude=$1"
[ "$status" -eq 0 ] || echo "hpcdash: node $1 failed the probe (status $status): $step" >&2
exit "$status"
END_OF_ON_PROBED
# USR1 is for the command, which has not started.
trap '' USR1
# A step of its own, with all of the job's GPUs. On all nodes, whichever fails first.
env -u SLURM_GPUS_PER_TASK -u SLURM_TRES_PER_TASK srun \
  --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --mpi=none \
  --kill-on-bad-exit=0 ${SLURM_CPUS_PER_TASK:+"--cpus-per-task=$SLURM_CPUS_PER_TASK"} \
  bash -c 'exec bash -c "$0" on_probed "${SLURMD_NODENAME:-$HOSTNAME}" "$1"' "$on_probed" "$probe" || exit 1
trap - USR1

# srun's status is to be that of what failed, not 143 of those that it ends for it.
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

# In the background, so that this shell can act on signals meanwhile; $! is known from its first moment.
start_nodes() {
  srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 \
    bash -c "$on_node" on_node bash -c "$command" &
}

# All processes of the step, on every node; by srun itself where the controller does not answer.
signal_nodes() {
  scancel --signal="$1" "$SLURM_JOB_ID.1" || kill -s "$1" "$!"
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

# USR1 comes 600 s before the time limit (Slurm: up to 60 s earlier), to this shell alone.
# It is passed on to the command on all nodes.
pass_on() {
  interrupted=1
  signal_nodes USR1
}
trap pass_on USR1

interrupted=
start_nodes
wait_nodes
exit "$status"
