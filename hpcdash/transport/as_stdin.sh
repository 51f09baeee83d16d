# The channel's stdin is the command's own, which ends with it.
# shellcheck shell=sh
"$@" <&3 3<&- 4>&- & hpcdash_pid=$!
exec 3<&- 2>/dev/null
wait "$hpcdash_pid"; hpcdash_status=$?
kill -KILL "-$hpcdash_pid"
hpcdash_exit "$hpcdash_status"
