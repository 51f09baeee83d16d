# A venv of the job's own with one wheel in it, for all tasks of its array. Set before it: `hpcdash_root`, a folder for
# the venv alone on a file system that all nodes share; PY_EXEC, its Python; `hpcdash_wheel`, a file, or `hpcdash_source`,
# the folder of a project; `hpcdash_tasks`, after whose end the venv is removed; `hpcdash_stale`, the seconds after which
# a builder without a sign of life is replaced. mkdir is atomic on every file system, which flock is not. Should two
# build at once, each has a folder of its own and the first link counts.
# shellcheck shell=bash
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
