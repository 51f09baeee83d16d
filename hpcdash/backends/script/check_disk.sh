# shellcheck shell=bash
for folder in "${TMPDIR:-/tmp}" /dev/shm; do
  if [ ! -d "$folder" ]; then
    [ "$folder" != /dev/shm ] || continue
    echo "$folder does not exist"
    exit 1
  fi
  free=$(df -Pk -- "$folder" | awk 'NR == 2 { print $4 }')
  [ "${free:-0}" -ge 65536 ] || { echo "$folder has $((${free:-0} / 1024)) MiB left"; exit 1; }
  file=$(mktemp "$folder/.hpcdash-check.XXXXXX") || { echo "cannot write to $folder"; exit 1; }
  written=$(head -c 16777216 /dev/urandom | tee -- "$file" | cksum)
  read=$(cksum < "$file")
  rm -f -- "$file"
  [ "$read" = "$written" ] || { echo "$folder returns different bytes than were written"; exit 1; }
done
echo "${TMPDIR:-/tmp} and /dev/shm"
