# The far end of a forward, on the job's node: $1 begins each line that it prints, $2 is the port,
# $3 relay_node.py, $4 the shell of listener.sh. It ends with its stdin. With python3 it carries all
# connections at once. Without, this shell reports the listener, and carries one connection if $5 is
# `carry`: its stdin is what the client sends, a line of base64 what the server does.
# shellcheck shell=sh

token=$1 port=$2 program=$3 listener_text=$4 way=${5-}
report() { printf '%s %s\n' "$token" "$1"; }
if [ -z "$way" ]; then
  for python in python3 /usr/bin/python3 /usr/libexec/platform-python; do
    "$python" -I -c 'import selectors, subprocess' </dev/null >/dev/null 2>&1 &&
      exec "$python" -I -c "$program" "$token" "$port" "$listener_text"
  done
fi
eval "$listener_text"
own=$(id -u)
if [ "$way" = carry ]; then
  found=$(listener "$port")
  [ -n "$found" ] || { report 'x nothing listens'; exit 0; }
  [ "${found#* }" = "$own" ] || { report "x the port belongs to uid ${found#* }"; exit 0; }
  host=${found% *}
  if command -v socat >/dev/null; then
    [ "$host" = ::1 ] && host='[::1]'
    set -- socat -t 5 - "TCP:$host:$port"
  elif command -v nc >/dev/null; then set -- nc "$host" "$port"
  elif command -v ncat >/dev/null; then set -- ncat "$host" "$port"
  else report 'x this node has none of python3, socat and nc'; exit 0
  fi
  exec 3<&0
  { cat <&3; exec >/dev/null; sleep 5; kill -TERM 0; } | "$@" 3<&- 2>/dev/null | {
    while line=$(dd bs=8192 count=1 2>/dev/null | base64 | tr -d '\n'); [ -n "$line" ]; do report "d $line"; done
    report e
    kill -TERM 0
  }
  exit 0
fi
exec 3<&0 </dev/null
( while read -r _; do :; done; kill -TERM $$ ) <&3 >/dev/null 2>&1 &
watcher=$!
exec 3<&-
trap 'kill "$watcher" 2>/dev/null; exit 0' TERM
if command -v socat >/dev/null || command -v nc >/dev/null || command -v ncat >/dev/null; then report 'carries one'
else report 'carries none'
fi
before=unknown
while :; do
  found=$(listener "$port")
  [ "$found" = "$before" ] || { before=$found; report "port $own ${found#* }"; }
  sleep 2 &
  wait "$!"
done
