# What runs beside a job is not PBS's to know: it is looked for among the processes, of one node
# alone.
# shellcheck shell=bash
in_use() (
  [ "$(sort -u "$PBS_NODEFILE" | wc -l)" -eq 1 ] || return 2
  beside "PBS_JOBID=$PBS_JOBID"
)
gpu_use() { nvidia-smi --query-gpu=utilization.gpu --format=csv,noheader,nounits; }
