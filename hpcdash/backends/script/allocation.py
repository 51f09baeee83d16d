"""Allocation for runs: a batch script that runs them from a spool folder, one at a time."""

from __future__ import annotations

import shlex

from msgspec import Struct

# The kind of its request, and what is staged with its script; runs are folders below RUNS_FOLDER of
# its launch.
KIND = "allocation"
MARKER_NAME = "allocation"
RUNS_FOLDER = "runs"
RUN_SCRIPT = "batch.sh"
STARTED_NAME, ENDED_NAME = "started", "ended"
# No run is taken any more where this is in the spool.
CLOSED_NAME = "closed"
STDOUT_NAME, STDERR_NAME = "out", "err"


class Waiting(Struct, frozen=True):
    """Idle limit of an allocation, after which it ends; None: only at its time limit."""

    idle_seconds: int | None = None


# Each run is one folder, moved there by a rename as a whole; names sort in the order of the runs.
# Anyone else with write access to the spool could plant one.
_WAIT = r"""
# Runs come into this folder, and are run here one after another.
runs={runs}
umask 077
[ -d "$runs" ] || mkdir -m 700 -- "$runs" || exit 1
cd -P -- "$runs" || exit 1
if [ ! -O . ] || [ -n "$(find . -prune '(' -perm -020 -o -perm -002 ')')" ]; then
  echo "hpcdash: $runs is not yours alone: nothing is run from it" >&2
  exit 1
fi
run=
trap '[ -z "$run" ] || kill -TERM "$run"; exit 143' TERM INT HUP
echo "hpcdash: waiting for runs: hpcdash submit REQUEST.toml --in {name}"
used_at=$(date +%s)
# Sets `next` to the first run that has not started.
look() {{
  for next in [0-9]*; do
    [ ! -d "$next" ] || [ -L "$next" ] || [ ! -O "$next" ] || [ -e "$next/{started}" ] || return 0
  done
  next=
}}
rm -f -- {closed}
while :; do
  look
  if [ -n "$next" ]; then
    date +%s > "$next/{started}"
    echo "hpcdash: run $next starts"
    (cd -- "$work" 2>/dev/null || cd || exit; exec bash "$runs/$next/{script}") \
      > "$next/{stdout}" 2> "$next/{stderr}" < /dev/null &
    run=$! status=0
    wait "$run" || status=$?
    run='' used_at=$(date +%s)
    echo "$status $used_at" > "$next/.{ended}" && mv -- "$next/.{ended}" "$next/{ended}"
    echo "hpcdash: run $next ended with $status"
    continue
  fi
{idle}  # In the background, for a signal to end it at once.
  sleep {pause} &
  wait "$!"
done
"""
# `in_use` ends with 0 where something runs in the allocation, 1 where nothing does, 2 where that is
# not known; `gpu_use` prints the use of each GPU in percent.
_IDLE = r"""
  now=$(date +%s)
  if [ "$((now - looked_at))" -ge {every} ]; then
    looked_at=$now
    if in_use; then used_at=$now
    elif [ "$?" -ne 1 ]; then used_at=$now; unknown="whether anything runs in it"
{gpus}    fi
    [ -z "$unknown" ] || [ -n "$said" ] || echo "hpcdash: it is not ended for being idle: $unknown is not known" >&2
    [ -z "$unknown" ] || said=1
    unknown=''
    if [ "$((now - used_at))" -ge {idle} ]; then
      # Nothing is taken any more; what came a moment ago is run.
      : > {closed}
      sleep 3
      look
      if [ -z "$next" ]; then
        echo "hpcdash: nothing was run in it for {idle} s, and the allocation ends (--idle-limit)"
        exit 0
      fi
      rm -f -- {closed}
    fi
  fi
"""
_GPUS = r"""
    else
      use=$(gpu_use 2>/dev/null | tr -d ' \t\r') || use=''
      case $use in '' | *[!0-9.$'\n']*) used_at=$now unknown="what its GPUs do" ;; *[1-9]*) used_at=$now ;; esac
"""
# A shell or a command beside the job is in another session, with the job's own variable.
BESIDE = r"""
beside() {
  own=$(cut -d ' ' -f 6 < "/proc/$$/stat" 2>/dev/null) && [ -n "$own" ] || return 2
  while IFS= read -r of; do
    of=${of%/environ}
    [ -O "$of" ] || continue
    its=$(sed 's/.*) //' < "$of/stat" | cut -d ' ' -f 4)
    [ -z "$its" ] || [ "$its" = "$own" ] || return 0
  done 2>/dev/null < <(grep -lszFx -e "$1" /proc/[0-9]*/environ)
  return 1
}
"""
NVIDIA = "nvidia-smi --query-gpu=utilization.gpu --format=csv,noheader,nounits"


def waiting_part(
    folder: str,
    waiting: Waiting,
    *,
    name: str,
    work_dir: str,
    in_use: str,
    gpu_use: str,
    counts_gpus: bool,
) -> str:
    """Bash that waits for runs in `folder`, which is the launch's, and runs them in `work_dir` ('':
    where it is).

    `in_use` and `gpu_use` are bash that defines the functions of these names; `name` is bash for
    the job's id.
    """
    idle, functions, pause = "", "", 2
    if waiting.idle_seconds is not None:
        every = max(1, min(60, waiting.idle_seconds // 4))
        pause = min(pause, every)
        gpus = _GPUS.removeprefix("\n") if counts_gpus else ""
        idle = _IDLE.format(
            closed=CLOSED_NAME, every=every, idle=waiting.idle_seconds, gpus=gpus
        ).lstrip("\n")
        functions = (
            f"{in_use.strip()}\n{gpu_use.strip()}\nsaid='' unknown='' looked_at=$(date +%s)\n"
        )
    wait = _WAIT.format(
        runs=shlex.quote(f"{folder}/{RUNS_FOLDER}"),
        name=name,
        idle=idle,
        pause=pause,
        started=STARTED_NAME,
        closed=CLOSED_NAME,
        ended=ENDED_NAME,
        script=RUN_SCRIPT,
        stdout=STDOUT_NAME,
        stderr=STDERR_NAME,
    )
    return f"{functions}work={shlex.quote(work_dir) if work_dir else '$PWD'}\n{wait.lstrip()}"
