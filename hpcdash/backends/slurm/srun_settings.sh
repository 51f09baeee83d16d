# shellcheck shell=bash
# What fails on one node ends all.
export SLURM_KILL_BAD_EXIT=1
export SLURM_MPI_TYPE="${SLURM_MPI_TYPE:-pmi2}"
# srun takes no CPUs a task from the job by itself, since 22.05.
[ -z "${SLURM_CPUS_PER_TASK:-}" ] || export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"
