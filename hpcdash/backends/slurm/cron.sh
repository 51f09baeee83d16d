# A job's own variables do not apply to the jobs it submits; SLURM_CONF selects the cluster.
# shellcheck shell=sh

plain() (
  for variable in $(env | sed -n -e 's/^\(SLURM_[A-Za-z0-9_]*\)=.*/\1/p'); do
    [ "$variable" = SLURM_CONF ] || unset "$variable"
  done
  exec "$@"
)
waiting() { squeue -a -h -u "$(id -un)" -n "$name" -t PENDING -o %i; }
submit_again() { plain sbatch --begin="now+$every" "$self"; }
hand_in() { plain sbatch "$1"; }
# Its dependency, singleton, lets no two run at once.
elder() { false; }
