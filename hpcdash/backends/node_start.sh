# How a script on a node begins, once it has set `token`. Each line that it prints is a frame:
# token, node, GPU or '-', and '.' with a line of base64, '=' with an exit status (and words) or '!'
# with words. What is written to a frame is encoded, so that no command's output is taken for one.
# stdin is held open while somebody reads this: its end ends the script.
# shellcheck shell=sh

HPCDASH_NODE=${HPCDASH_NODE:-$(uname -n)} HPCDASH_INSIDE=$token
export HPCDASH_NODE HPCDASH_INSIDE
exec 7<&0 9>&1 </dev/null 2>/dev/null
trap 'trap "" TERM; kill -TERM 0; exit 143' TERM
( trap "" TERM; while read -r _; do :; done <&7; kill -TERM 0 ) 9>&- &
watcher=$!
exec 7<&-
