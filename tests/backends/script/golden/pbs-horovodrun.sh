#!/bin/bash
# 2 nodes × 4 GPUs = 8; horovodrun with one rank per slot
#PBS -N hpcdash_exp-1a2b
#PBS -o /home/ann/launches/hpcdash_exp-1a2b/job.out
#PBS -e /home/ann/launches/hpcdash_exp-1a2b/job.err
#PBS -r n
#PBS -W umask=0022
#PBS -k oed
#PBS -l select=2:ngpus=4:mpiprocs=4
#PBS -l place=scatter
#PBS -l walltime=01:00:00

# shellcheck disable=SC2016,SC2317

cd -- "${PBS_O_WORKDIR:-$HOME}" || exit 1

# Command that runs once, on the first node:
IFS= read -r -d '' command << 'END_OF_COMMAND'
# TERM is meant for the programs: this shell exits after they do.
trap exit TERM
[ "$NODE_RANK" = 0 ] || exit 0
horovodrun -np 8 -H "$(sort "$PBS_NODEFILE" | uniq -c | awk '{ print $2 ":" $1 }' | paste -s -d , -)" \
  python train.py
END_OF_COMMAND

# The command can `import hpcdash.job` from this zip; job_library = false leaves it out.
export PYTHONPATH=/home/ann/launches/hpcdash_exp-1a2b/hpcdash-job.zip"${PYTHONPATH:+:$PYTHONPATH}"

# When this job's time limit ends it, for hpcdash.job: PBS does not report it.
export HPCDASH_END_TIME=$(($(date +%s) + 3600)) HPCDASH_END_TIME_OF="$PBS_JOBID"

# For the command, on every host:
environment=()
passed_on=(
  "PYTHONPATH=$PYTHONPATH"
  "HPCDASH_END_TIME=$HPCDASH_END_TIME"
  "HPCDASH_END_TIME_OF=$HPCDASH_END_TIME_OF"
)
arguments=(bash -c "$command")
chunk_slots=4 chunk_lines=4
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

out=/home/ann/launches/hpcdash_exp-1a2b/job.out err=/home/ann/launches/hpcdash_exp-1a2b/job.err
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
