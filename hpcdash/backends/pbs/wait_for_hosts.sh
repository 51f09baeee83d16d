# The part of a script on several hosts that waits for its commands, signals and ends them.
# shellcheck shell=bash disable=SC2016
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
