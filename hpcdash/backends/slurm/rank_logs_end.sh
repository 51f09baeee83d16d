# Processes that the command left behind may keep them open.
# shellcheck shell=bash
exec > /dev/null 2>&1
for _ in {1..50}; do
  kill -0 "${copies[@]}" || break
  sleep 0.1
done
