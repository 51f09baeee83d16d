# A job that stands in for cron: `self` is its script, `scripts` and `outputs` are folders, `name` is its name, `every` an
# interval in seconds. A script may take ten minutes; outputs are kept for a week. No `set -e`: after a failure, the rest
# still runs.
# shellcheck shell=sh disable=SC2086

if [ ! -f "$self" ]; then
  echo "$self is not there any more: this is the end"
  exit 0
fi

again() {
  [ -f "$self" ] || { echo "$self is not there any more: this is the last time"; return 0; }
  others=$(waiting) && [ "$others" ] && { echo "one waits already:" $others; return 0; }
  submit_again
}
is_submitted=
for pause in 0 5 20 60; do
  sleep "$pause"
  if again; then is_submitted=1; break; fi
done

if elder; then
  echo "the one before still runs: it has the scripts"
else
  cd "$scripts" || exit
  for script in "$scripts"/*; do
    case $script in
      *~ | *.bak | *.off) continue ;;
      *.sbatch | *.slurm | *.pbs) echo "submits $script"; hand_in "$script"; continue ;;
    esac
    [ -f "$script" ] || continue
    if [ ! -x "$script" ]; then echo "$script is not executable: left out"; continue; fi
    echo "$(date '+%Y-%m-%d %H:%M:%S') $script"
    timeout -k 10 600 "$script" </dev/null
    echo "exit status $?: $script"
  done
fi

find "$outputs" -type f -mtime +6 -exec rm -f {} +
if [ ! "$is_submitted" ]; then
  sleep 60
  again || { echo "it could not be submitted again, and comes no more: hpcdash cron --install"; exit 1; }
fi
exit 0
