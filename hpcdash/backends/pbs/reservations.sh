# shellcheck shell=sh

token=$1 user=${2:-$(id -un)}
printf '%s\n%s\n' "$user" "$(id -Gn "$user" 2>/dev/null)"
printf '%s' "$token"; pbs_rstat -B; printf '%s' "$token"
pbs_rstat -f
