#!/bin/bash
# 2 nodes × 1 GPU = 2; one command per node
#SBATCH --job-name=hpcdash_exp-1a2b
#SBATCH --output=/home/ann/launches/hpcdash_exp-1a2b/%A_%a.out
#SBATCH --error=/home/ann/launches/hpcdash_exp-1a2b/%A_%a.err
#SBATCH --gpus=2
#SBATCH --nodes=1-2
#SBATCH --tasks-per-node=1
#SBATCH --gpus-per-task=1
#SBATCH --time=01:00:00
#SBATCH --array=0-1%1
#SBATCH --no-requeue

# shellcheck disable=SC2016,SC2317

# Command for each node:
IFS= read -r -d '' command << 'END_OF_COMMAND'
# TERM is meant for the programs: this shell exits after they do.
trap exit TERM
# Calls lab.train:Trainer.fit.
# Its return value is pickled to the output file (FILE.N for rank N > 0); FILE.error (JSON) describes a failure.
"$PY_EXEC" -m hpcdash.job.runner --module=lab.train --function=Trainer.fit \
  --kwargs-file=/home/ann/launches/hpcdash_exp-1a2b/call-kwargs.b64 \
  --job-dir=/home/ann/launches/hpcdash_exp-1a2b \
  --pre-submission-id=1a2b \
  --array-items-file=/home/ann/launches/hpcdash_exp-1a2b/call-items.b64 \
  --sys-path='/home/ann/my code' \
  --array-index="$SLURM_ARRAY_TASK_ID" \
  --output-file=/home/ann/launches/hpcdash_exp-1a2b/result-"$SLURM_ARRAY_TASK_ID".pkl \
  --stdout-path="/home/ann/launches/hpcdash_exp-1a2b/${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID.out" \
  --stderr-path="/home/ann/launches/hpcdash_exp-1a2b/${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID.err"
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

require_nodes() {
  if [ "$SLURM_JOB_NUM_NODES" -ne "$1" ]; then
    echo "nodes given: $SLURM_JOB_NUM_NODES, asked for: $1. Not started." >&2
    exit 1
  fi
}
require_nodes 2

# /home/ann/dist/lab-1.0-py3-none-any.whl in this job's own venv, built once before anything starts on the nodes.
PY_EXEC=python3 hpcdash_root=/home/ann/launches/hpcdash_exp-1a2b/env
hpcdash_wheel=/home/ann/dist/lab-1.0-py3-none-any.whl hpcdash_source=''
hpcdash_tasks=2 hpcdash_stale=180
hpcdash_beat=
hpcdash_me="$HOSTNAME.$$.$RANDOM"
hpcdash_mine="$hpcdash_root/venv.$hpcdash_me"
hpcdash_venv="$hpcdash_root/venv"
hpcdash_lock="$hpcdash_root/lock"
hpcdash_done="$hpcdash_root/done.${SLURM_ARRAY_TASK_ID:-${PBS_ARRAY_INDEX:-${PBS_ARRAYID:-}}}"
hpcdash_finish() {
  set +e
  [ -z "$hpcdash_beat" ] || hpcdash_unlock
  if [ "$(readlink -- "$hpcdash_venv")" != "$hpcdash_mine" ]; then rm -rf -- "$hpcdash_mine"; fi
  : > "$hpcdash_done"
  set -- "$hpcdash_root"/done.*
  [ "$#" -ge "$hpcdash_tasks" ] || return 0
  rm -f -- "$hpcdash_venv"
  rm -rf -- "$hpcdash_root"/venv.* "$hpcdash_lock"
  rm -f -- "$hpcdash_root"/done.*
  rmdir -- "$hpcdash_root" 2>/dev/null
}
trap hpcdash_finish EXIT
mkdir -p -- "$hpcdash_root" || exit 1
rm -f -- "$hpcdash_done"

hpcdash_build() {
  "$PY_EXEC" -m pip wheel --quiet --disable-pip-version-check --no-deps "$@" \
    --wheel-dir "$hpcdash_mine/wheel" -- "$hpcdash_source"
}
# PYTHONPATH would have pip take a package for installed.
hpcdash_install() {
  rm -rf -- "$hpcdash_mine" || return
  "$PY_EXEC" -m venv "$hpcdash_mine" || return
  if [ -n "$hpcdash_source" ]; then
    hpcdash_build --no-build-isolation || {
      echo "hpcdash: building again, with build dependencies from pip" >&2
      hpcdash_build || return
    }
    set -- "$hpcdash_mine"/wheel/*.whl
    hpcdash_wheel=$1
  fi
  PYTHONPATH='' "$hpcdash_mine/bin/python" -m pip install --quiet --disable-pip-version-check --no-input \
    -- "$hpcdash_wheel" && : > "$hpcdash_mine/hpcdash-packaged"
}
hpcdash_unlock() {
  [ -z "$hpcdash_beat" ] || kill "$hpcdash_beat" 2>/dev/null || :
  hpcdash_beat=
  if rm -- "$hpcdash_lock/$hpcdash_me" 2>/dev/null; then rmdir -- "$hpcdash_lock" 2>/dev/null || :; fi
}
hpcdash_last=
hpcdash_still=0
hpcdash_refused=0
until [ -e "$hpcdash_venv/pyvenv.cfg" ]; do
  if mkdir -- "$hpcdash_lock" 2>/dev/null; then
    : > "$hpcdash_lock/$hpcdash_me"
    (while sleep 5 && kill -0 "$$"; do touch -c -- "$hpcdash_lock"; done) > /dev/null 2>&1 < /dev/null &
    hpcdash_beat=$!
    if [ ! -e "$hpcdash_venv/pyvenv.cfg" ]; then
      rm -f -- "$hpcdash_venv"
      if ! hpcdash_install; then
        echo "hpcdash: could not create the job's environment in $hpcdash_mine on $HOSTNAME" >&2
        exit 1
      fi
      ln -sT -- "$hpcdash_mine" "$hpcdash_venv" 2>/dev/null || rm -rf -- "$hpcdash_mine"
    fi
    hpcdash_unlock
  elif hpcdash_now=$(stat -c '%i %y' -- "$hpcdash_lock" 2>/dev/null); then
    hpcdash_refused=0
    if [ "$hpcdash_now" != "$hpcdash_last" ]; then
      hpcdash_last=$hpcdash_now
      hpcdash_still=0
    elif [ "$((hpcdash_still += 1))" -ge "$hpcdash_stale" ]; then
      echo "hpcdash: the owner of $hpcdash_lock is not alive; removing the lock" >&2
      rm -rf -- "$hpcdash_lock"
      hpcdash_still=0
    fi
    sleep 1
  elif [ "$((hpcdash_refused += 1))" -gt 5 ]; then
    echo "hpcdash: cannot create $hpcdash_lock: check that $hpcdash_root is writable and within quota" >&2
    exit 1
  fi
done
PY_EXEC="$(readlink -- "$hpcdash_venv")/bin/python"
export PY_EXEC

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
  bash -c "$on_node" on_node bash -c "$command"
