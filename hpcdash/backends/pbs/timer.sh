# shellcheck shell=bash
# This scheduler sends no early signal: a timer does, $2 s after the start. It ends with this script.
start_timer() {
  (
    trap 'kill "$!"; wait "$!"; exit' TERM
    sleep "$(($2 > SECONDS ? $2 - SECONDS : 0))" &
    wait "$!" && kill -s "$1" "$$"
  ) 2>/dev/null &
  timer=$!
  trap end_timer EXIT
}
# The trap takes the place of the one that removes the venv of a call.
end_timer() {
  jobs -pr | grep -qx "$timer" && kill "$timer" && wait "$timer" 2>/dev/null
  ! declare -F hpcdash_finish > /dev/null || hpcdash_finish
}
