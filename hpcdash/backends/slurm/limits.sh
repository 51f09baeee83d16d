# Each part ends with the poll's token, its own status and a newline. One argument is the user, ''
# for the caller; the second the cluster, '' for any.
# shellcheck shell=sh

token=$1 user=${2:-$(id -un)} cluster=$3 associations=$4 qos=$5
part() { "$@"; printf '%s%s\n' "$token" "$?"; }
part printf '%s\n' "$user" "$(id -u "$user")"
part scontrol -o show assoc_mgr users="$user" flags=assoc,qos
part sacctmgr -n -P -r show assoc where user="$user" ${cluster:+cluster="$cluster"} format="$associations"
part sacctmgr -n -P -r show qos format="$qos"
part scontrol -a -o show partition
