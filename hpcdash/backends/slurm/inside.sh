# srun does not accept '6_1' and '25+1' as jobs: it gets the number that each task and component has
# of its own. Measured on 22.05: with --overlap and --mem=0 the step starts at once while others use
# the whole node. A killed srun takes the step with it; one whose stdin ends notifies the tasks.
# Without an option for GPUs a step has those that the job requested: of --gpus-per-task=1 one GPU
# on each node, of --gpus=4 on one node none at all ("Invalid generic resource"). On nodes with as
# many GPUs --gres=gpu:N gives each node all its own; with different numbers, on each node alone
# --gpus=N does so in 22.05, which refuses --gres there, and --gres=gpu:N in 24.11, where --gpus
# finds the second node busy.
# shellcheck shell=sh disable=SC2016

id=$1 nodes=$2 seconds=$3 has_gpus=$4
shift 4
case $id in *[!0-9]*)
  known=$(squeue -a -h -o "%i %A" -j "$id") || exit
  number=
  while read -r shown number_of; do
    [ "$shown" != "$id" ] || number=$number_of
  done <<known
$known
known
  [ -n "$number" ] || { echo "Invalid job id specified: $id" >&2; exit 1; }
  id=$number ;;
esac
unset SLURM_MEM_PER_CPU SLURM_MEM_PER_GPU SLURM_GPUS SLURM_GPUS_PER_NODE SLURM_GPUS_PER_TASK SLURM_TRES_PER_TASK
export HPCDASH_JOB_CGROUP="job_$id" HPCDASH_JOB_PATTERNS="^SLURM_JOB_ID=$id\$" HPCDASH_NODE_VARIABLE=SLURMD_NODENAME
export HPCDASH_RANK_VARIABLE=SLURM_PROCID HPCDASH_INSIDE=1 HPCDASH_JOB_SUFFIX=
export HPCDASH_JOB_SAME=SLURM_CONF
export HPCDASH_JOB_VARIABLES="SLURM_JOB_ID SLURM_ARRAY_JOB_ID SLURM_HET_JOB_ID SLURM_PACK_JOB_ID"
set -- --mem=0 --mpi=none --kill-on-bad-exit=0 --input=all --export=ALL --chdir=/ \
  sh -c 'HPCDASH_NODE=$SLURMD_NODENAME; export HPCDASH_NODE; exec sh -c "$@"' sh "$@"
step() {
  exec timeout -k 5 "$seconds" srun --jobid="$id" --overlap --immediate=30 --ntasks-per-node=1 "$@"
}
known=
[ -z "$has_gpus" ] || known=$(gpus_by_node "$id")
counts=$(printf '%s\n' "$known" | cut -d ' ' -f 1 | sort -u)
case $counts in
  '' | 0) step --nodes="$nodes" --ntasks="$nodes" "$@" ;;
  *[!0-9]*) ;;
  *) step --nodes="$nodes" --ntasks="$nodes" --gres="gpu:$counts" "$@" ;;
esac
exec 3<&0
case $(srun --version) in *' 2'[012].*) option=--gpus= ;; *) option=--gres=gpu: ;; esac
running=
while read -r count node; do
  [ "$count" -gt 0 ] && gpus=$option$count || gpus=--gres=none
  ( step --nodes=1 --ntasks=1 --nodelist="$node" "$gpus" "$@" <&3 3<&- ) &
  running="$running $!"
done <<known
$known
known
status=0
for one in $running; do wait "$one" || status=$?; done
exit "$status"
