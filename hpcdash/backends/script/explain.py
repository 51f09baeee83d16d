"""Explanations of a script's directives, in a few words each: what all schedulers share."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from hpcdash.backends.options import Option
from hpcdash.domain.array_tasks import parse_tasks
from hpcdash.domain.units import format_span, parse_duration

# Explains an option by its value, which is '' for an option without one: a text where {} stands for
# the value, or a function.
Formatter = str | Callable[[str], str]
# Words for the jobs that a job waits for.
DEPENDENCIES = {
    "after": "{} began",
    "afterany": "{} ended",
    "afternotok": "{} failed",
    "afterok": "{} succeeded",
}


def fill(formatter: Formatter, value: str) -> str:
    """Return the explanation of a value; it stands as it is in a text."""
    return formatter.replace("{}", value) if isinstance(formatter, str) else formatter(value)


def one_of(known: Mapping[str, str], template: str) -> Formatter:
    """The text of a known value, in lower case, else the filled template."""
    return lambda value: known.get(value.lower(), fill(template, value))


def counted(one: str, many: str) -> Callable[[str], str]:
    """`4 tasks per node`; `1 task per node`."""
    return lambda value: f"{value} {one if value == '1' else many}"


def array(value: str) -> str:
    """`array of 10 tasks, one at a time`."""
    indices, _, throttle = value.partition("%")
    try:
        count = parse_tasks(indices).count
        text = f"array of {count} {'task' if count == 1 else 'tasks'}"
    except ValueError:
        text = f"array {indices}"
    if throttle in ("", "0"):
        return text
    return f"{text}, one at a time" if throttle == "1" else f"{text}, {throttle} at a time"


def span(value: str, clock: re.Pattern[str], bare_unit_seconds: int = 1) -> str:
    """`2:00:00` as `2 h`; a value that is no `clock` as it is."""
    if not clock.fullmatch(value):
        return value
    try:
        seconds = parse_duration(value, bare_unit_seconds=bare_unit_seconds)
    except ValueError:
        return value
    return format_span(seconds or 0, exact=True)


def jobs(ids: Sequence[str]) -> str:
    """`jobs 41, 42`."""
    return f"{'job' if len(ids) == 1 else 'jobs'} {', '.join(ids)}"


def explain_option(option: Option, formatters: Mapping[str, Formatter], scheduler: str) -> str:
    """Explain an option, also one that the scheduler refuses; the values are still hostile."""
    if option.problem == "unknown":
        return f"unknown to {scheduler}: {option.written}"
    if option.problem:
        return f"{option.written} is {option.problem}"
    # Blanks around a value do not show.
    return fill(formatters[option.name], option.value or "").rstrip()
