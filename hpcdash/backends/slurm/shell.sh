# srun does not accept '6_1' and '25+1' as jobs: it gets the number that each task and component has
# of its own. --overlap shares all of the job's resources with its other steps; with --cpu-bind=none
# the step has every core of the job, and not one for its one task. The person's own environment
# variables for steps do not apply to this one.
# shellcheck shell=sh

id=$1 node=$2 has_gpus=$3 pty=$4; shift 4
case $id in *[!0-9]*)
  known=$(SLURM_BITSTR_LEN=0 LC_ALL=C squeue -a -h -o "%i %A" -j "$id") || exit
  known=$(printf "%s\n" "$known" | sed -n "s/^$id //p")
  [ -n "$known" ] || { echo "Invalid job id specified: $id" >&2; exit 1; }
  id=$known ;;
esac
for name in $(env | sed -n "s/^\(SLURM_[A-Z_0-9]*\)=.*/\1/p"); do
  case $name in SLURM_CONF) ;; *) unset "$name" ;; esac
done
gpus=
[ -z "$has_gpus" ] || gpus=$(gpus_by_node "$id" | while read -r count on; do
  [ "$on" = "${node:-$on}" ] || continue
  [ "$count" -gt 0 ] && echo "--gpus=$count" || echo --gres=none
  break
done)
exec srun --quiet --jobid="$id" --overlap ${pty:+"$pty"} --immediate=30 --nodes=1 --ntasks=1 \
  ${node:+"--nodelist=$node"} ${gpus:+"$gpus"} --cpu-bind=none --mem=0 --mpi=none --chdir=/ "$@"
