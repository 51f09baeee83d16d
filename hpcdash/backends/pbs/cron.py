"""The job that stands in for cron, as qsub has it."""

from __future__ import annotations

from hpcdash.backends.script.cron import LIMIT_SECONDS, CronJob, CronParts
from hpcdash.domain.units import format_clock

_FUNCTIONS = """
waiting() { qselect -u "$(id -un)" -N "$name" -s HQW; }
submit_again() { qsub -a "$(date -d "+$every seconds" +%Y%m%d%H%M.%S)" "$self"; }
hand_in() { qsub "$1"; }
elder() {
  for other in $(qselect -u "$(id -un)" -N "$name" -s R); do
    [ "${other%%.*}" -lt "${PBS_JOBID%%.*}" ] && return 0
  done
  return 1
}
"""


def cron_parts(job: CronJob) -> CronParts:
    """A job that is submitted again at its start, with the time it may run from (-a)."""
    parts = (
        f"-N {job.name}",
        "-l select=1:ncpus=1",
        f"-l walltime={format_clock(LIMIT_SECONDS)}",
        "-j oe",
        f"-o {job.output_folder}/",
        *job.options,
    )
    return CronParts(tuple(f"#PBS {word}" for word in parts), _FUNCTIONS)
