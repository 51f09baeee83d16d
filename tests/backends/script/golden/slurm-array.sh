#!/bin/bash
# 1 node × 4 CPUs = 4; one command per node
#SBATCH --job-name=sweep
#SBATCH --output=/home/ann/launches/hpcdash_exp-1a2b/%A_%a.out
#SBATCH --error=/home/ann/launches/hpcdash_exp-1a2b/%A_%a.err
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=4
#SBATCH --time=01:00:00
#SBATCH --array=1-10%2
#SBATCH --dependency=afterany:17:18
#SBATCH --hold
#SBATCH --requeue
#SBATCH --open-mode=append

# shellcheck disable=SC2016,SC2317

# Command for each node:
IFS= read -r -d '' command << 'END_OF_COMMAND'
# TERM is meant for the programs: this shell exits after they do.
trap exit TERM
python sweep.py "$SLURM_ARRAY_TASK_ID$PBS_ARRAY_INDEX"
END_OF_COMMAND

# The command can `import hpcdash.job` from this zip; job_library = false leaves it out.
export PYTHONPATH=/home/ann/launches/hpcdash_exp-1a2b/hpcdash-job.zip"${PYTHONPATH:+:$PYTHONPATH}"

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
set_end_time 3600

# Each start begins from scratch unless the command itself finds its checkpoint. With checkpoints = "FOLDER" in
# the request, hpcdash sets the checkpoint to resume from: ${HPCDASH_RESUME_FROM:+--resume "$HPCDASH_RESUME_FROM"}

# What fails on one node ends all.
export SLURM_KILL_BAD_EXIT=1
export SLURM_MPI_TYPE="${SLURM_MPI_TYPE:-pmi2}"
# srun takes no CPUs a task from the job by itself, since 22.05.
[ -z "${SLURM_CPUS_PER_TASK:-}" ] || export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"

srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 \
  bash -c "$command"
