# shellcheck shell=sh

sinfo -h -o %R || exit
printf '%s\n' "$1"
exec sinfo -a -h -O "$2"
