"""End time of a job: from its environment, from arguments, or from a single query to Slurm.

Stops nothing.
"""

from __future__ import annotations

import os
from time import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_SCONTROL_SECONDS = 20


def end_time(
    *,
    walltime: float | str | None = None,
    exit_duration_in_mins: float | None = None,
    ask_slurm: bool = False,
    environment: Mapping[str, str] | None = None,
) -> float | None:
    """Epoch seconds at which the job ends, or should have ended; the earliest of what is known,
    None for nothing.

    Known are SLURM_JOB_END_TIME and HPCDASH_END_TIME, which the script of a launch sets, or instead
    of both, with `ask_slurm`, one `scontrol show job` (which knows of extensions); `walltime`, or
    Torque's PBS_WALLTIME, counted from the start of this process; and `exit_duration_in_mins` after
    that start. Raises ValueError for a walltime that is none.
    """
    given = os.environ if environment is None else environment
    started = process_start()
    ends: list[float | None] = [_query_slurm(given) if ask_slurm else None]
    if ends[0] is None:
        ends += [_positive(given.get("SLURM_JOB_END_TIME", "")), _launch_end(given)]
    seconds = (
        _positive(given.get("PBS_WALLTIME", "")) if walltime is None else walltime_seconds(walltime)
    )
    ends.append(started + seconds if seconds else None)
    if exit_duration_in_mins is not None:
        ends.append(started + 60 * float(exit_duration_in_mins))
    return min((end for end in ends if end is not None), default=None)


def walltime_seconds(walltime: float | str) -> float:
    """Seconds of `3600`, `90:00` (minutes and seconds), `24:00:00` or `1-12:00:00`.

    Raises ValueError for others.
    """
    text = str(walltime).strip()
    days, dash, clock = text.rpartition("-")
    parts = clock.split(":")
    try:
        numbers = [float(part) for part in parts]
        day_count = int(days) if dash else 0
    except ValueError:
        numbers, day_count = [], -1
    if (
        not 1 <= len(numbers) <= 3
        or day_count < 0
        or not all(0 <= number < 1e12 for number in numbers)
    ):
        raise ValueError(
            f"walltime {walltime!r} is not a time: use seconds, HH:MM:SS or D-HH:MM:SS"
        )
    if dash:
        # Slurm: days-hours[:minutes[:seconds]].
        numbers += [0.0] * (3 - len(numbers))
    seconds = 0.0
    for number in numbers:
        seconds = seconds * 60 + number
    return day_count * 86400 + seconds


def process_start() -> float:
    """Return this process's start in epoch seconds, with its imports; now, if it is unknown."""
    now = time()
    try:
        with open("/proc/self/stat", "rb") as fields, open("/proc/uptime", "rb") as uptime:
            # The 22nd field is the start, in clock ticks since boot; the 2nd, in brackets, may hold
            # anything.
            ticks = int(fields.read().rpartition(b")")[2].split()[19])
            age = float(uptime.read().split()[0]) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return now
    return now - max(0.0, age)


def _launch_end(given: Mapping[str, str]) -> float | None:
    """Return the end time that the job's script found; None where it is unknown.

    A job submitted by another job inherits that job's variables, which do not apply to it.
    """
    own = given.get("SLURM_JOB_ID") or given.get("PBS_JOBID") or ""
    whose = given.get("HPCDASH_END_TIME_OF") or own
    return _positive(given.get("HPCDASH_END_TIME", "")) if not own or own == whose else None


def _positive(text: str) -> float | None:
    whole, _, part = text.strip().partition(".")
    is_number = text.isascii() and whole.isdigit() and len(whole) < 16 and f"0{part}".isdigit()
    return (float(f"{whole}.{part or 0}") or None) if is_number else None


def _query_slurm(given: Mapping[str, str]) -> float | None:
    """The EndTime that `scontrol show job` says, None where it does not: Slurm is not needed to
    train.
    """
    import re
    import subprocess
    from datetime import datetime, timezone

    job_id = given.get("SLURM_JOB_ID") or given.get("SLURM_JOBID")
    if not job_id:
        return None
    if given.get("SLURM_ARRAY_JOB_ID") and given.get("SLURM_ARRAY_TASK_ID"):
        # The last task of an array has the array's own number, which means all tasks to scontrol.
        job_id = "{}_{}".format(given["SLURM_ARRAY_JOB_ID"], given["SLURM_ARRAY_TASK_ID"])
    # Without this a site's own format of times would be returned.
    environment = {**given, "SLURM_TIME_FORMAT": "standard", "TZ": "UTC", "LC_ALL": "C"}
    try:
        shown = subprocess.run(
            ["scontrol", "--oneliner", "show", "job", job_id],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_SCONTROL_SECONDS,
            check=False,
        ).stdout.decode("ascii", "replace")
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r" StartTime=\S+ EndTime=(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?= )", shown)
    if found is None:
        return None
    try:
        return (
            datetime.strptime(found[1], "%Y-%m-%dT%H:%M:%S")
            .replace(tzinfo=timezone.utc)
            .timestamp()
        )
    except ValueError:
        return None
