# shellcheck shell=bash
# Runs on a node: $1 is its name, $2 the text, $3 its limit in seconds, $4 the early signal, which is for the command,
# and the rest what to report of a failure. Output is shown with the node's name before it.
IFS= read -r -d '' node_step << 'END_OF_NODE_STEP'
[ -z "$4" ] || trap '' "$4"
timeout -k 10 "$3" bash -c "$2" 2>&1 < /dev/null | timeout "$(($3 + 20))" sed -u "s/^/$1: /" >&2
status=${PIPESTATUS[0]}
node=$1
shift 4
report=${*//NODE/$node}
[ "$status" -eq 0 ] || echo "hpcdash: ${report/STATUS/$status}" >&2
exit "$status"
END_OF_NODE_STEP
