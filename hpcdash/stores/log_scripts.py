"""The POSIX shell scripts that look at, read, search and count in one file of a login node."""

# $1 token, $2 path, $3 where to begin in bytes or `end`, $4 how many bytes, $5 block size.
# Prints `TOKEN there IDENTITY SIZE MODIFIED BEGIN`, then whole blocks that hold what was asked for; or `TOKEN PROBLEM`,
# then the folder that is the reason. The file is opened once: what is looked at is what is read, whatever is renamed.
# [ -f ] first: opening a FIFO would wait for its writer. `stat -` is coreutils'; -f without a file BSD's.
READ_SCRIPT = r"""
LC_ALL=C; export LC_ALL
token=$1 path=$2 begin=$3 length=$4 block=$5
problem() { printf '%s %s\n%s' "$token" "$1" "$2"; exit 0; }
explain() {
  [ -d "$path" ] && problem folder
  [ -f "$path" ] && problem closed
  [ -e "$path" ] && problem special
  kind= reason= part=$path
  while case $part in */*) part=${part%/*};; *) part=;; esac; [ "$part" ]; do
    if [ -d "$part" ]; then [ -x "$part" ] || { kind=closed-folder reason=$part; }
    elif [ -e "$part" ]; then kind=not-a-folder reason=$part
    else kind=no-folder reason=$part
    fi
  done
  [ "$kind" ] && problem "$kind" "$reason"
  [ -h "$path" ] && problem dangling "$(readlink "$path")"
  problem missing
}
[ -f "$path" ] || explain
{
  format='%d:%i %s %Y'
  found=$(stat -L -c "$format" - <&3 2>/dev/null || stat -L -c "$format" "$path" 2>/dev/null ||
    stat -f '%d:%i %z %m' <&3 2>/dev/null) || problem no-stat
  set -- $found
  if [ "$begin" = end ]; then
    begin=$(($2 - length))
    [ "$begin" -ge 0 ] || begin=0
  fi
  printf '%s there %s %s\n' "$token" "$found" "$begin"
  if [ "$length" -gt 0 ] && { [ "$2" -gt "$begin" ] || [ "$2" -eq 0 ]; }; then
    dd bs="$block" skip=$((begin / block)) count=$(((begin % block + length + block - 1) / block)) <&3
    exit
  fi
  exit 0
} 3<"$path"
explain
"""

# $1 path, $2 text, $3 and $4 between which bytes, $5 window, $6 forwards or backwards, $7 -i or nothing.
# Prints the offset of the first (backwards: last) match, nothing where there is none, `cannot` where grep tells no
# offsets. Windows share what a match may be long. -o: a line may be as long as the file.
FIND_SCRIPT = r"""
LC_ALL=C; export LC_ALL
path=$1 text=$2 low=$3 high=$4 window=$5 way=$6 fold=$7 block=65536
[ "$(printf 'xA\n' | grep -abo -F -i -e a 2>/dev/null)" = 1:A ] || { echo cannot; exit; }
[ -f "$path" ] || exit 0
matches() {
  skip=$(($1 % block)) bytes=$(($2 - $1))
  dd bs=$block skip=$(($1 / block)) count=$(((skip + bytes + block - 1) / block)) <&3 2>/dev/null |
    { if [ $skip -gt 0 ]; then tail -c +$((skip + 1)); else cat; fi; } | head -c $bytes |
    if [ $way = forwards ]; then grep -abo -m 1 -F $fold -e "$text" | head -n 1
    else grep -abo -F $fold -e "$text" | tail -n 1
    fi
}
look_in() {
  found=$(matches "$1" "$2" 3<"$path")
  case $found in *:*) echo $(($1 + ${found%%:*})); exit 0;; esac
}
size=$(wc -c <"$path") || exit 0
[ "$high" -le "$size" ] || high=$((size))
shared=$((${#text} - 1))
if [ $way = forwards ]; then
  while [ "$low" -lt "$high" ]; do
    end=$((low + window + shared))
    [ "$end" -le "$high" ] || end=$high
    look_in "$low" "$end"
    low=$((low + window))
  done
else
  while [ "$high" -gt "$low" ]; do
    begin=$((high - window - shared))
    [ "$begin" -ge "$low" ] || begin=$low
    look_in "$begin" "$high"
    [ "$begin" -gt "$low" ] || break
    high=$((begin + shared))
  done
fi
"""

# $1 path, $2 before which byte.
COUNT_SCRIPT = r"""
LC_ALL=C; export LC_ALL
[ -f "$1" ] || exit 0
head -c "$2" <"$1" | wc -l
"""
