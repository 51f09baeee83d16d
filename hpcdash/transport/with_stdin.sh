# The command's stdin is closed only once the line `go` has come after its `hpcdash_stdin` bytes: half a script is never
# taken for one.
# shellcheck shell=sh
(
  exec 2>/dev/null
  head -c "$hpcdash_stdin" <&3 && {
    read -r go <&3 && [ "$go" = go ] || { trap '' PIPE; hpcdash_mark stdin >&4; exec 4>&-; kill -TERM $$; sleep 3; }
  }
  exec >/dev/null
  ( while read -r _; do :; done; kill -TERM $$ ) <&3 4>&- &
) | "$@" 3<&- 4>&- & hpcdash_pid=$!
exec 3<&- 2>/dev/null
wait "$hpcdash_pid"; hpcdash_status=$?
kill -KILL "-$hpcdash_pid"
hpcdash_exit "$hpcdash_status"
