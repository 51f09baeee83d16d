# shellcheck shell=bash
# The launchers that need it start as many ranks on each node.
require_even_slots() {
  local count
  for count in "${slots[@]}"; do
    if [ "$count" -ne "${slots[0]}" ]; then
      echo "the hosts have slots in different numbers (${slots[*]}), which $1 cannot use: not started" >&2
      exit 1
    fi
  done
}
