# For a job of several hosts, after hosts.sh: `out` and `err` are its logs.
# shellcheck shell=bash disable=SC2016
# With several hosts PBS's TERM ends what takes their output too, and reaches the commands of the first host alone.
# $1 is the folder, $2 and $3 the logs, $4 the first host, the rest what is started.
IFS= read -r -d '' on_node << 'END_OF_ON_NODE'
cd -- "$1" || exit
out=$2 err=$3 first=$4 watch=
shift 4
if ! [ -S /dev/fd/1 ] || ! pipes=$(mktemp -d) || ! mkfifo "$pipes/out" "$pipes/err" "$pipes/moved"; then
  exec "$@"
fi
exec 3>&1 4>&2 7<> "$pipes/moved"
# Passes a stream on; once nobody takes it any more, into the log itself. TERM has it look for a second: PBS may end
# what takes the output after the commands.
relay() {
  trap : TERM
  trap '' HUP INT QUIT USR1 USR2
  until cat <&0 & wait "$!"; do
    kill "$!"
    read -r -t 1 <&3
    if [ "$?" -le 128 ]; then
      trap '' TERM
      echo >&7
      cat >> "$1"
      return
    fi
  done
}
relay "$out" < "$pipes/out" 2> /dev/null &
relays=("$!")
relay "$err" < "$pipes/err" >&4 2> /dev/null &
relays+=("$!")
exec 5> "$pipes/out" 6> "$pipes/err"
rm -r "$pipes"
if [ "${HPCDASH_COMMAND_OF#*@}" != "$first" ]; then
  (
    trap '' TERM HUP INT QUIT USR1 USR2
    while read -r <&3; do :; done
    # Both write to the logs before a command says that it was asked to end.
    kill "${relays[@]}" && read -r -t 2 <&7 && read -r -t 2 <&7
    grep -lszFx "HPCDASH_COMMAND_OF=$HPCDASH_COMMAND_OF" /proc/[0-9]*/environ | cut -d/ -f3 |
      while read -r pid; do kill -s TERM "$pid"; done
  ) 2> /dev/null 5>&- 6>&- &
  watch=$!
  disown
fi
# Signals are for the command; this shell may have nowhere to write to.
trap : TERM HUP INT QUIT USR1 USR2 PIPE
"$@" >&5 2>&6 3>&- 4>&- 5>&- 6>&- 7>&-
status=$?
exec 5>&- 6>&-
for ((left = 50; left > 0; left--)); do
  kill -0 "${relays[@]}" 2> /dev/null || break
  sleep 0.1
done
[ -z "$watch" ] || kill -s KILL "$watch"
exit "$status"
END_OF_ON_NODE
login=('exec bash -c "$@"' bash "$on_node" on_node "$PWD" "$out" "$err" "${hosts[0]}")
