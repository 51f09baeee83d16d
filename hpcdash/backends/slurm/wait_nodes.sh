# shellcheck shell=bash
# A signal cuts wait short while the command still runs.
wait_nodes() {
  while :; do
    interrupted=
    status=0
    wait "$!" || status=$?
    [ -n "$interrupted" ] || break
  done
}
