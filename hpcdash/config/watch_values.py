"""Readers of [watch]: one value of a TOML document in, a checked value out or Unfit with words."""

from __future__ import annotations

from datetime import datetime, time

from hpcdash.config import values
from hpcdash.config.problems import quoted, shown
from hpcdash.config.values import Reader, ValidationError
from hpcdash.config.watch_settings import zone_of
from hpcdash.domain.alerts import Severity
from hpcdash.domain.units import DAY, parse_duration, parse_memory
from hpcdash.errors import ConfigError

_LONGEST_SECONDS = 3650.0 * DAY
_LARGEST = 10**18


def seconds(value: object) -> float:
    """A number of seconds, or text with a unit: 30m, 2h, 1d12h."""
    if isinstance(value, str):
        try:
            found = parse_duration(value)
        except ValueError:
            found = None
        if found is None:
            raise ValidationError(
                f"expected seconds, or text such as {quoted('30m')} or {quoted('2d')}, not {shown(value)}"
            )
        value = found
    return values.number(value, 0, _LONGEST_SECONDS, "seconds")


def some_seconds(value: object) -> float:
    """More than none."""
    found = seconds(value)
    if found <= 0:
        raise ValidationError("expected more than 0 seconds")
    return found


def round_seconds(value: object) -> float:
    """From one round to the next: a minute to a day."""
    return values.number(seconds(value), 60, DAY, "seconds", " (a cluster must not be asked more often)")


def seconds_or_never(value: object) -> float | str:
    """Seconds; "never" as that word."""
    return "never" if value == "never" else some_seconds(value)


def amount_bytes(value: object) -> int:
    """A number of bytes, or text with a unit: 500G, 2T."""
    if isinstance(value, str):
        try:
            return parse_memory(value)
        except ValueError:
            raise ValidationError(f"expected bytes, or text such as {quoted('500G')}, not {shown(value)}") from None
    return _count(value, 0)


def count(value: object) -> int:
    return _count(value, 0)


def counted(value: object) -> int:
    """One at least."""
    return _count(value, 1)


def share(value: object) -> float:
    """A part of a whole: above 0, at most 1."""
    return values.number(value, 0.001, 1, why=" (a share: 0.85 is 85 %)")


def severity(value: object) -> Severity:
    return Severity[values.one_of("info", "warning", "critical")(value).upper()]


def texts(value: object) -> tuple[str, ...]:
    """An array of texts, one at least."""
    if not isinstance(value, list) or not value:
        raise ValidationError(f"expected an array of texts, not {'an empty one' if value == [] else shown(value)}")
    return tuple(map(values.line_of_text, value))


def some_of(*words: str) -> Reader:
    """An array of some of the words, one at least."""
    one = values.one_of(*words)

    def read(value: object) -> tuple[str, ...]:
        if not isinstance(value, list) or not value:
            raise ValidationError(
                f"expected an array of {', '.join(words)}, not {'an empty one' if value == [] else shown(value)}"
            )
        return tuple(dict.fromkeys(map(one, value)))

    return read


def absolute_path(value: object) -> str:
    text = values.line_of_text(value)
    if not text.startswith("/"):
        raise ValidationError(f"expected a path from the root, not {shown(text)}")
    return text


def path_here(value: object) -> str:
    """A file of this machine, from the root or from the home folder."""
    text = values.line_of_text(value)
    if not text.startswith(("/", "~/")):
        raise ValidationError(f"expected a path from the root or from {quoted('~/')}, not {shown(text)}")
    return text


def clock(value: object) -> time:
    """A time of day, as TOML's own or as text: 22:00."""
    if isinstance(value, time):
        return value
    try:
        return time.fromisoformat(values.line_of_text(value))
    except ValueError:
        raise ValidationError(f"expected a time of day such as {quoted('22:00')}, not {shown(value)}") from None


def zone(value: object) -> str:
    text = values.line_of_text(value)
    try:
        zone_of(text)
    except ConfigError as error:
        raise ValidationError(error.message) from None
    return text


def moment(value: object) -> float:
    """A date and time, as TOML's own; without an offset in this machine's zone. Epoch seconds."""
    if not isinstance(value, datetime):
        raise ValidationError(f"expected a date and time such as 2026-12-01T08:00:00, not {shown(value)}")
    return value.timestamp()


def quota_owner(value: object) -> str:
    text = values.line_of_text(value)
    kind, colon, name = text.partition(":")
    if kind not in ("user", "group", "project") or (kind != "user" and not name) or (colon and not name):
        raise ValidationError(f"expected user, user:NAME, group:NAME or project:ID, not {shown(text)}")
    if name.startswith("-"):
        raise ValidationError("a name does not begin with '-'")
    return text


def secret_text(value: object) -> str:
    """Text that no message repeats."""
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise ValidationError("expected text in quotes, on one line")
    return value


def secret_texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise ValidationError("expected an array of texts")
    return tuple(map(secret_text, value))


def variable_name(value: object) -> str:
    text = values.line_of_text(value)
    if not text.replace("_", "a").isalnum() or not text.isascii() or text[0].isdigit():
        raise ValidationError("expected the name of an environment variable, not its value")
    return text


def _count(value: object, smallest: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not smallest <= value <= _LARGEST:
        raise ValidationError(f"expected a whole number of at least {smallest}, not {shown(value)}")
    return value
