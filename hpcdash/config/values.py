"""Readers: one value of a TOML document in, a checked value or ValidationError out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import datetime, time, tzinfo
from functools import partial
from typing import Annotated
from urllib.parse import urlsplit

from hpcdash.config.destination import USER_NAME, SshDestination, parse_ssh_destination
from hpcdash.config.model import Reader, ValidationError
from hpcdash.config.problems import did_you_mean, printable, quoted, shown
from hpcdash.domain.alerts import Severity
from hpcdash.domain.units import DAY, parse_duration, parse_memory
from hpcdash.errors import ConfigError

_MAX_TEXT_CHARACTERS = 4096
_LONGEST_SECONDS = 3650.0 * DAY
_LARGEST_COUNT = 10**18
_KEY_PRESS = re.compile(r"(?:(?:ctrl|alt|shift|super|hyper|meta)\+)*(?:[a-z][a-z0-9_]*|\S)")


def flag(value: object) -> bool:
    """true or false."""
    if not isinstance(value, bool):
        raise ValidationError(f"expected true or false, not {shown(value)}")
    return value


def parse_line_text(value: object) -> str:
    """Text on one line that shows something."""
    if not isinstance(value, str):
        raise ValidationError(f"expected text in quotes, not {shown(value)}")
    if not value.strip():
        raise ValidationError("expected text, not an empty string")
    if len(value) > _MAX_TEXT_CHARACTERS:
        raise ValidationError(f"too long: at most {_MAX_TEXT_CHARACTERS} characters")
    if printable(value) != value:
        raise ValidationError(
            "holds a character that does not print (a line break, a tab, a control character)"
        )
    return value


def number(value: object, smallest: float, largest: float, unit: str = "", why: str = "") -> float:
    """A finite number in a range, both ends included."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValidationError(
            f"expected a number{f' of {unit}' if unit else ''}, not {shown(value)}"
        )
    if not smallest <= value <= largest:
        raise ValidationError(
            f"expected {smallest:g} to {largest:g}{f' {unit}' if unit else ''}{why}, not "
            f"{shown(value)}"
        )
    return float(value)


def in_range(smallest: float, largest: float, unit: str = "", why: str = "") -> Reader:
    """A reader of a number in a range."""
    return partial(number, smallest=smallest, largest=largest, unit=unit, why=why)


def whole_in_range(smallest: int, largest: int, unit: str) -> Reader:
    """A reader of a number in a range that is whole, 30.0 too."""

    def read(value: object) -> int:
        found = number(value, smallest, largest, unit)
        if not found.is_integer():
            raise ValidationError(f"expected a whole number, not {shown(value)}")
        return int(found)

    return read


def whole(value: object, smallest: int, largest: int) -> int:
    """A whole number in a range, both ends included."""
    if isinstance(value, bool) or not isinstance(value, int) or not smallest <= value <= largest:
        raise ValidationError(
            f"expected a whole number from {smallest} to {largest}, not {shown(value)}"
        )
    return value


def count(value: object, smallest: int = 0) -> int:
    if (
        isinstance(value, bool)
        or not isinstance(value, int)
        or not smallest <= value <= _LARGEST_COUNT
    ):
        raise ValidationError(f"expected a whole number of at least {smallest}, not {shown(value)}")
    return value


def counted(value: object) -> int:
    """One at least."""
    return count(value, 1)


def one_of(*choices: str) -> Callable[[object], str]:
    """A reader of one word out of several."""

    def read(value: object) -> str:
        if not isinstance(value, str) or value not in choices:
            hint = did_you_mean(value, choices) if isinstance(value, str) else ""
            raise ValidationError(
                f"expected {', '.join(map(quoted, choices))}, not {shown(value)}{hint}"
            )
        return value

    return read


def ssh_destination(value: object) -> SshDestination:
    """`[user@]host[:port]`."""
    try:
        return parse_ssh_destination(parse_line_text(value))
    except ValidationError:
        raise
    except ValueError as error:
        raise ValidationError(f"{shown(value)} is not an ssh destination: {error}") from None


