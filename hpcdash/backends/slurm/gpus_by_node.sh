# A line `COUNT NODE` for each node of job $1: its GPUs there. A job's name has no part in these
# lines.
# shellcheck shell=sh

gpus_by_node() {
  scontrol show job -d "$1" 2>/dev/null | sed -n 's/^ *Nodes=\([^ ]*\) CPU_IDs=.* GRES=\([^ ]*\)$/\1 \2/p' |
    while read -r list gres; do
      count=0
      for one in $(printf '%s\n' "$gres" | sed 's/([^)]*)//g; s/,/ /g'); do
        case $one in gpu:*[!0-9]) ;; gpu:*) count=$((count + ${one##*:})) ;; esac
      done
      scontrol show hostnames "$list" | sed "s/^/$count /"
    done
}
