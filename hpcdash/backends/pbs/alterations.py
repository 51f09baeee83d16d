"""What a person typed to change a job, as qalter and qmove take it: units read, each field named where it is wrong."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from hpcdash.backends.pbs.dialects import Dialect
from hpcdash.domain.units import HOUR, MINUTE, parse_duration
from hpcdash.errors import UsageError

# No QoS. max_run_subjobs came with OpenPBS 20; Slurm's qalter knows a job's name and output file only.
ALTERABLE_OF = {
    Dialect.OPENPBS: ("time", "queue", "nice", "throttle"),
    Dialect.PBS_TEXT: ("time", "queue", "nice"),
    Dialect.TORQUE: ("time", "queue", "nice", "throttle"),
    Dialect.SLURM_WRAPPERS: (),
}
# -p of qalter(1B) takes these; more starts sooner, where a nice that is higher waits longer.
_LEAST_PRIORITY, _MOST_PRIORITY = -1024, 1023
_LONGEST_SECONDS = 2**31 - 1
_MOST_TASKS = 4_000_001
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_QUEUE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(@[A-Za-z0-9][A-Za-z0-9_.:-]*)?")


@dataclass(frozen=True, slots=True)
class Alteration:
    """qalter's options for any job, the queue to move to ('': none), and qalter's options for a whole array."""

    options: tuple[str, ...] = ()
    queue: str = ""
    array_options: tuple[str, ...] = ()


def alteration(dialect: Dialect, changes: Mapping[str, str]) -> Alteration:
    """Reads changes by the names of ALTERABLE; raises UsageError naming the field and what it takes."""
    alterable = ALTERABLE_OF[dialect]
    if not alterable:
        raise UsageError(
            "Slurm's commands by Torque's names change no job", 'Set backend = "slurm" for this cluster: scontrol does.'
        )
    if unknown := [name for name in changes if name not in alterable]:
        raise UsageError(f"{unknown[0]!r} cannot be changed here", f"What can be: {', '.join(alterable)}.")
    if not changes:
        raise UsageError("nothing to change is named", f"What can be changed: {', '.join(alterable)}.")
    options: list[str] = []
    queue = ""
    array_options: tuple[str, ...] = ()
    for name, text in changes.items():
        value = text.strip()
        match name:
            case "time":
                options += ["-l", f"walltime={_time(value)}"]
            case "nice":
                options += ["-p", str(_priority(value))]
            case "queue":
                queue = _queue(value)
            case _:
                tasks = _throttle(value)
                array_options = ("-t", f"%{tasks}") if dialect is Dialect.TORQUE else (f"-Wmax_run_subjobs={tasks}",)
    return Alteration(tuple(options), queue, array_options)


def _time(value: str) -> str:
    """`36:00:00`: hours, minutes and seconds, without days. Bare: minutes."""
    if value[:1] in ("+", "-"):
        raise UsageError(
            f"time: PBS changes no limit by an amount ({value})", "Write the whole limit: 90 (minutes), 2h, 1-12:00:00."
        )
    try:
        seconds = parse_duration(value, bare_unit_seconds=MINUTE)
    except ValueError as error:
        raise UsageError(f"time: {error}", "A bare number is minutes.") from None
    if seconds is None:
        raise UsageError("time: PBS has no word for unlimited", "Write as much as the queue allows: 48h, 7-00:00:00.")
    if not 0 < seconds <= _LONGEST_SECONDS:
        raise UsageError(f"time: {value!r} is no limit", "Write 90 (minutes), 2h or 1-12:00:00.")
    return f"{seconds // HOUR:02}:{seconds % HOUR // MINUTE:02}:{seconds % MINUTE:02}"


def _priority(value: str) -> int:
    priority = -_integer("nice", value)
    if not _LEAST_PRIORITY <= priority <= _MOST_PRIORITY:
        raise UsageError(
            f"nice: {value} is beyond what PBS takes",
            f"{-_MOST_PRIORITY} to {-_LEAST_PRIORITY}: it is the opposite of a PBS priority.",
        )
    return priority


def _queue(value: str) -> str:
    if "," in value:
        raise UsageError("queue: a PBS job is in one queue", "Name one.")
    if not _QUEUE.fullmatch(value):
        raise UsageError(f"queue: {value!r} is no name")
    return value


def _throttle(value: str) -> int:
    tasks = _integer("throttle", value)
    if not 0 < tasks <= _MOST_TASKS:
        raise UsageError(
            f"throttle: {value!r} is no number of tasks that may run",
            "PBS takes a limit away again for no array: as many as it has tasks are no limit either.",
        )
    return tasks


def _integer(field: str, value: str) -> int:
    if not _INTEGER.fullmatch(value):
        raise UsageError(f"{field}: {value!r} is no whole number")
    return int(value)