def http_url(value: object) -> str:
    """The URL of a server: http or https, a host, perhaps a port and a path."""
    text = parse_line_text(value)
    try:
        parts = urlsplit(text)
        is_url = (
            parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        )
    except ValueError:
        is_url = False
    if not is_url or parts.query or parts.fragment:
        raise ValidationError(
            f"{shown(text)} is not a server's URL: write one such as http://127.0.0.1:8265"
        )
    if parts.username is not None:
        raise ValidationError("a URL with a name or password in it is refused: use token_file")
    return text.rstrip("/")


port = partial(whole, smallest=1, largest=65535)


def user_name(value: object) -> str:
    """Read a user's name on a cluster."""
    text = parse_line_text(value)
    if not USER_NAME.fullmatch(text):
        raise ValidationError(f"{shown(text)} is not a user name")
    return text


def search_path(value: object) -> str:
    """Absolute directories joined with ':'."""
    text = parse_line_text(value)
    if not all(folder.startswith("/") for folder in text.split(":")):
        raise ValidationError(
            f"expected directories from the root, as in {quoted('/opt/slurm/bin')}, not "
            f"{shown(text)}"
        )
    return text


def key_presses(value: object) -> str:
    """One or more keys joined with ','; blanks around them are dropped."""
    keys = [part.strip() for part in parse_line_text(value).split(",")]
    for key in keys:
        if not key:
            raise ValidationError(
                'a key is missing beside a comma (the key itself is called "comma")'
            )
        if not _KEY_PRESS.fullmatch(key):
            raise ValidationError(
                f"{shown(key)} is not a key; keys look like {quoted('x')}, {quoted('ctrl+x')}, "
                f"{quoted('f5')}"
            )
    return ",".join(keys)


def metric_pattern(value: object) -> str:
    """A regular expression whose named groups are metrics."""
    # numpy comes with it, and a configuration without patterns need not wait for it.
    from hpcdash.config.metric_patterns import compile_patterns

    text = parse_line_text(value)
    try:
        compile_patterns((text,))
    except ConfigError as error:
        raise ValidationError(f"{error.message}; {error.next_step}") from None
    return text


def column_list(value: object, known: Iterable[str]) -> tuple[str, ...]:
    """Names of columns, each once."""
    if not isinstance(value, list) or not value:
        raise ValidationError(
            f"expected an array of column names, not "
            f"{'an empty one' if value == [] else shown(value)}"
        )
    for at, name in enumerate(value):
        column(name, known)
        if name in value[:at]:
            raise ValidationError(f"{shown(name)} stands twice")
    return tuple(value)


def sort_column(value: object, known: Iterable[str]) -> str:
    """A column's name, with '-' in front for the largest first."""
    text = parse_line_text(value)
    column(text.removeprefix("-"), known)
    return text


def column(value: object, known: Iterable[str]) -> str:
    """One name of those known."""
    names = tuple(known)
    if not isinstance(value, str) or value not in names:
        hint = did_you_mean(value, names) if isinstance(value, str) else ""
        raise ValidationError(f"{shown(value)} is not a column{hint}")
    return value


def seconds(value: object) -> float:
    """A number of seconds, or text with a unit: 30m, 2h, 1d12h."""
    if isinstance(value, str):
        try:
            found = parse_duration(value)
        except ValueError:
            found = None
        if found is None:
            raise ValidationError(
                f"expected seconds, or text such as {quoted('30m')} or {quoted('2d')}, not "
                f"{shown(value)}"
            )
        value = found
    return number(value, 0, _LONGEST_SECONDS, "seconds")


def some_seconds(value: object) -> float:
    """More than none."""
    found = seconds(value)
    if found <= 0:
        raise ValidationError("expected more than 0 seconds")
    return found


def seconds_or_never(value: object) -> float | None:
    """None for "never"."""
    return None if value == "never" else some_seconds(value)


