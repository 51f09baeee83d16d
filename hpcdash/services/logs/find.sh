# $1 path, $2 text, $3 and $4 between which bytes, $5 window, $6 forwards or backwards, $7 -i or
# nothing.
# Prints the offset of the first (backwards: last) match, nothing where there is none, `cannot`
# where grep tells no offsets. Windows share what a match may be long. -o: a line may be as long as
# the file.
# shellcheck shell=sh disable=SC2086

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
