# shellcheck shell=bash
# When this job's time is over, for hpcdash.job: Slurm is queried once where it does not report it itself, and without
# an answer it is the start plus the limit of $1 seconds, or unknown.
set_end_time() {
  export HPCDASH_END_TIME HPCDASH_END_TIME_OF="$SLURM_JOB_ID"
  HPCDASH_END_TIME=${SLURM_JOB_END_TIME:-$(SLURM_TIME_FORMAT=%s timeout 20 squeue --all --noheader --format=%e \
    --jobs="${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}" 2> /dev/null)}
  case $HPCDASH_END_TIME in
    '' | *[!0-9]*) HPCDASH_END_TIME=${1:+$(($(date +%s) + $1))} ;;
  esac
}
