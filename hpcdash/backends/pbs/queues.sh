# The queues without the server's settings are better than nothing; without the queues there is
# nothing. A reservation's queue has the reservation's name, and when it begins only pbs_rstat
# tells.
# shellcheck shell=sh

printf 'User: %s\n' "$(id -un)"
printf 'Groups: %s\n' "$(id -Gn)"
queues=$(qstat -Qf "$@"); status=$?
case $queues in *Queue:*[RSM][0-9]*)
    if command -v pbs_rstat >/dev/null 2>&1; then
        pbs_rstat -f 2>/dev/null | sed -n -e 's/^reserve_start = /Start: /p' -e 's/^queue = /Reservation: /p'
    fi ;;
esac
printf '%s\n' "$queues"
[ "$status" -eq 0 ] || exit "$status"
qstat -Bf "$@" 2>/dev/null
exit 0
