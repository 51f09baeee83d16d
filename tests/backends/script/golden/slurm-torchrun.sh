#!/bin/bash
# 2 nodes × 4 GPUs = 8; torchrun on each node
#SBATCH --job-name=hpcdash_exp-1a2b
#SBATCH --output=/home/ann/launches/hpcdash_exp-1a2b/%j.out
#SBATCH --error=/home/ann/launches/hpcdash_exp-1a2b/%j.err
#SBATCH --partition=gpu
#SBATCH --gpus=8
#SBATCH --nodes=1-8
#SBATCH --tasks-per-node=1
#SBATCH --gpus-per-task=4
#SBATCH --time=20:00:00
#SBATCH --mem=64G
#SBATCH --account=vision
#SBATCH --chdir="/home/ann/my work"
#SBATCH --signal=B:USR1@600
#SBATCH --requeue
#SBATCH --open-mode=append

# shellcheck disable=SC2016,SC2317

# For the command, on every node:
export NOTE='it'"'"'s a $HOME'
export DATA=/data
export HPCDASH_KILL_SWITCH=/home/ann/KILL
export HPCDASH_SAVE_SWITCH=/home/ann/SAVE

# Command for each node:
IFS= read -r -d '' command << 'END_OF_COMMAND'
# TERM is meant for the programs: this shell exits after they do.
trap exit TERM
# USR1 would end torchrun; the ranks install their own handlers.
trap '' USR1
torchrun \
  --nnodes="$SLURM_JOB_NUM_NODES" --nproc-per-node=4 --node-rank="$SLURM_PROCID" \
  --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" \
  train.py --lr 1e-3
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
set_end_time 72000

# Where this start resumes: the newest complete checkpoint in this folder, '' if there is none.
# A command can use it as ${HPCDASH_RESUME_FROM:+--resume "$HPCDASH_RESUME_FROM"}
export HPCDASH_CHECKPOINTS='/home/ann/my runs/llm' HPCDASH_RESUME_FROM
newest_checkpoint() {
  cd -- "$HPCDASH_CHECKPOINTS" && find -L . -mindepth 1 -maxdepth 2 ! -path './.*' \
    \( -path './*/WHOLE.json' -o -path './checkpoint-*/trainer_state.json' -o -path './*/.metadata' \
    -o -path ./guard.ckpt \) \
    -printf '%T@ %P\n' | sort -rn | head -n 1
}
hpcdash_first_checkpoint=$(mkdir -p -- "$HPCDASH_CHECKPOINTS" && [ -w "$HPCDASH_CHECKPOINTS" ] && newest_checkpoint) || {
  echo "hpcdash: cannot save checkpoints in $HPCDASH_CHECKPOINTS: ending the job" >&2
  exit 1
}
HPCDASH_RESUME_FROM=${hpcdash_first_checkpoint#* }
HPCDASH_RESUME_FROM=${HPCDASH_RESUME_FROM:+$HPCDASH_CHECKPOINTS/${HPCDASH_RESUME_FROM%/*}}
if [ "$HPCDASH_RESUME_FROM" ]; then
  echo "hpcdash: resuming from $HPCDASH_RESUME_FROM" >&2
else
  echo "hpcdash: starting over: no complete checkpoint in $HPCDASH_CHECKPOINTS" >&2
fi

export HPCDASH_STOPPED_EARLY=/home/ann/launches/hpcdash_exp-1a2b/$SLURM_JOB_ID.stopped
# Of a job that ends within the GraceTime of a preemption Slurm says COMPLETED, and does not requeue it. This script
# does where the training has stopped for a signal and saved, and Slurm is preempting the job.
rm -f -- "$HPCDASH_STOPPED_EARLY"

# 0: Slurm is preempting this job; 1: it is not; 2: the controller does not answer.
being_preempted() {
  local shown
  shown=$(SLURM_TIME_FORMAT=standard LC_ALL=C timeout -k 5 30 scontrol show job "$job_id" 2>&1) || {
    [[ $shown != *'Invalid job id'* ]] || return 1
    return 2
  }
  [[ $shown == *$'\n   JobState=RUNNING '* && $shown == *' PreemptTime='[0-9]* ]]
}

# Restarts the job $1 times at most, and not where the kill switch $2, if any, is set.
requeue_preempted() {
  local job_id newest deadline=$((SECONDS + 600)) restarts=${SLURM_RESTART_COUNT:-0}
  # The embedded queue preempts nothing.
  [ -z "${HPCDASH_ATTEMPT:-}" ] && grep -qs " $SLURM_JOB_ID\$" "$HPCDASH_STOPPED_EARLY" || return 0
  [ -z "$2" ] || [ ! -e "$2" ] || return 0
  newest=$(newest_checkpoint)
  [ "$(printf '%s\n' "$hpcdash_first_checkpoint" "$newest" | sort -rn | head -n 1)" != "$hpcdash_first_checkpoint" ] || return 0
  job_id=${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}
  while :; do
    being_preempted
    case $? in
    0)
      # Slurm requeues a heterogeneous job as a whole, at the end of the GraceTime.
      [ -n "${SLURM_HET_SIZE:-}" ] || break
      ;;
    1) return 0 ;;
    2)
      grep -qs "^SIGTERM $SLURM_JOB_ID\$" "$HPCDASH_STOPPED_EARLY" || return 0
      echo "hpcdash: stopped for SIGTERM; the controller does not respond: retrying in 5 s" >&2
      ;;
    esac
    if [ "$SECONDS" -ge "$deadline" ]; then
      echo "hpcdash: stopped for a signal; requeue not confirmed after 10 minutes: exiting with 75" >&2
      exit 75
    fi
    sleep 5
  done
  if [ "$restarts" -ge "$1" ]; then
    echo "hpcdash: preempted, not requeued: restarted $restarts times (max_requeues is $1)" >&2
    exit 75
  fi
  echo "hpcdash: preempted: requeues job $job_id, restart $((restarts + 1)) (max_requeues is $1)" >&2
  timeout -k 5 60 scontrol requeue "$job_id" || echo "hpcdash: scontrol requeue $job_id exited with $?" >&2
  exit 75
}

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
    --wait=60 --kill-on-bad-exit=1 \
    bash -c "$on_node" on_node bash -c "$command" &
}

hpcdash_step=0
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
trap '' USR1
requeue_preempted 20 /home/ann/KILL
exit "$status"
