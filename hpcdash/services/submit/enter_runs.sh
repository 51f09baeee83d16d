# $1 is an allocation's folder: enters that of its runs. Nobody else may plant one: folders that others can write to, and
# links, are not entered.
# shellcheck shell=sh disable=SC3067
umask 077
cd -P -- "$1" 2>/dev/null && test -O . && test -f ./allocation && here=$(pwd -P) || exit 17
test -d ./runs || mkdir -m 700 ./runs
cd -P ./runs && test "$(pwd -P)" = "${here%/}/runs" && test -O . &&
  test -z "$(find . -prune '(' -perm -020 -o -perm -002 ')')" || { echo "others can write to $1/runs" >&2; exit 18; }
