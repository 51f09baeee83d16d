# What a login node runs for a command: `hpcdash_marker` begins the lines around its output, `hpcdash_limit` is its limit
# in seconds, and "$@" are its words. `timeout` and `setsid` put it into a process group of its own, whose number is its
# pid. Descriptor 3 is the channel's stdin, 4 its stderr.
# shellcheck shell=sh
# Writes a line that ends the output.
hpcdash_mark() { printf '\036%s %s\n' "$hpcdash_marker" "$1"; }
hpcdash_exit() { hpcdash_mark end; hpcdash_mark end >&4; exit "$1"; }
command -v "$1" >/dev/null || { echo "$1: command not found" >&2; hpcdash_exit 127; }
if command -v timeout >/dev/null; then set -- timeout -k 1 "$hpcdash_limit" "$@"
elif command -v setsid >/dev/null; then set -- setsid "$@"; fi
exec 3<&0 </dev/null
hpcdash_pid=
hpcdash_end() {
  trap '' TERM
  [ "$hpcdash_pid" ] || hpcdash_pid=$!
  kill -TERM "-$hpcdash_pid"; kill -TERM "$hpcdash_pid"; sleep 1
  kill -KILL "-$hpcdash_pid"; kill -KILL "$hpcdash_pid"
}
trap 'hpcdash_end 2>/dev/null; hpcdash_exit 143' HUP INT TERM
