# On the embedded queue, which has srun and no list of steps, what runs beside a job has its mark.
# shellcheck shell=bash
in_use() (
  if [ -n "${HPCDASH_ATTEMPT:-}" ]; then beside "HPCDASH_ATTEMPT=$HPCDASH_ATTEMPT"; return; fi
  steps=$(squeue -a -h -s -j "$SLURM_JOB_ID" -o %i) || return 2
  printf '%s\n' "$steps" | grep -Eq '\.([0-9]+|interactive)$'
)
gpu_use() {
  srun --overlap --immediate=30 --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 \
    --mem=0 --mpi=none --input=none nvidia-smi --query-gpu=utilization.gpu --format=csv,noheader,nounits
}
