"""Readers: one value of a TOML document in, a checked value out or Unfit with words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from hpcdash.config.destination import USER_NAME, SshDestination, parse_ssh_destination
from hpcdash.config.problems import did_you_mean, printable, quoted, shown
from hpcdash.errors import ConfigError

Reader = Callable[[object], object]
# Sites ask users to poll no more often than every 3 to 5 seconds.
MIN_POLL_SECONDS = 3
MAX_POLL_SECONDS = 86_400
MAX_SLOTS = 100_000
_MAX_TEXT_CHARACTERS = 4096
_KEY_PRESS = re.compile(r"(?:(?:ctrl|alt|shift|super|hyper|meta)\+)*(?:[a-z][a-z0-9_]*|\S)")


class ValidationError(ValueError):
    """A value that cannot be used; its text says why and what is expected."""


def flag(value: object) -> bool:
    """true or false."""
    if not isinstance(value, bool):
        raise ValidationError(f"expected true or false, not {shown(value)}")
    return value


def line_of_text(value: object) -> str:
    """Text on one line that shows something."""
    if not isinstance(value, str):
        raise ValidationError(f"expected text in quotes, not {shown(value)}")
    if not value.strip():
        raise ValidationError("expected text, not an empty string")
    if len(value) > _MAX_TEXT_CHARACTERS:
        raise ValidationError(f"too long: at most {_MAX_TEXT_CHARACTERS} characters")
    if printable(value) != value:
        raise ValidationError("holds a character that does not print (a line break, a tab, a control character)")
    return value


def number(value: object, smallest: float, largest: float, unit: str = "", why: str = "") -> float:
    """A finite number in a range, both ends included."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValidationError(f"expected a number{f' of {unit}' if unit else ''}, not {shown(value)}")
    if not smallest <= value <= largest:
        raise ValidationError(
            f"expected {smallest:g} to {largest:g}{f' {unit}' if unit else ''}{why}, not {shown(value)}"
        )
    return float(value)


def poll_seconds(value: object) -> float:
    """Seconds between two polls, 3 to a day."""
    return number(value, MIN_POLL_SECONDS, MAX_POLL_SECONDS, "seconds", " (schedulers must not be asked more often)")


def unfocused_factor(value: object) -> float:
    """How many times slower without focus: 1 to 1000."""
    return number(value, 1, 1000)


def commands_per_minute(value: object) -> int:
    """A ceiling on commands a minute: a whole number from 1 to 600."""
    return _whole(value, 1, 600, "commands a minute")


def cpu_slots(value: object) -> int:
    """How many CPUs jobs may have at once: at least one."""
    return _whole(value, 1, MAX_SLOTS, "CPUs")


def gpu_slots(value: object) -> int:
    """How many GPUs jobs may have at once."""
    return _whole(value, 0, MAX_SLOTS, "GPUs")


def grace_seconds(value: object) -> float:
    """Seconds from TERM to KILL, at most an hour."""
    return number(value, 0, 3600, "seconds")


def _whole(value: object, smallest: int, largest: int, unit: str) -> int:
    found = number(value, smallest, largest, unit)
    if not found.is_integer():
        raise ValidationError(f"expected a whole number, not {shown(value)}")
    return int(found)


def controller_share(value: object) -> float:
    """A fraction of the controller's time, above 0 and at most a tenth."""
    return number(value, 0.001, 0.1, why=" (a tenth of the controller's time is the most hpcdash takes)")


def one_of(*choices: str) -> Callable[[object], str]:
    """A reader of one word out of several."""

    def read(value: object) -> str:
        if not isinstance(value, str) or value not in choices:
            hint = did_you_mean(value, choices) if isinstance(value, str) else ""
            raise ValidationError(f"expected {', '.join(map(quoted, choices))}, not {shown(value)}{hint}")
        return value

    return read


def ssh_destination(value: object) -> SshDestination:
    """`[user@]host[:port]`."""
    try:
        return parse_ssh_destination(line_of_text(value))
    except ValidationError:
        raise
    except ValueError as error:
        raise ValidationError(f"{shown(value)} is no ssh destination: {error}") from None


def port(value: object) -> int:
    """A TCP port."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 65535:
        raise ValidationError(f"expected a whole number from 1 to 65535, not {shown(value)}")
    return value


def user_name(value: object) -> str:
    """Somebody's name on a cluster."""
    text = line_of_text(value)
    if not USER_NAME.fullmatch(text):
        raise ValidationError(f"{shown(text)} is no user name")
    return text


def search_path(value: object) -> str:
    """Absolute directories joined with ':'."""
    text = line_of_text(value)
    if not all(folder.startswith("/") for folder in text.split(":")):
        raise ValidationError(
            f"expected directories from the root, as in {quoted('/opt/slurm/bin')}, not {shown(text)}"
        )
    return text


def key_presses(value: object) -> str:
    """One or more keys joined with ','; blanks around them are dropped."""
    keys = [part.strip() for part in line_of_text(value).split(",")]
    for key in keys:
        if not key:
            raise ValidationError('a key is missing beside a comma (the key itself is called "comma")')
        if not _KEY_PRESS.fullmatch(key):
            raise ValidationError(
                f"{shown(key)} is no key; keys look like {quoted('x')}, {quoted('ctrl+x')}, {quoted('f5')}"
            )
    return ",".join(keys)


def metric_pattern(value: object) -> str:
    """A regular expression whose named groups are metrics."""
    # numpy comes with it, and a configuration without patterns need not wait for it.
    from hpcdash.config.metric_patterns import compile_patterns

    text = line_of_text(value)
    try:
        compile_patterns((text,))
    except ConfigError as error:
        raise ValidationError(f"{error.message}; {error.next_step}") from None
    return text


def column_list(value: object, known: Iterable[str]) -> tuple[str, ...]:
    """Names of columns, each once."""
    if not isinstance(value, list) or not value:
        raise ValidationError(
            f"expected an array of column names, not {'an empty one' if value == [] else shown(value)}"
        )
    for at, name in enumerate(value):
        column(name, known)
        if name in value[:at]:
            raise ValidationError(f"{shown(name)} stands twice")
    return tuple(value)


def sort_column(value: object, known: Iterable[str]) -> str:
    """A column's name, with '-' in front for the largest first."""
    text = line_of_text(value)
    column(text.removeprefix("-"), known)
    return text


def column(value: object, known: Iterable[str]) -> str:
    """One name of those known."""
    names = tuple(known)
    if not isinstance(value, str) or value not in names:
        hint = did_you_mean(value, names) if isinstance(value, str) else ""
        raise ValidationError(f"{shown(value)} is no column{hint}")
    return value
