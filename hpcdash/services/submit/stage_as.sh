# $1 folder, $2 account, $3 launch program, then of each file name, bytes and digest; their contents come on stdin, one
# after the other.
# shellcheck shell=sh
folder=$1 account=$2 program=$3
shift 3
launch() { sudo -n -u "$account" "$program" "$@"; }
made=$(launch make "${folder##*/}" </dev/null) || exit 17
test "$made" = "$folder" || {
  launch remove "${folder##*/}"
  echo "$program keeps launches in ${made%/*}" >&2
  exit 18
}
while test $# -gt 0; do
  head -c "$2" | launch write "${folder##*/}" "$1" "$3" || exit 19
  shift 3
done
