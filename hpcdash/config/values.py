"""Readers of TOML values: each returns a checked value or raises ValueError."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from datetime import datetime, time, tzinfo
from functools import partial
from typing import Annotated, TypeVar
from urllib.parse import urlsplit

from hpcdash.config.destination import USER_NAME, SshDestination, parse_ssh_destination
from hpcdash.config.model import Reader
from hpcdash.config.problems import did_you_mean, printable, quoted, shown
from hpcdash.domain.alerts import Severity
from hpcdash.domain.units import DAY, parse_duration, parse_memory
from hpcdash.errors import ConfigError

T = TypeVar("T")
Choice = TypeVar("Choice", bound=str)
# Value of run_as that stands for the cluster's own `user`.
THE_USER = "user"
_MAX_TEXT_CHARACTERS = 4096
_LONGEST_SECONDS = 3650.0 * DAY
_LARGEST_COUNT = 10**18
_KEY_PRESS = re.compile(r"(?:(?:ctrl|alt|shift|super|hyper|meta)\+)*(?:[a-z][a-z0-9_]*|\S)")
# Of a command: the program and its arguments.
_MAX_ARGUMENTS = 200


def flag(value: object) -> bool:
    """Read true or false."""
    if not isinstance(value, bool):
        raise ValueError(f"expected true or false, not {shown(value)}")
    return value


def parse_line_text(value: object) -> str:
    """Read a text on one line that is not blank."""
    if not isinstance(value, str):
        raise ValueError(f"expected text in quotes, not {shown(value)}")
    if not value.strip():
        raise ValueError("expected text, not an empty string")
    if len(value) > _MAX_TEXT_CHARACTERS:
        raise ValueError(f"too long: at most {_MAX_TEXT_CHARACTERS} characters")
    if printable(value) != value:
        raise ValueError(
            "contains a non-printable character (a line break, a tab, a control character)"
        )
    return value


def line(parse: Callable[[str], T], problem: str = "") -> Callable[[object], T]:
    """Return a reader of a line of text that `parse` accepts.

    `problem` precedes its errors, with {} for the text.
    """

    def read(value: object) -> T:
        text = parse_line_text(value)
        try:
            return parse(text)
        except ValueError as error:
            raise ValueError(f"{problem.format(shown(text))}{error}") from None

    return read


def line_like(fits: Callable[[str], object], problem: str) -> Callable[[object], str]:
    """Return a reader of a line of text that fits; `problem` is the error, with {} for the text."""

    def check(text: str) -> str:
        if not fits(text):
            raise ValueError(problem.format(shown(text)))
        return text

    return line(check)


def number(value: object, smallest: float, largest: float, unit: str = "", note: str = "") -> float:
    """Read a finite number in a range, both ends included; a `note` on the range ends its error."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        kind = f"a number of {unit}" if unit else "a number"
        raise ValueError(f"expected {kind}, not {shown(value)}")
    if not smallest <= value <= largest:
        amounts = f"{smallest:g} to {largest:g} {unit}".rstrip()
        raise ValueError(f"expected {amounts}{note}, not {shown(value)}")
    return float(value)


def in_range(smallest: float, largest: float, unit: str = "", note: str = "") -> Reader:
    """Return a reader of a number in a range."""
    return partial(number, smallest=smallest, largest=largest, unit=unit, note=note)


def whole_in_range(smallest: int, largest: int, unit: str) -> Reader:
    """Return a reader of a number in a range that is whole, 30.0 too."""

    def read(value: object) -> int:
        found = number(value, smallest, largest, unit)
        if not found.is_integer():
            raise ValueError(f"expected a whole number, not {shown(value)}")
        return int(found)

    return read


def seconds_in_range(smallest: float, largest: float, note: str = "") -> Reader:
    """Return a reader of a number of seconds in a range, or of text with a unit."""
    return lambda value: number(seconds(value), smallest, largest, "seconds", note)


def whole(value: object, smallest: int, largest: int) -> int:
    """Read a whole number in a range, both ends included."""
    if isinstance(value, bool) or not isinstance(value, int) or not smallest <= value <= largest:
        raise ValueError(
            f"expected a whole number from {smallest} to {largest}, not {shown(value)}"
        )
    return value


