"""Bash by which a script requeues its own job where Slurm preempts it within a GraceTime.

Slurm warns such a job with TERM and later requeues it. A training that saves and ends before that
is COMPLETED.
"""

from __future__ import annotations

import shlex

from hpcdash.job.preemption import STOPPED_EARLY

_MAX_REQUEUES = 20
# sysexits.h: a failure that another try may mend.
_TRY_AGAIN = 75

_WATCH = """\
# Of a job that ends within the GraceTime of a preemption Slurm says COMPLETED, and does not requeue it. This script
# does where the training has stopped for a signal and saved, and Slurm is preempting the job.
export @STOPPED=@FILE
rm -f -- "$@STOPPED"

# 0: Slurm is preempting this job; 1: it is not; 2: the controller does not answer.
being_preempted() {
  local shown
  shown=$(SLURM_TIME_FORMAT=standard LC_ALL=C timeout -k 5 30 scontrol show job "$job_id" 2>&1) || {
    [[ $shown != *'Invalid job id'* ]] || return 1
    return 2
  }
  [[ $shown == *$'\\n   JobState=RUNNING '* && $shown == *' PreemptTime='[0-9]* ]]
}

requeue_preempted() {
  local job_id newest deadline=$((SECONDS + 600)) restarts=${SLURM_RESTART_COUNT:-0}
  # The embedded queue preempts nothing.
  [ -z "${HPCDASH_ATTEMPT:-}" ] && grep -qs " $SLURM_JOB_ID\\$" "$@STOPPED" || return 0
  @KILLnewest=$(newest_checkpoint)
  [ "$(printf '%s\\n' "$first_checkpoint" "$newest" | sort -rn | head -n 1)" != "$first_checkpoint" ] || return 0
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
      grep -qs "^SIGTERM $SLURM_JOB_ID\\$" "$@STOPPED" || return 0
      echo "hpcdash: stopped for SIGTERM, and the controller does not answer: asks it again in 5 s" >&2
      ;;
    esac
    if [ "$SECONDS" -ge "$deadline" ]; then
      echo "hpcdash: stopped for a signal, and not known to be requeued after 10 minutes: ends with @TRY_AGAIN" >&2
      exit @TRY_AGAIN
    fi
    sleep 5
  done
  if [ "$restarts" -ge @MAX ]; then
    echo "hpcdash: preempted, and not requeued: restarted $restarts times (max_requeues is @MAX)" >&2
    exit @TRY_AGAIN
  fi
  echo "hpcdash: preempted: requeues job $job_id, restart $((restarts + 1)) (max_requeues is @MAX)" >&2
  timeout -k 5 60 scontrol requeue "$job_id" || echo "hpcdash: scontrol requeue $job_id ended with $?" >&2
  exit @TRY_AGAIN
}
"""


def watch_lines(file: str, max_requeues: int | None, *, kill_switch: str = "") -> str:
    """Bash that defines `requeue_preempted`, to be called once the command has ended; it needs
    `newest_checkpoint`.

    `file` is bash for the path of a file that the nodes share and the job can write.
    """
    kill = f"[ ! -e {shlex.quote(kill_switch)} ] || return 0\n  " if kill_switch else ""
    values = {
        "STOPPED": STOPPED_EARLY,
        "FILE": file,
        "TRY_AGAIN": str(_TRY_AGAIN),
        "MAX": str(_MAX_REQUEUES if max_requeues is None else max_requeues),
        "KILL": kill,
    }
    text = _WATCH
    for name, value in values.items():
        text = text.replace(f"@{name}", value)
    return text
