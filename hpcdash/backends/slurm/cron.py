"""The job that stands in for cron, as sbatch has it."""

from __future__ import annotations

from hpcdash.backends.script.cron import LIMIT_SECONDS, CronJob, CronParts
from hpcdash.domain.units import format_clock

# A job's own variables do not apply to the jobs it submits; SLURM_CONF selects the cluster.
_FUNCTIONS = """
plain() (
  for variable in $(env | sed -n -e 's/^\\(SLURM_[A-Za-z0-9_]*\\)=.*/\\1/p'); do
    [ "$variable" = SLURM_CONF ] || unset "$variable"
  done
  exec "$@"
)
waiting() { squeue -a -h -u "$(id -un)" -n "$name" -t PENDING -o %i; }
submit_again() { plain sbatch --begin="now+$every" "$self"; }
hand_in() { plain sbatch "$1"; }
# Its dependency, singleton, lets no two run at once.
elder() { false; }
"""


def cron_parts(job: CronJob) -> CronParts:
    """A job that is submitted again at its start; `singleton` lets no two run at once."""
    parts = (
        f"--job-name={job.name}",
        "--nodes=1",
        "--ntasks=1",
        f"--time={format_clock(LIMIT_SECONDS)}",
        f"--output={job.output_folder}/%j.out",
        "--dependency=singleton",
        *job.options,
    )
    return CronParts(tuple(f"#SBATCH {word}" for word in parts), _FUNCTIONS)
