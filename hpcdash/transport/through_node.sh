# $1 host, $2 the longest time in seconds that it outlives our stdin, $3 the command as a login shell takes it, then the
# arguments of ssh. The command ends when its stdin does: ending this group of processes, or this
# shell alone, ends it over there as well. So stdin is held open by a process here as long as this
# shell exists ($$), which prints its number first (read takes no more than the line) and then our
# own stdin. A shell may report that this process was ended: fd 3 is the stderr of the command
# alone. A node that is this machine needs no ssh: one machine may be login node and node.
# shellcheck shell=sh

host=$1 seconds=$2 command=$3; shift 3
here=$(uname -n)
exec 3>&2 2>/dev/null
sh -c '
  echo $$; cat
  while [ "$2" -gt 0 ] && kill -0 "$1"; do sleep 1; set -- "$1" $(($2 - 1)); done
' sh $$ "$seconds" 3>&- | {
  read -r holder
  if [ "$host" = "$here" ] || [ "$host" = "${here%%.*}" ] || [ "${host%%.*}" = "$here" ]; then set -- sh -c "$command"
  else set -- "$@" "$host" "$command"
  fi
  "$@" 2>&3 3>&-
  status=$?
  kill "$holder"
  exit $status
}
