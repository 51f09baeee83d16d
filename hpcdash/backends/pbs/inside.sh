# $1 token, $2 the script, $3 how many hosts, the hosts, then ssh with its options. A host's shell
# reads the script from its stdin, whichever login shell there is; the stdin stays open as long as
# this shell is there, and a script ends with it. A node that is this machine needs no ssh. What
# went wrong on the way is the host's frame.
# shellcheck shell=sh

token=$1 script=$2 count=$3
shift 3
here=$(uname -n)
exec 6<&0 9>&1 </dev/null 2>/dev/null
( while read -r _; do :; done <&6; kill -TERM $$ ) >/dev/null 2>&1 9>&- &
watcher=$!
on_host() {
  host=$1
  shift
  said=$(sh -c '
    echo $$
    printf "HPCDASH_NODE=%s\n%s\n" "$1" "$2"
    while kill -0 "$3" 2>/dev/null; do sleep 3 >/dev/null 2>&1; done
  ' sh "$host" "$script" $$ 9>&- | {
    read -r feeder
    if [ "$host" = "$here" ] || [ "$host" = "${here%%.*}" ] || [ "${host%%.*}" = "$here" ]
    then set -- env HPCDASH_INSIDE=1 sh
    else set -- "$@" "$host" env HPCDASH_INSIDE=1 sh
    fi
    "$@" 2>&1 >&9
    status=$?
    kill "$feeder" 2>/dev/null
    [ $status -eq 0 ] || echo "exited with status $status"
  })
  [ -z "$said" ] || printf '%s %s - !%s\n' "$token" "$host" "$(printf '%s' "$said" | tr '\n' ' ' | tail -c 400)" >&9
}
left=$count
hosts=
while [ "$left" -gt 0 ]; do
  hosts="$hosts $1" left=$((left - 1))
  shift
done
running=
for host in $hosts; do
  on_host "$host" "$@" &
  running="$running $!"
done
for process in $running; do wait "$process"; done
kill "$watcher"
