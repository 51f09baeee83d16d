#!/bin/bash
# 2 nodes × 1 GPU = 2; one command per node
#PBS -N hpcdash_exp-1a2b
#PBS -o /home/ann/launches/hpcdash_exp-1a2b/job.^array_index^.out
#PBS -e /home/ann/launches/hpcdash_exp-1a2b/job.^array_index^.err
#PBS -J 0-1%1
#PBS -W umask=0022
#PBS -k oed
#PBS -l select=2:ngpus=1
#PBS -l place=scatter
#PBS -l walltime=01:00:00

# shellcheck disable=SC2016,SC2317

cd -- "${PBS_O_WORKDIR:-$HOME}" || exit 1

# Command for each node:
IFS= read -r -d '' command << 'END_OF_COMMAND'
# TERM is meant for the programs: this shell exits after they do.
trap exit TERM
# Calls lab.train:Trainer.fit.
# Its return value is pickled to the output file (FILE.N for rank N > 0); FILE.error (JSON) describes a failure.
host=${NODE_RANK#0}
"$PY_EXEC" -m hpcdash.job.runner --module=lab.train --function=Trainer.fit \
  --kwargs-file=/home/ann/launches/hpcdash_exp-1a2b/call-kwargs.b64 \
  --job-dir=/home/ann/launches/hpcdash_exp-1a2b \
  --pre-submission-id=1a2b \
  --array-items-file=/home/ann/launches/hpcdash_exp-1a2b/call-items.b64 \
  --sys-path='/home/ann/my code' \
  --array-index="$PBS_ARRAY_INDEX" \
  --output-file=/home/ann/launches/hpcdash_exp-1a2b/result-"$PBS_ARRAY_INDEX".pkl"${host:+.$host}" \
  --stdout-path="/home/ann/launches/hpcdash_exp-1a2b/job.$PBS_ARRAY_INDEX.out" \
  --stderr-path="/home/ann/launches/hpcdash_exp-1a2b/job.$PBS_ARRAY_INDEX.err"
END_OF_COMMAND

# The command can `import hpcdash.job` from this zip; job_library = false leaves it out.
export PYTHONPATH=/home/ann/launches/hpcdash_exp-1a2b/hpcdash-job.zip"${PYTHONPATH:+:$PYTHONPATH}"

# When this job's time limit ends it, for hpcdash.job: PBS does not report it.
export HPCDASH_END_TIME=$(($(date +%s) + 3600)) HPCDASH_END_TIME_OF="$PBS_JOBID"

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

# For the command, on every host:
environment=()
passed_on=(
  "PYTHONPATH=$PYTHONPATH"
  "PY_EXEC=$PY_EXEC"
  "HPCDASH_END_TIME=$HPCDASH_END_TIME"
  "HPCDASH_END_TIME_OF=$HPCDASH_END_TIME_OF"
)
arguments=(bash -c "$command")
chunk_slots=1 chunk_lines=1
# PBS_NODEFILE names a host once for each of its chunks, and PBS may put several on one. This host is its first.
hosts=() slots=() all_slots=0
while read -r count host; do
  hosts+=("$host")
  slots+=("$((count * chunk_slots / chunk_lines))")
  all_slots=$((all_slots + count * chunk_slots / chunk_lines))
done < <(awk '!count[$1]++ { order[++n] = $1 } END { for (i = 1; i <= n; i++) print count[order[i]], order[i] }' \
  "$PBS_NODEFILE")

type -P pbs_tmrsh > /dev/null || PATH=$PATH:$(sed -n 's/^PBS_EXEC=//p' "${PBS_CONF_FILE:-/etc/pbs.conf}")/bin

# Starts its arguments on host $1 in a login shell, as PBS starts this script. Nothing else of its environment goes
# along: each variable is written out. PBS's TERM to this script is not for what waits for the host.
login=('cd -- "$0" && exec "$@"' "$PWD")
on_host() {
  local host=$1
  shift
  trap '' TERM
  exec pbs_tmrsh "$host" env "HPCDASH_COMMAND_OF=$PBS_JOBID@$host" "USER=$USER" "LOGNAME=$LOGNAME" \
    bash -l -c "${login[@]}" env "PATH=$PATH" "PBS_JOBID=$PBS_JOBID" \
    ${PBS_ARRAY_INDEX:+"PBS_ARRAY_INDEX=$PBS_ARRAY_INDEX" "PBS_ARRAY_ID=$PBS_ARRAY_ID"} "$@"
}

# One command on each host. The file of PBS_NODEFILE is this host's own; PBS may have put one on others too.
running=()
start_nodes() {
  local rank port=${PBS_JOBID%%[^0-9]*} here=("PBS_NODEFILE=$PBS_NODEFILE")
  port=$((20000 + (port + ${PBS_ARRAY_INDEX:-0}) % 12000))
  for rank in "${!hosts[@]}"; do
    on_host "${hosts[rank]}" "${here[@]}" \
      "NODE_RANK=$rank" "NUM_NODES=${#hosts[@]}" \
      "NODE_SLOTS=${slots[rank]}" "NUM_SLOTS=$all_slots" \
      "MASTER_ADDR=${hosts[0]}" "MASTER_PORT=$port" \
      "${environment[@]}" "${passed_on[@]}" "${arguments[@]}" &
    running+=("$!")
    here=()
  done
}

out=/home/ann/launches/hpcdash_exp-1a2b/"job.$PBS_ARRAY_INDEX".out err=/home/ann/launches/hpcdash_exp-1a2b/"job.$PBS_ARRAY_INDEX".err
# With several hosts PBS's TERM ends what takes their output too, and reaches the commands of the first host alone.
# $1 is the folder, $2 and $3 the logs, $4 the first host, the rest what is started.
IFS= read -r -d '' on_node << 'END_OF_ON_NODE'
cd -- "$1" || exit
out=$2 err=$3 first=$4 watch=
shift 4
if ! [ -S /dev/fd/1 ] || ! pipes=$(mktemp -d) || ! mkfifo "$pipes/out" "$pipes/err" "$pipes/moved"; then
  exec "$@"
fi
exec 3>&1 4>&2 7<> "$pipes/moved"
# Passes a stream on; once nobody takes it any more, into the log itself. TERM has it look for a second: PBS may end
# what takes the output after the commands.
relay() {
  trap : TERM
  trap '' HUP INT QUIT USR1 USR2
  until cat <&0 & wait "$!"; do
    kill "$!"
    read -r -t 1 <&3
    if [ "$?" -le 128 ]; then
      trap '' TERM
      echo >&7
      cat >> "$1"
      return
    fi
  done
}
relay "$out" < "$pipes/out" 2> /dev/null &
relays=("$!")
relay "$err" < "$pipes/err" >&4 2> /dev/null &
relays+=("$!")
exec 5> "$pipes/out" 6> "$pipes/err"
rm -r "$pipes"
if [ "${HPCDASH_COMMAND_OF#*@}" != "$first" ]; then
  (
    trap '' TERM HUP INT QUIT USR1 USR2
    while read -r <&3; do :; done
    # Both write to the logs before a command says that it was asked to end.
    kill "${relays[@]}" && read -r -t 2 <&7 && read -r -t 2 <&7
    grep -lszFx "HPCDASH_COMMAND_OF=$HPCDASH_COMMAND_OF" /proc/[0-9]*/environ | cut -d/ -f3 |
      while read -r pid; do kill -s TERM "$pid"; done
  ) 2> /dev/null 5>&- 6>&- &
  watch=$!
  disown
fi
# Signals are for the command; this shell may have nowhere to write to.
trap : TERM HUP INT QUIT USR1 USR2 PIPE
"$@" >&5 2>&6 3>&- 4>&- 5>&- 6>&- 7>&-
status=$?
exec 5>&- 6>&-
for ((left = 50; left > 0; left--)); do
  kill -0 "${relays[@]}" 2> /dev/null || break
  sleep 0.1
done
[ -z "$watch" ] || kill -s KILL "$watch"
exit "$status"
END_OF_ON_NODE
login=('exec bash -c "$@"' bash "$on_node" on_node "$PWD" "$out" "$err" "${hosts[0]}")

# Every process of the command on every host, found by the variable that it was started with.
signal_nodes() {
  local host senders=()
  for host in "${hosts[@]}"; do
    pbs_tmrsh "$host" bash -c '
      grep -lszFx "HPCDASH_COMMAND_OF=$1" /proc/[0-9]*/environ | cut -d/ -f3 |
        while read -r pid; do kill -s "$0" "$pid" 2>/dev/null; done' "$1" "$PBS_JOBID@$host" &
    senders+=("$!")
  done
  wait "${senders[@]}"
}

# A look each second: `wait -n` is not in every bash, and misses those that ended before it.
wait_nodes() {
  local pid left
  status=0
  while [ "${#running[@]}" -gt 0 ]; do
    left=()
    for pid in "${running[@]}"; do
      if kill -0 "$pid" 2>/dev/null; then
        left+=("$pid")
        continue
      fi
      while :; do
        interrupted=
        status=0
        wait "$pid" || status=$?
        [ -n "$interrupted" ] || break
      done
      if [ "$status" -ne 0 ]; then
        echo "a command on a host ended with $status: all are ended" >&2
        end_nodes "$status" 30
      fi
    done
    running=(${left[@]+"${left[@]}"})
    [ "${#running[@]}" -eq 0 ] || sleep 1
  done
}

# Asks all commands to end, and kills after $2 s those that did not; without it PBS has asked, and kills: some save yet.
end_nodes() {
  trap '' TERM
  [ -z "${2:-}" ] || signal_nodes TERM
  local pid left seconds=0
  while :; do
    left=
    for pid in "${running[@]}"; do
      kill -0 "$pid" 2>/dev/null && left=1
    done
    [ -n "$left" ] || exit "$1"
    [ "$seconds" != "${2:-}" ] || break
    seconds=$((seconds + 1))
    sleep 1
  done
  signal_nodes KILL
  exit "$1"
}
trap 'end_nodes 143' TERM

interrupted=
start_nodes
wait_nodes
exit "$status"
