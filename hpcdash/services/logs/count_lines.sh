# $1 path, $2 before which byte.
# shellcheck shell=sh

LC_ALL=C; export LC_ALL
[ -f "$1" ] || exit 0
head -c "$2" <"$1" | wc -l
