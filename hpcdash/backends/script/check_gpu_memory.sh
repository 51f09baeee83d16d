# Leftovers of others on the GPUs, and errors of their memory.
# shellcheck shell=bash
type -P nvidia-smi > /dev/null || { echo 'nvidia-smi not found'; exit 77; }
asked=uuid,memory.used,memory.total,ecc.errors.uncorrected.volatile.total
said=$(nvidia-smi --query-gpu="$asked" --format=csv,noheader,nounits 2>&1) || { echo "${said##*$'\n'}"; exit 1; }
printf '%s\n' "$said" | awk -F ', *' '
  $2 + 0 > 1024 { print $1 ": " $2 " of " $3 " MiB are in use before the job"; bad = 1; exit }
  $4 + 0 > 0 { print $1 ": " $4 " uncorrected memory errors"; bad = 1; exit }
  END { if (!bad) print NR " with their memory free"; exit bad }'
