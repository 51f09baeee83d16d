"""Bash that gives a command what hpcdash.job needs: the library itself on PYTHONPATH, and when the job's time is over.

Knows no request. The library is a zip in the launch's folder, so that nothing need be installed where a job runs.
"""

from __future__ import annotations

import shlex

LIBRARY_NAME = "hpcdash-job.zip"
END_TIME, END_TIME_OF = "HPCDASH_END_TIME", "HPCDASH_END_TIME_OF"
# What a node's environment holds for a container that inherits nothing.
END_TIME_NAMES = (END_TIME, END_TIME_OF)

_SAID = "# The command can `import hpcdash.job` from this zip; job_library = false leaves it out."
_SLURM_END = """\
# When this job's time is over, for hpcdash.job: Slurm is asked once where it does not say so itself.
HPCDASH_END_TIME=${{SLURM_JOB_END_TIME:-$(SLURM_TIME_FORMAT=%s timeout 20 squeue --noheader --format=%e \\
  --jobs="${{SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}}${{SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}}" 2> /dev/null)}}
case $HPCDASH_END_TIME in
  '' | *[!0-9]*) HPCDASH_END_TIME={else_at} ;;
esac
export HPCDASH_END_TIME HPCDASH_END_TIME_OF="$SLURM_JOB_ID"
"""
_PBS_END = """\
# When this job's time is over, for hpcdash.job: PBS says it nowhere.
export HPCDASH_END_TIME={else_at} HPCDASH_END_TIME_OF="$PBS_JOBID"
"""


def library_line(folder: str, before: str = "") -> str:
    """The shell's line that puts the zip in `folder` first on PYTHONPATH, with a comment before it.

    After it comes what PYTHONPATH is then, or `before` where that is given: nothing else of it goes along.
    """
    path = shlex.quote(f"{folder}/{LIBRARY_NAME}")
    rest = f":{shlex.quote(before)}" if before else '"${PYTHONPATH:+:$PYTHONPATH}"'
    return f"{_SAID}\nexport PYTHONPATH={path}{rest}\n"


def slurm_end_time(limit_seconds: int | None) -> str:
    """Bash for sbatch's script: epoch seconds in HPCDASH_END_TIME, anew each time a requeued job starts.

    Where Slurm does not answer it is the start and the limit; without a limit it is empty, and not known.
    """
    return _SLURM_END.format(else_at=_from_now(limit_seconds) or "")


def pbs_end_time(limit_seconds: int | None) -> str:
    """Bash for qsub's script: the start and the limit; empty without one."""
    return _PBS_END.format(else_at=_from_now(limit_seconds) or "")


def _from_now(limit_seconds: int | None) -> str:
    return "" if limit_seconds is None else f"$(($(date +%s) + {int(limit_seconds)}))"
