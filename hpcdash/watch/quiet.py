"""Whether a moment lies within quiet hours."""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo

from hpcdash.errors import ConfigError
from hpcdash.watch.settings import QuietHours


def is_quiet(quiet: QuietHours, now_epoch: float) -> bool:
    """By the wall clock of its zone; raises ConfigError for a zone that is not known."""
    if quiet.start == quiet.end:
        return False
    clock = datetime.fromtimestamp(now_epoch, UTC).astimezone(zone_of(quiet.zone)).time()
    if quiet.start < quiet.end:
        return quiet.start <= clock < quiet.end
    return clock >= quiet.start or clock < quiet.end


def zone_of(name: str) -> tzinfo | None:
    """A zone by its IANA name; None, this machine's, for ''."""
    if not name:
        return None
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError):
        raise ConfigError(f"{name!r} is no time zone", "Write one such as Europe/Paris or UTC.") from None
