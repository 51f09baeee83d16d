# The exported name of a file that the nodes share is set before it; `newest_checkpoint` is called. 75 of sysexits.h: a
# failure that another try may fix.
# shellcheck shell=bash
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
