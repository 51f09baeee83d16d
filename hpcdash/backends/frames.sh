# Prints frames, as node_start.sh describes them.
# shellcheck shell=sh

frame() { printf '%s %s %s %s\n' "$token" "$HPCDASH_NODE" "$1" "$2" >&9; }
framed() { base64 | while IFS= read -r line; do frame "$1" ".$line"; done; }
