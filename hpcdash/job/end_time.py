"""End time of a job: from its environment, from arguments, or from a single query to Slurm."""

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
    """Return the earliest known end of the job in epoch seconds, perhaps in the past; None if
    unknown.

    The ends are SLURM_JOB_END_TIME and HPCDASH_END_TIME, which the script of a launch sets, or in
    place of both, with `ask_slurm`, that of `scontrol show job`, which includes extensions; the
    start of this process plus `walltime`, or plus Torque's PBS_WALLTIME; and that start plus
    `exit_duration_in_mins`. Raises ValueError for an invalid walltime.
    """
    given = os.environ if environment is None else environment
    start = process_start()
    ends: list[float | None] = [_query_slurm(given) if ask_slurm else None]
    if ends[0] is None:
        ends.append(_positive(given.get("SLURM_JOB_END_TIME", "")))
        # A job submitted by another job inherits that job's variables, which do not apply to it.
        own_job = given.get("SLURM_JOB_ID") or given.get("PBS_JOBID")
        if not own_job or given.get("HPCDASH_END_TIME_OF") in (None, "", own_job):
            ends.append(_positive(given.get("HPCDASH_END_TIME", "")))
    if walltime is None:
        seconds = _positive(given.get("PBS_WALLTIME", ""))
    else:
        seconds = walltime_seconds(walltime)
    ends.append(start + seconds if seconds else None)
    if exit_duration_in_mins is not None:
        ends.append(start + 60 * float(exit_duration_in_mins))
    return min((end for end in ends if end is not None), default=None)


def walltime_seconds(walltime: float | str) -> float:
    """Return the seconds of `3600`, `90:00` (minutes and seconds), `24:00:00` or `1-12:00:00`.

    Raises ValueError for another text.
    """
    days, dash, clock = str(walltime).strip().rpartition("-")
    try:
        numbers = [float(part) for part in clock.split(":")]
        day_count = int(days) if dash else 0
    except ValueError:
        numbers = []
        day_count = 0
    is_valid = all(0 <= number < 1e12 for number in numbers)
    if not is_valid or not 1 <= len(numbers) <= 3 or day_count < 0:
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
    """Return the start of this process in epoch seconds; the current time if it is unknown."""
    now = time()
    try:
        with open("/proc/self/stat", "rb") as fields, open("/proc/uptime", "rb") as uptime:
            # The 22nd field is the start in clock ticks since boot; the 2nd, in brackets, may
            # have any character.
            ticks = int(fields.read().rpartition(b")")[2].split()[19])
            age = float(uptime.read().split()[0]) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return now
    return now - max(0.0, age)


def _positive(text: str) -> float | None:
    """Parse a number above 0; None for any other text."""
    whole, _, part = text.strip().partition(".")
    is_number = text.isascii() and whole.isdigit() and len(whole) < 16 and f"0{part}".isdigit()
    return (float(f"{whole}.{part or 0}") or None) if is_number else None


def _query_slurm(given: Mapping[str, str]) -> float | None:
    """Return the EndTime of `scontrol show job`; None if it fails: a training needs no Slurm."""
    import re
    import subprocess
    from datetime import datetime, timezone

    job_id = given.get("SLURM_JOB_ID") or given.get("SLURM_JOBID")
    if not job_id:
        return None
    if given.get("SLURM_ARRAY_JOB_ID") and given.get("SLURM_ARRAY_TASK_ID"):
        # The last task of an array has the array's own number, which selects all tasks in scontrol.
        job_id = "{}_{}".format(given["SLURM_ARRAY_JOB_ID"], given["SLURM_ARRAY_TASK_ID"])
    # SLURM_TIME_FORMAT overrides a site's own format of times.
    environment = {**given, "SLURM_TIME_FORMAT": "standard", "TZ": "UTC", "LC_ALL": "C"}
    try:
        output = subprocess.run(
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
    match = re.search(r" StartTime=\S+ EndTime=(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?= )", output)
    if match is None:
        return None
    try:
        return datetime.fromisoformat(match[1]).replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        return None
