#!/bin/bash
# 1 node × 2 GPUs = 2; one command per node
#SBATCH --job-name=hpcdash_exp-1a2b
#SBATCH --output=/home/ann/launches/hpcdash_exp-1a2b/%j.out
#SBATCH --error=/home/ann/launches/hpcdash_exp-1a2b/%j.err
#SBATCH --gpus=2
#SBATCH --nodes=1-2
#SBATCH --tasks-per-node=1
#SBATCH --gpus-per-task=2
#SBATCH --time=01:00:00
#SBATCH --no-requeue

# shellcheck disable=SC2016,SC2317

# For the command, on every node:
export DATA=/d

# Command for each node:
IFS= read -r -d '' command << 'END_OF_COMMAND'
# TERM is meant for the programs: this shell exits after they do.
trap exit TERM
python3 /home/ann/train.py
END_OF_COMMAND

# Container for the command, $1:
IFS= read -r -d '' in_container << 'END_OF_IN_CONTAINER'
# TERM is meant for the programs: this shell exits after they do.
trap exit TERM
trap 'rm -rf -- "$hpcdash_tmp"' EXIT
for hpcdash_name in DATA; do
  export "APPTAINERENV_$hpcdash_name=${!hpcdash_name}" "SINGULARITYENV_$hpcdash_name=${!hpcdash_name}"
done
export APPTAINERENV_TMPDIR=/tmp SINGULARITYENV_TMPDIR=/tmp
hpcdash_runtime=$(type -P apptainer || type -P singularity) || {
  echo "hpcdash: neither apptainer nor singularity is on $HOSTNAME's PATH; load its module" >&2
  exit 127
}
hpcdash_tmp=$(mktemp -d "${TMPDIR:-/tmp}/hpcdash.XXXXXXXX") || exit
"$hpcdash_runtime" exec --nv --writable-tmpfs --bind "$hpcdash_tmp:/tmp" --bind /data:/d:ro \
  --bind /home/ann/launches/hpcdash_exp-1a2b /images/torch.sif \
  sh -c '# The command can `import hpcdash.job` from this zip; job_library = false leaves it out.
export PYTHONPATH=/home/ann/launches/hpcdash_exp-1a2b/hpcdash-job.zip"${PYTHONPATH:+:$PYTHONPATH}"
echo "hpcdash: the container is up on $(hostname 2>/dev/null || echo "$HOSTNAME")" >&2
exec "$@"' \
  sh bash -c "$1"
END_OF_IN_CONTAINER

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

require_nodes() {
  if [ "$SLURM_JOB_NUM_NODES" -ne "$1" ]; then
    echo "nodes given: $SLURM_JOB_NUM_NODES, asked for: $1. Not started." >&2
    exit 1
  fi
}
require_nodes 1

# What fails on one node ends all.
export SLURM_KILL_BAD_EXIT=1
export SLURM_MPI_TYPE="${SLURM_MPI_TYPE:-pmi2}"
# srun takes no CPUs a task from the job by itself, since 22.05.
[ -z "${SLURM_CPUS_PER_TASK:-}" ] || export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"

srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 \
  bash -c "$in_container" in_container "$command"
