# A job that stands in for cron: `self` is its script, `scripts` and `outputs` are folders, `name` is its name, `every` an
# interval in seconds. A script may take ten minutes; outputs are kept for a week. No `set -e`: after a failure, the rest
# still runs.
# shellcheck shell=sh disable=SC2086

if [ ! -f "$self" ]; then
  echo "$self no longer exists: stopping"
  exit 0
fi

again() {
  [ -f "$self" ] || { echo "$self no longer exists: this is the last run"; return 0; }
  others=$(waiting) && [ "$others" ] && { echo "already pending:" $others; return 0; }
  submit_again
}
is_submitted=
for pause in 0 5 20 60; do
  sleep "$pause"
  if again; then is_submitted=1; break; fi
done

if elder; then
  echo "the previous run is still active: scripts skipped"
else
  cd "$scripts" || exit
  for script in "$scripts"/*; do
    case $script in
      *~ | *.bak | *.off) continue ;;
      *.sbatch | *.slurm | *.pbs) echo "submits $script"; hand_in "$script"; continue ;;
    esac
    [ -f "$script" ] || continue
    if [ ! -x "$script" ]; then echo "$script is not executable: skipped"; continue; fi
    echo "$(date '+%Y-%m-%d %H:%M:%S') $script"
    timeout -k 10 600 "$script" </dev/null
    echo "exit status $?: $script"
  done
fi

find "$outputs" -type f -mtime +6 -exec rm -f {} +
if [ ! "$is_submitted" ]; then
  sleep 60
  again || { echo "could not resubmit; runs stop here: hpcdash cron --install"; exit 1; }
fi
exit 0
