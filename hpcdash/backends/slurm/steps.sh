# sstat does not accept '6_1': sacct reports the number that each task has of its own, but not for
# another user's job.
# shellcheck shell=sh
sacct -n -P "--delimiter=$1" -j "$2" -o "$3" || exit
printf '%s\n' "$1"
[ -n "$4" ] || exit 0
number=$(sacct -n -X -P -j "$2" -o jobidraw) || exit
sstat -a -n -P -j "${number%%[!0-9]*}" -o "$4" 2>/dev/null
exit 0
