# The accounts are queried only if a reservation names some.
# shellcheck shell=sh

token=$1 user=${2:-$(id -un)}
reservations=$(scontrol -o show reservation 2>&1); status=$?
printf '%s\n%s\n%s' "$user" "$(id -Gn "$user" 2>/dev/null)" "$token"
case $reservations in *" Accounts="[!\(]*)
    sacctmgr -n -P -r show assoc where user="$user" format=account,parentname 2>/dev/null && printf '%s\n' "$token" &&
    sacctmgr -n -P -r show assoc where user= format=account,parentname 2>/dev/null ;;
esac
printf '\n%s%s\n' "$token" "$token"
if [ "$status" -ne 0 ]; then printf '%s\n' "$reservations" >&2; exit "$status"; fi
printf '%s\n' "$reservations"
