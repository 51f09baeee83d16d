# Each ended task of an array is a job of its own (-T).
# shellcheck shell=sh

since=$(($(date +%s) - $1)) || exit
when=$(date -d "@$since" +%Y%m%d%H%M.%S) || exit
exec qselect -x -T -s FX -u "${2:-$(id -un)}" "-tm.ge.$when"
