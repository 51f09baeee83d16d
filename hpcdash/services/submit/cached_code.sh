# $1 root, $2 digest. Prints `there`, or how many bytes arrived, or nothing. It calls `partial_archive`.
# shellcheck shell=sh disable=SC3067
{ cd -P -- "$1" && cd -P -- "./.code-$(id -u)" && test -O .; } 2>/dev/null || exit 0
if test -f "./$2.tar.gz"; then echo there; exit 0; fi
partial_archive "$2"
if test -n "$part"; then wc -c < "$part"; fi
