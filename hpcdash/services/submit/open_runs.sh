# Refuses an allocation that takes no more runs.
# shellcheck shell=sh
test ! -e closed || { echo 'the allocation is ending' >&2; exit 20; }
