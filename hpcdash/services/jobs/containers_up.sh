# The lines that have the text $2 in the first $3 bytes of the file $1, at most $4 of them; none where there is no file.
# [ -f ] first: opening a FIFO would wait for its writer.
# shellcheck shell=sh

LC_ALL=C
export LC_ALL
[ -f "$1" ] || exit 0
head -c "$3" <"$1" | grep -a -F -e "$2" | head -n "$4"
exit 0
