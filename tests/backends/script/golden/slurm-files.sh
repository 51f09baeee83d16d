#!/bin/bash
# 2 nodes × 4 GPUs = 8; deepspeed on each node
#SBATCH --job-name=hpcdash_exp-1a2b
#SBATCH --output=/home/ann/launches/hpcdash_exp-1a2b/%j.out
#SBATCH --error=/home/ann/launches/hpcdash_exp-1a2b/%j.err
#SBATCH --gpus=8
#SBATCH --nodes=1-8
#SBATCH --tasks-per-node=1
#SBATCH --gpus-per-task=4
#SBATCH --time=01:00:00
#SBATCH --chdir=/home/ann/launches/hpcdash_exp-1a2b/code
#SBATCH --begin=2026-12-01T08:00:00
#SBATCH --no-requeue

# shellcheck disable=SC2016,SC2317

# For the command, on every node:
export DATA=/data

# What runs on each node:
IFS= read -r -d '' command << 'END_OF_COMMAND'
# TERM is for the programs: this shell ends after them.
trap exit TERM
. /home/ann/launches/hpcdash_exp-1a2b/secrets.sh || exit
ranks=$(seq -s , 0 "$((4 - 1))")
world=$(for node in $(seq "$SLURM_JOB_NUM_NODES"); do printf ',"n%s":[%s]' "$node" "$ranks"; done)
world=$(printf '{%s}' "${world#,}" | base64 | tr -d '\n' | tr '+/' '-_')
python -m deepspeed.launcher.launch \
  --world_info="$world" --node_rank="$SLURM_PROCID" \
  --master_addr="$MASTER_ADDR" --master_port="$MASTER_PORT" \
  train.py --lr 1e-3
END_OF_COMMAND

# The command can `import hpcdash.job` from this zip; job_library = false leaves it out.
export PYTHONPATH=/home/ann/launches/hpcdash_exp-1a2b/hpcdash-job.zip"${PYTHONPATH:+:$PYTHONPATH}"

# What is installed where this starts, for the launch's folder.
(
  cd -- /home/ann/launches/hpcdash_exp-1a2b && [ ! -e packages.txt ] || exit 0
  timeout -k 5 30 "$(type -P python python3 | head -n 1)" -c '
import json, os, pathlib, sys
from importlib import metadata
found = set()
for one in metadata.distributions():
    said = json.loads(one.read_text("direct_url.json") or "{}").get("vcs_info", {}).get("commit_id", "")
    found.add("%s==%s%s" % (one.metadata["Name"], one.version, said and "  # " + said))
print("python==%s" % sys.version.split()[0], *sorted(found), sep="\n")
for file in sorted(pathlib.Path(os.environ.get("CONDA_PREFIX", "/-"), "conda-meta").glob("*.json")):
    print("conda " + file.stem)
' | head -c 262144 > "packages.txt.$$"
  if [ -s "packages.txt.$$" ]; then mv -- "packages.txt.$$" packages.txt; else rm -f -- "packages.txt.$$"; fi
) < /dev/null > /dev/null 2>&1

# When this job's time is over, for hpcdash.job: Slurm is asked once where it does not say so itself.
HPCDASH_END_TIME=${SLURM_JOB_END_TIME:-$(SLURM_TIME_FORMAT=%s timeout 20 squeue --all --noheader --format=%e \
  --jobs="${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}" 2> /dev/null)}
case $HPCDASH_END_TIME in
  '' | *[!0-9]*) HPCDASH_END_TIME=$(($(date +%s) + 3600)) ;;
esac
export HPCDASH_END_TIME HPCDASH_END_TIME_OF="$SLURM_JOB_ID"

if [ "$SLURM_JOB_NUM_NODES" -ne 2 ]; then
  echo "nodes given: $SLURM_JOB_NUM_NODES, asked for: 2. Not started." >&2
  exit 1
fi

# Where the ranks meet: the first node, on a port of this job's own.
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_PORT=$((20000 + SLURM_JOB_ID % 12000))
export MASTER_ADDR MASTER_PORT

# On each node before the command starts anywhere; where it fails on any the job ends with 1.
IFS= read -r -d '' hook << 'END_OF_HOOK'
. /home/ann/launches/hpcdash_exp-1a2b/secrets.sh
module load cuda
pip install --user -r requirements.txt
END_OF_HOOK
# $1 is the node, $2 the text; what it prints is shown with the node's name before it.
IFS= read -r -d '' on_hooked << 'END_OF_ON_HOOKED'
timeout -k 10 3600 bash -c "$2" 2>&1 < /dev/null | timeout 3620 sed -u "s/^/$1: /" >&2
status=${PIPESTATUS[0]}
[ "$status" -eq 0 ] || echo "hpcdash: the startup hook failed on node $1 (status $status)" >&2
exit "$status"
END_OF_ON_HOOKED
# A step of its own, with all of the job's GPUs. On all nodes, whichever fails first.
env -u SLURM_GPUS_PER_TASK -u SLURM_TRES_PER_TASK srun \
  --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --mpi=none \
  --kill-on-bad-exit=0 ${SLURM_CPUS_PER_TASK:+"--cpus-per-task=$SLURM_CPUS_PER_TASK"} \
  bash -c 'exec bash -c "$0" on_hooked "${SLURMD_NODENAME:-$HOSTNAME}" "$1"' "$on_hooked" "$hook" || exit 1

# srun's status is to be that of what failed, not 143 of those that it ends for it.
IFS= read -r -d '' on_node << 'END_OF_ON_NODE'
trap : TERM
"$@"
status=$?
[ "$status" -ne 143 ] || status=1
exit "$status"
END_OF_ON_NODE

# What fails on one node ends all.
export SLURM_KILL_BAD_EXIT=1
export SLURM_MPI_TYPE="${SLURM_MPI_TYPE:-pmi2}"
# srun takes no CPUs a task from the job by itself, since 22.05.
[ -z "${SLURM_CPUS_PER_TASK:-}" ] || export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"

srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 \
  --wait=60 --kill-on-bad-exit=1 \
  bash -c "$on_node" on_node bash -c "$command"