def count(value: object, smallest: int = 0) -> int:
    try:
        return whole(value, smallest, _LARGEST_COUNT)
    except ValueError:
        raise ValueError(
            f"expected a whole number of at least {smallest}, not {shown(value)}"
        ) from None


def one_of(*choices: Choice) -> Callable[[object], Choice]:
    """Return a reader of one text out of several, or of a member of a StrEnum."""

    def read(value: object) -> Choice:
        for choice in choices:
            if choice == value:
                return choice
        hint = did_you_mean(value, choices) if isinstance(value, str) else ""
        raise ValueError(f"expected {', '.join(map(quoted, choices))}, not {shown(value)}{hint}")

    return read


def nonempty_array(read: Callable[[object], T], expected: str) -> Callable[[object], tuple[T, ...]]:
    """Return a reader of an array of at least one value; `expected` names them in its errors."""

    def read_all(value: object) -> tuple[T, ...]:
        if not isinstance(value, list) or not value:
            found = "an empty one" if value == [] else shown(value)
            raise ValueError(f"expected an array of {expected}, not {found}")
        return tuple(map(read, value))

    return read_all


def choice_list(*choices: str) -> Callable[[object], tuple[str, ...]]:
    """Return a reader of an array of at least one of the choices."""
    return nonempty_array(one_of(*choices), ", ".join(choices))


def http_url(value: object) -> str:
    """Read the URL of a server: http or https, a host, and optionally a port and a path."""
    text = parse_line_text(value)
    try:
        parts = urlsplit(text)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_url = False
    if not is_url or parts.query or parts.fragment:
        raise ValueError(f"{shown(text)} is not a server URL such as http://127.0.0.1:8265")
    if parts.username is not None:
        raise ValueError("a URL cannot contain a user name or password: use token_file")
    return text.rstrip("/")


def key_presses(value: object) -> str:
    """Read one or more keys joined with ','; blanks around them are dropped."""
    keys = [part.strip() for part in parse_line_text(value).split(",")]
    for key in keys:
        if not key:
            raise ValueError('a key is missing next to a comma (the key itself is called "comma")')
        if not _KEY_PRESS.fullmatch(key):
            raise ValueError(f'{shown(key)} is not a key; keys look like "x", "ctrl+x", "f5"')
    return ",".join(keys)


def metric_pattern(value: object) -> str:
    """Read a regular expression whose named groups are metrics."""
    # numpy comes with it, and a configuration without patterns need not wait for it.
    from hpcdash.config.metric_patterns import compile_patterns

    text = parse_line_text(value)
    try:
        compile_patterns((text,))
    except ConfigError as error:
        raise ValueError(f"{error.message}; {error.next_step}") from None
    return text


def column(value: object, known: Collection[str]) -> str:
    """Read the name of a column."""
    if not isinstance(value, str) or value not in known:
        hint = did_you_mean(value, known) if isinstance(value, str) else ""
        raise ValueError(f"{shown(value)} is not a column{hint}")
    return value


def column_list(value: object, known: Collection[str]) -> tuple[str, ...]:
    """Read names of columns, each once."""
    names = nonempty_array(partial(column, known=known), "column names")(value)
    for index, name in enumerate(names):
        if name in names[:index]:
            raise ValueError(f"{shown(name)} is listed twice")
    return names


def sort_column(value: object, known: Collection[str]) -> str:
    """Read a column's name, with '-' in front for the largest first."""
    text = parse_line_text(value)
    column(text.removeprefix("-"), known)
    return text


def seconds(value: object) -> float:
    """Read a number of seconds, or text with a unit: 30m, 2h, 1d12h."""
    found: object = value
    if isinstance(value, str):
        try:
            found = parse_duration(value)
        except ValueError:
            found = None
        if found is None:
            raise ValueError(f'expected seconds, or text such as "30m" or "2d", not {shown(value)}')
    return number(found, 0, _LONGEST_SECONDS, "seconds")


def some_seconds(value: object) -> float:
    """Read more than 0 seconds."""
    found = seconds(value)
    if found <= 0:
        raise ValueError("expected more than 0 seconds")
    return found


def seconds_or_never(value: object) -> float | None:
    """Read more than 0 seconds, or "never" as None."""
    return None if value == "never" else some_seconds(value)


