#!/bin/bash
# 1 node × 2 GPUs = 2; one command per node
#PBS -N hpcdash_exp-1a2b
#PBS -o /home/ann/launches/hpcdash_exp-1a2b/job.out
#PBS -e /home/ann/launches/hpcdash_exp-1a2b/job.err
#PBS -r n
#PBS -W umask=0022
#PBS -k oed
#PBS -l select=1:ngpus=2
#PBS -l walltime=01:00:00

# shellcheck disable=SC2016,SC2317

cd -- "${PBS_O_WORKDIR:-$HOME}" || exit 1

# Command for each node:
IFS= read -r -d '' command << 'END_OF_COMMAND'
# TERM is meant for the programs: this shell exits after they do.
trap exit TERM
python3 /home/ann/train.py
END_OF_COMMAND

# Container for the command, $1:
IFS= read -r -d '' in_container << 'END_OF_IN_CONTAINER'
# TERM is meant for the programs: this shell exits after they do.
trap exit TERM
trap 'rm -rf -- "$hpcdash_tmp"' EXIT
for hpcdash_name in DATA; do
  export "APPTAINERENV_$hpcdash_name=${!hpcdash_name}" "SINGULARITYENV_$hpcdash_name=${!hpcdash_name}"
done
export APPTAINERENV_TMPDIR=/tmp SINGULARITYENV_TMPDIR=/tmp
hpcdash_runtime=$(type -P apptainer || type -P singularity) || {
  echo "hpcdash: neither apptainer nor singularity is on $HOSTNAME's PATH; load its module" >&2
  exit 127
}
hpcdash_tmp=$(mktemp -d "${TMPDIR:-/tmp}/hpcdash.XXXXXXXX") || exit
"$hpcdash_runtime" exec --nv --writable-tmpfs --bind "$hpcdash_tmp:/tmp" --bind /data:/d:ro \
  --bind /home/ann/launches/hpcdash_exp-1a2b /images/torch.sif \
  sh -c '# The command can `import hpcdash.job` from this zip; job_library = false leaves it out.
export PYTHONPATH=/home/ann/launches/hpcdash_exp-1a2b/hpcdash-job.zip"${PYTHONPATH:+:$PYTHONPATH}"
echo "hpcdash: the container is up on $(hostname 2>/dev/null || echo "$HOSTNAME")" >&2
exec "$@"' \
  sh bash -c "$1"
END_OF_IN_CONTAINER

# When this job's time limit ends it, for hpcdash.job: PBS does not report it.
export HPCDASH_END_TIME=$(($(date +%s) + 3600)) HPCDASH_END_TIME_OF="$PBS_JOBID"

# For the command, on every host:
environment=(
  DATA=/d
)
passed_on=(
  "HPCDASH_END_TIME=$HPCDASH_END_TIME"
  "HPCDASH_END_TIME_OF=$HPCDASH_END_TIME_OF"
)
arguments=(bash -c "$in_container" in_container "$command")
chunk_slots=2 chunk_lines=1
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
