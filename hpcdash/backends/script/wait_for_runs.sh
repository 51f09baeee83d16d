# An allocation: `hpcdash_runs` is its spool, `hpcdash_work` the folder of its runs, `hpcdash_job` its ID, `hpcdash_pause`
# the seconds between two checks, and `hpcdash_idle` those after which it ends, or nothing. Each run is one folder, moved
# there by a rename as a whole; names sort in the order of the runs. Anyone else with write access to the spool could
# plant one. The runs inherit the exported variables of their owner: none of these may have its name.
# shellcheck shell=bash
# Runs come into the folder $hpcdash_runs, and are run here one after another.
umask 077
[ -d "$hpcdash_runs" ] || mkdir -m 700 -- "$hpcdash_runs" || exit 1
cd -P -- "$hpcdash_runs" || exit 1
if [ ! -O . ] || [ -n "$(find . -prune '(' -perm -020 -o -perm -002 ')')" ]; then
  echo "hpcdash: $hpcdash_runs is writable by others: no runs start from it" >&2
  exit 1
fi
hpcdash_run=
trap '[ -z "$hpcdash_run" ] || kill -TERM "$hpcdash_run"; exit 143' TERM INT HUP
echo "hpcdash: waiting for runs: hpcdash submit REQUEST.toml --in $hpcdash_job"
hpcdash_used_at=$(date +%s)
# Sets `hpcdash_next` to the first run that has not started.
find_run() {
  for hpcdash_next in [0-9]*; do
    if [ -d "$hpcdash_next" ] && [ ! -L "$hpcdash_next" ] && [ -O "$hpcdash_next" ] && [ ! -e "$hpcdash_next/started" ]
    then return
    fi
  done
  hpcdash_next=
}
rm -f -- closed
while :; do
  find_run
  if [ -n "$hpcdash_next" ]; then
    date +%s > "$hpcdash_next/started"
    echo "hpcdash: run $hpcdash_next starts"
    (cd -- "$hpcdash_work" 2>/dev/null || cd || exit; exec bash "$hpcdash_runs/$hpcdash_next/batch.sh") \
      > "$hpcdash_next/out" 2> "$hpcdash_next/err" < /dev/null &
    hpcdash_run=$! hpcdash_status=0
    wait "$hpcdash_run" || hpcdash_status=$?
    hpcdash_run='' hpcdash_used_at=$(date +%s)
    echo "$hpcdash_status $hpcdash_used_at" > "$hpcdash_next/.ended" &&
      mv -- "$hpcdash_next/.ended" "$hpcdash_next/ended"
    echo "hpcdash: run $hpcdash_next ended with $hpcdash_status"
    continue
  fi
  [ -z "$hpcdash_idle" ] || end_if_idle
  # In the background, for a signal to end it at once.
  sleep "$hpcdash_pause" &
  wait "$!"
done
