# $1 token, $2 block size, then for each file: its path, where to begin in bytes or `end`, how many
# bytes, and when to read it: '' always, `if-blank` where the one before holds nothing but blanks,
# `IDENTITY SIZE MODIFIED` where it is no longer that. Prints for each `TOKEN there IDENTITY SIZE
# MODIFIED BEGIN OWNER`, then whole blocks that hold what was asked for; `same` in place of `there`
# with none; or `TOKEN PROBLEM`, then the folder that is why. The token last.
# A file is opened once: what is looked at is what is read, whatever is renamed. [ -f ] first:
# opening a FIFO would wait for its writer. `stat -` is coreutils'; -f without a file BSD's.
# shellcheck shell=sh disable=SC1007,SC2086,SC2094

LC_ALL=C; export LC_ALL
token=$1 block=$2 before= status=0; shift 2
problem() { printf '%s %s\n%s' "$token" "$1" "$2"; }
explain() {
  if [ -d "$path" ]; then problem folder; return; fi
  if [ -f "$path" ]; then problem closed; return; fi
  if [ -e "$path" ]; then problem special; return; fi
  kind= reason= part=$path
  while case $part in */*) part=${part%/*};; *) part=;; esac; [ "$part" ]; do
    if [ -d "$part" ]; then [ -x "$part" ] || { kind=closed-folder reason=$part; }
    elif [ -e "$part" ]; then kind=not-a-folder reason=$part
    else kind=no-folder reason=$part
    fi
  done
  if [ "$kind" ]; then problem "$kind" "$reason"
  elif [ -h "$path" ]; then
    reason=$(readlink "$path")
    case $reason in /*) part=$reason;; *) part=${path%/*}/$reason;; esac
    if [ -h "$part" ]; then problem broken "$reason"; else problem dangling "$reason"; fi
  else problem missing
  fi
}
read_file() {
  [ -f "$path" ] || { explain; return; }
  {
    format='%d:%i %s %Y %U'
    found=$(stat -L -c "$format" - <&3 2>/dev/null || stat -L -c "$format" "$path" 2>/dev/null ||
      stat -f '%d:%i %z %m %Su' <&3 2>/dev/null) || { problem no-stat; return; }
    owner=${found#* * * }
    found=${found%" $owner"}
    set -- $found
    if [ "$begin" = end ]; then
      begin=$(($2 - length))
      [ "$begin" -ge 0 ] || begin=0
    fi
    if [ "$found" = "$when" ]; then printf '%s same %s %s %s\n' "$token" "$found" "$begin" "$owner"; return; fi
    printf '%s there %s %s %s\n' "$token" "$found" "$begin" "$owner"
    if [ "$length" -gt 0 ] && { [ "$2" -gt "$begin" ] || [ "$2" -eq 0 ]; }; then
      dd bs="$block" skip=$((begin / block)) count=$(((begin % block + length + block - 1) / block)) <&3 || status=$?
    fi
    return
  } 3<"$path"
  explain
}
while [ $# -gt 3 ]; do
  path=$1 begin=$2 length=$3 when=$4; shift 4
  if [ "$when" = if-blank ] && [ -f "$before" ] &&
    tail -c "$length" <"$before" 2>/dev/null | grep -q '[^[:space:]]'; then problem skipped
  else read_file
  fi
  before=$path
done
printf '%s' "$token"
[ "$status" -eq 0 ] || exit "$status"
