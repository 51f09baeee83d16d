#!/bin/bash
# 1 node × 4 CPUs = 4; the command once on each node
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

# shellcheck disable=SC2016,SC2317

# What runs on each node:
IFS= read -r -d '' command << 'END_OF_COMMAND'
python sweep.py "$SLURM_ARRAY_TASK_ID$PBS_ARRAY_INDEX"
END_OF_COMMAND

# What fails on one node ends all.
export SLURM_KILL_BAD_EXIT=1
export SLURM_MPI_TYPE="${SLURM_MPI_TYPE:-pmi2}"
# srun takes no CPUs a task from the job by itself, since 22.05.
[ -z "${SLURM_CPUS_PER_TASK:-}" ] || export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"

srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 \
  bash -c "$command"
