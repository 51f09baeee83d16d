# The hosts of a job, and one command on each. Set before it: the arrays `environment` and `passed_on` of NAME=VALUE, and
# `arguments` of the command; `chunk_slots`, the slots of a chunk, and `chunk_lines`, how often each is in PBS_NODEFILE.
# shellcheck shell=bash disable=SC2016
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
