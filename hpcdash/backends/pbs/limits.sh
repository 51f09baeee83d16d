# shellcheck shell=sh

user=${1:-$(id -un)}; shift
printf 'User: %s\nGroup: %s\nGroups: %s\n' "$user" "$(id -gn "$user" 2>/dev/null)" "$(id -Gn "$user" 2>/dev/null)"
qstat -Qf "$@" && qstat -Bf "$@"
