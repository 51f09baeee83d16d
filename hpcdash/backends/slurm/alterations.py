"""What a person typed to change a job, as scontrol takes it: units read, each field named where it is wrong."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from hpcdash.backends.actions import ALTERABLE
from hpcdash.domain.units import MINUTE, format_clock, parse_duration
from hpcdash.errors import UsageError

# As far as Slurm's own counters go.
_LONGEST_SECONDS = 2**31 * MINUTE
_MOST_TASKS = 4_000_001
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_NAME = re.compile(r"[^\s,=\x00-\x1f\x7f]+")


@dataclass(frozen=True, slots=True)
class Alteration:
    """`NAME=VALUE` words of `scontrol update`: for any jobs, for one job at a time, and for whole arrays."""

    fields: tuple[str, ...] = ()
    one_job_fields: tuple[str, ...] = ()
    array_fields: tuple[str, ...] = ()


def alteration(changes: Mapping[str, str]) -> Alteration:
    """Reads changes by the names of ALTERABLE; raises UsageError naming the field and what it takes."""
    unknown = [name for name in changes if name not in ALTERABLE]
    if unknown:
        raise UsageError(f"{unknown[0]!r} cannot be changed", f"What can be: {', '.join(ALTERABLE)}.")
    if not changes:
        raise UsageError("nothing to change is named", f"What can be changed: {', '.join(ALTERABLE)}.")
    fields: list[str] = []
    one_job: list[str] = []
    array: list[str] = []
    for name, text in changes.items():
        value = text.strip()
        match name:
            case "time":
                (one_job if value[:1] in ("+", "-") else fields).append(f"timelimit={_time(value)}")
            case "queue":
                # Several, joined with commas, let the job start in whichever is first.
                names = value.split(",")
                fields.append("partition=" + ",".join(_name("queue", one) for one in names))
            case "qos":
                fields.append(f"qos={_name('qos', value)}")
            case "nice":
                fields.append(f"nice={_integer('nice', value)}")
            case _:
                throttle = _integer("throttle", value)
                if not 0 <= throttle <= _MOST_TASKS:
                    raise UsageError(f"throttle: {value!r} is no number of tasks", "0 lets all of them run at once.")
                array.append(f"arraytaskthrottle={throttle}")
    return Alteration(tuple(fields), tuple(one_job), tuple(array))


def _time(value: str) -> str:
    """`02:00:00`, `1-12:00:00`, `UNLIMITED`; `+00:30:00` and `-01:00:00` are added to the limit. Bare: minutes."""
    sign = value[:1] if value[:1] in ("+", "-") else ""
    try:
        seconds = parse_duration(value.removeprefix(sign), bare_unit_seconds=MINUTE)
    except ValueError as error:
        raise UsageError(f"time: {error}", "A bare number is minutes; +30m and -1h change the limit by that.") from None
    if seconds is None:
        if sign:
            raise UsageError(f"time: {value!r} is no amount of time")
        return "UNLIMITED"
    if not 0 < seconds <= _LONGEST_SECONDS:
        raise UsageError(f"time: {value!r} is no limit", "Write 90 (minutes), 2h, 1-12:00:00, or unlimited.")
    return sign + format_clock(seconds)


def _name(field: str, value: str) -> str:
    if not _NAME.fullmatch(value):
        raise UsageError(f"{field}: {value!r} is no name")
    return value


def _integer(field: str, value: str) -> int:
    if not _INTEGER.fullmatch(value):
        raise UsageError(f"{field}: {value!r} is no whole number")
    return int(value)