def amount_bytes(value: object) -> int:
    """A number of bytes, or text with a unit: 500G, 2T."""
    if isinstance(value, str):
        try:
            return parse_memory(value)
        except ValueError:
            raise ValidationError(
                f"expected bytes, or text such as {quoted('500G')}, not {shown(value)}"
            ) from None
    return count(value)


def share(value: object) -> float:
    """A part of a whole: above 0, at most 1."""
    return number(value, 0.001, 1, why=" (a share: 0.85 is 85 %)")


def severity(value: object) -> Severity:
    return Severity[one_of("info", "warning", "critical")(value).upper()]


def texts(value: object) -> tuple[str, ...]:
    """An array of texts, one at least."""
    if not isinstance(value, list) or not value:
        raise ValidationError(
            f"expected an array of texts, not {'an empty one' if value == [] else shown(value)}"
        )
    return tuple(map(parse_line_text, value))


def choice_list(*choices: str) -> Reader:
    """Read an array of some of the words, one at least."""
    one = one_of(*choices)

    def read(value: object) -> tuple[str, ...]:
        if not isinstance(value, list) or not value:
            raise ValidationError(
                f"expected an array of {', '.join(choices)}, not "
                f"{'an empty one' if value == [] else shown(value)}"
            )
        return tuple(dict.fromkeys(map(one, value)))

    return read


def absolute_path(value: object) -> str:
    text = parse_line_text(value)
    if not text.startswith("/"):
        raise ValidationError(f"expected a path from the root, not {shown(text)}")
    return text


def path_here(value: object) -> str:
    """A file of this machine, from the root or from the home folder."""
    text = parse_line_text(value)
    if not text.startswith(("/", "~/")):
        raise ValidationError(
            f"expected a path from the root or from {quoted('~/')}, not {shown(text)}"
        )
    return text


def clock(value: object) -> time:
    """A time of day, as TOML's own or as text: 22:00."""
    if isinstance(value, time):
        return value
    try:
        return time.fromisoformat(parse_line_text(value))
    except ValueError:
        raise ValidationError(
            f"expected a time of day such as {quoted('22:00')}, not {shown(value)}"
        ) from None


def zone(value: object) -> str:
    text = parse_line_text(value)
    try:
        zone_of(text)
    except ConfigError as error:
        raise ValidationError(error.message) from None
    return text


def moment(value: object) -> float:
    """A date and time, as TOML's own; without an offset in this machine's zone. Epoch seconds."""
    if not isinstance(value, datetime):
        raise ValidationError(
            f"expected a date and time such as 2026-12-01T08:00:00, not {shown(value)}"
        )
    return value.timestamp()


def quota_owner(value: object) -> str:
    text = parse_line_text(value)
    kind, colon, name = text.partition(":")
    if (
        kind not in ("user", "group", "project")
        or (kind != "user" and not name)
        or (colon and not name)
    ):
        raise ValidationError(
            f"expected user, user:NAME, group:NAME or project:ID, not {shown(text)}"
        )
    if name.startswith("-"):
        raise ValidationError("a name does not begin with '-'")
    return text


def secret_text(value: object) -> str:
    """Text that no message repeats."""
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise ValidationError("expected text in quotes, on one line")
    return value


def variable_name(value: object) -> str:
    text = parse_line_text(value)
    if not text.replace("_", "a").isalnum() or not text.isascii() or text[0].isdigit():
        raise ValidationError("expected the name of an environment variable, not its value")
    return text


def zone_of(name: str) -> tzinfo | None:
    """A zone by its IANA name; None, this machine's, for ''. Raises ConfigError."""
    if not name:
        return None
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError):
        raise ConfigError(
            f"{name!r} is not a time zone", "Write one such as Europe/Paris or UTC."
        ) from None


Flag = Annotated[bool, flag]
Text = Annotated[str, parse_line_text]
Seconds = Annotated[float, seconds]
SomeSeconds = Annotated[float, some_seconds]
Share = Annotated[float, share]
Counted = Annotated[int, counted]
