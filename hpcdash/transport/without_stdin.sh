# The reader of descriptor 3 sees its end when the channel is closed or sshd is gone, and ends the command.
# shellcheck shell=sh
"$@" 3<&- 4>&- & hpcdash_pid=$!
( while read -r _; do :; done; trap '' PIPE; hpcdash_mark stdin >&4; hpcdash_end ) <&3 >/dev/null 2>&1 & hpcdash_reader=$!
exec 3<&- 2>/dev/null
wait "$hpcdash_pid"; hpcdash_status=$?
kill -KILL "-$hpcdash_pid"; kill -KILL "$hpcdash_reader"
hpcdash_exit "$hpcdash_status"
