# The first process of a container gets the signals of a job, and those it does not catch are lost:
# a shell hands them to all others. What a shell starts beside it ignores INT.
# shellcheck shell=sh disable=SC2064
[ "$$" = 1 ] || exec "$@"
for name in HUP TERM USR1 USR2; do trap "kill -$name -1" "$name"; done
trap 'kill -TERM -1' INT
exec 3<&0
"$@" <&3 3<&- &
child=$!
while :; do
  wait "$child"
  status=$?
  kill -0 "$child" 2>/dev/null || exit "$status"
done