def argv(value: object, example: str = "") -> tuple[str, ...]:
    """Read a program and its arguments, which may be empty, hold blanks, or be several lines."""
    if not isinstance(value, list) or not 1 <= len(value) <= _MAX_ARGUMENTS:
        raise ValueError(
            f"expected the program and its arguments{example} in brackets, not {shown(value)}; "
            "the text is not split by a shell"
        )
    for word in value:
        if not isinstance(word, str):
            raise ValueError(f"expected text in quotes, not {shown(word)}")
        if "\0" in word:
            raise ValueError("a command cannot contain a NUL")
    if not value[0].strip() or value[0].startswith("-"):
        raise ValueError(f"{shown(value[0])} is not a program")
    return tuple(value)


def amount_bytes(value: object) -> int:
    """Read a number of bytes, or text with a unit: 500G, 2T."""
    if not isinstance(value, str):
        return count(value)
    try:
        return parse_memory(value)
    except ValueError:
        raise ValueError(f'expected bytes, or text such as "500G", not {shown(value)}') from None


def severity(value: object) -> Severity:
    return Severity[one_of("info", "warning", "critical")(value).upper()]


def clock(value: object) -> time:
    """Read a time of day without a time zone, as TOML's own or as text: 22:00."""
    if isinstance(value, time):
        return value
    try:
        found = time.fromisoformat(parse_line_text(value))
    except ValueError:
        raise ValueError(f'expected a time of day such as "22:00", not {shown(value)}') from None
    if found.tzinfo is not None:
        raise ValueError(f"{shown(value)}: set the time zone with zone")
    return found


def zone(value: object) -> str:
    text = parse_line_text(value)
    try:
        time_zone(text)
    except ConfigError as error:
        raise ValueError(error.message) from None
    return text


def time_zone(name: str) -> tzinfo | None:
    """Return a time zone by its IANA name; None, for this machine's, if it is ''.

    Raises ConfigError.
    """
    if not name:
        return None
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError):
        raise ConfigError(
            f"{name!r} is not a time zone", "Use one such as Europe/Paris or UTC."
        ) from None


def moment(value: object) -> float:
    """Read a date and time as epoch seconds; without an offset it is in this machine's zone."""
    if not isinstance(value, datetime):
        raise ValueError(
            f"expected a date and time such as 2026-12-01T08:00:00, not {shown(value)}"
        )
    return value.timestamp()


def secret_text(value: object) -> str:
    """Read a secret, which no message repeats."""
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise ValueError("expected text in quotes, on one line")
    return value


ssh_destination = line(parse_ssh_destination, "{} is not an ssh destination: ")


def ssh_destinations(value: object) -> tuple[SshDestination, ...]:
    """Read a login node, or a list of login nodes of which any will do."""
    listed = value if isinstance(value, list) else [value]
    if not listed:
        raise ValueError("expected at least one login node")
    return tuple(map(ssh_destination, listed))


port = partial(whole, smallest=1, largest=65535)
counted = partial(count, smallest=1)
share = in_range(0.001, 1, note=" (a share: 0.85 is 85%)")
texts = nonempty_array(parse_line_text, "texts")
user_name = line_like(USER_NAME.fullmatch, "{} is not a user name")
site_cluster = line_like(
    re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII).fullmatch, "{} is not the name of a cluster"
)
variable_name = line_like(
    re.compile(r"[^\W\d]\w*", re.ASCII).fullmatch,
    "expected the name of an environment variable, not its value",
)
absolute_path = line_like(re.compile("/").match, "expected an absolute path, not {}")
# A file of this machine.
path_here = line_like(re.compile("~?/").match, "expected a path that starts with / or ~/, not {}")
# Directories joined with ':'.
search_path = line_like(
    re.compile(r"/[^:]*(:/[^:]*)*").fullmatch,
    'expected absolute directories, as in "/opt/slurm/bin", not {}',
)
quota_owner = line_like(
    re.compile(r"user(:[^-].*)?|(group|project):[^-].*").fullmatch,
    "expected user, user:NAME, group:NAME or project:ID, not {}",
)
Flag = Annotated[bool, flag]
Text = Annotated[str, parse_line_text]
Seconds = Annotated[float, seconds]
SomeSeconds = Annotated[float, some_seconds]
Share = Annotated[float, share]
Counted = Annotated[int, counted]
