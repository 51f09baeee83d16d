# `node_step` is the text that runs on each node.
# shellcheck shell=bash disable=SC2016
# A step of its own, with all of the job's GPUs. On all nodes, whichever fails first; then the job ends with 1.
prepare_nodes() {
  [ -z "$3" ] || trap '' "$3"
  env -u SLURM_GPUS_PER_TASK -u SLURM_TRES_PER_TASK srun \
    --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --mpi=none \
    --kill-on-bad-exit=0 ${SLURM_CPUS_PER_TASK:+"--cpus-per-task=$SLURM_CPUS_PER_TASK"} \
    bash -c 'exec bash -c "$0" node_step "${SLURMD_NODENAME:-$HOSTNAME}" "$@"' "$node_step" "$@" || exit 1
  [ -z "$3" ] || trap - "$3"
}
