# `node_step` is the text that runs on each host.
# shellcheck shell=bash
# On all hosts at once; where it fails on any the job ends with 1.
prepare_nodes() {
  local host pid failed='' steps=()
  for host in "${hosts[@]}"; do
    on_host "$host" "${environment[@]}" bash -c "$node_step" node_step "$host" "$@" &
    steps+=("$!")
  done
  # A signal cuts wait short while the step still runs.
  for pid in "${steps[@]}"; do
    while :; do
      interrupted=
      status=0
      wait "$pid" || status=$?
      [ -n "$interrupted" ] || break
    done
    [ "$status" -eq 0 ] || failed=1
  done
  [ -z "$failed" ] || exit 1
}
