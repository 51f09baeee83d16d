# $1 token, then folders of checkpoints. Prints `TOKEN NUMBER\n` and a marker for each whole checkpoint of the folder
# NUMBER, the last 30 by name. Whatever touches a path is bounded: on a dead mount it would wait for ever.
# shellcheck shell=sh disable=SC2016

token=$1; shift
number=0
for folder in "$@"; do
  timeout -k 2 10 sh -c '
    token=$1 number=$2 folder=$3
    set -- "$folder"/*/WHOLE.json
    while [ $# -gt 30 ]; do shift; done
    for marker in "$@"; do
      [ -f "$marker" ] || continue
      printf "%s %s\n" "$token" "$number"
      head -c 65536 -- "$marker"
    done' sh "$token" "$number" "$folder" </dev/null 2>/dev/null
  number=$((number + 1))
done
