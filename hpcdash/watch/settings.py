"""What watchdogs look at and when they speak: records with their defaults and units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import time

from hpcdash.domain.units import DAY, HOUR, MINUTE
from hpcdash.watch.findings import Severity

SHARE = 0.85
SCRATCH_SHARE = 0.75
LOSS_KINDS = ("nan", "inf", "divergence", "spike", "plateau", "stall", "limit")


@dataclass(frozen=True, slots=True)
class RunningWatch:
    """A job that must run or wait: `name` is its exact name, `users` whose it may be (none: anyone's)."""

    name: str
    users: tuple[str, ...] = ()
    severity: Severity = Severity.CRITICAL


@dataclass(frozen=True, slots=True)
class HangingWatch:
    """A log that has not grown for `limit_seconds` tells of a job that hangs; evaluations and saves are silent too."""

    limit_seconds: float = 30 * MINUTE
    severity: Severity = Severity.CRITICAL


@dataclass(frozen=True, slots=True)
class LossWatch:
    """What of a training's metrics is told, of LOSS_KINDS; `severity` is of nan, inf and divergence that last.

    limit: it does not get to its final step by its time limit, and too little waits behind it.
    """

    kinds: tuple[str, ...] = ("nan", "inf", "divergence", "spike", "stall", "limit")
    severity: Severity = Severity.CRITICAL


@dataclass(frozen=True, slots=True)
class StorageWatch:
    """A path whose bytes and inodes must not run out.

    share: of what can be used, from where on it is told; None: 0.85, or 0.75 where `is_scratch`.
    full_at: the share of the limit at which writes fail already: 0.8 where a file system rebalances its disks.
    floor_bytes, floor_inodes: told as soon as less than that is free.
    forecast_seconds: told as soon as it would be full within that time; None: never. critical_seconds: likewise, grave.
    limit_bytes, limit_inodes: the quota, where no tool tells it (du).
    planned_bytes_a_day: what the training is known to write, where that is more than what was measured.
    """

    path: str
    share: float | None = None
    is_scratch: bool = False
    full_at: float = 1.0
    floor_bytes: int | None = None
    floor_inodes: int | None = None
    forecast_seconds: float | None = 2 * DAY
    critical_seconds: float = 12 * HOUR
    limit_bytes: int | None = None
    limit_inodes: int | None = None
    planned_bytes_a_day: float = 0.0

    @property
    def alert_share(self) -> float:
        return self.share if self.share is not None else SCRATCH_SHARE if self.is_scratch else SHARE


@dataclass(frozen=True, slots=True)
class NodesWatch:
    """Nodes of some queues (none: all): those out of use, and spares as a share of those in use."""

    queues: tuple[str, ...] = ()
    least_spare_share: float = 0.05


@dataclass(frozen=True, slots=True)
class TrainWatch:
    """A train that runs must have as many jobs or tasks behind it as `fewest_waiting`."""

    fewest_waiting: int = 1


@dataclass(frozen=True, slots=True)
class CheckpointWatch:
    """How a job saves: every `interval_seconds`, for `save_seconds`; `spare_seconds` must remain before its end."""

    interval_seconds: float
    save_seconds: float
    spare_seconds: float = 60.0


@dataclass(frozen=True, slots=True)
class FailuresWatch:
    """`in_a_row` failures of one job on one node; of more than `most_nodes` common ones none can be named."""

    in_a_row: int = 3
    most_nodes: int = 2


@dataclass(frozen=True, slots=True)
class QuietHours:
    """From `start` to `end` of every day in `zone` (an IANA name; '' is this machine's) only grave alerts are told.

    Over midnight where `end` is before `start`; never where both are the same.
    """

    start: time = time(0)
    end: time = time(0)
    zone: str = ""
    lets_through: Severity = Severity.CRITICAL


@dataclass(frozen=True, slots=True)
class AlertSettings:
    """When an alert is told.

    least: what is less grave is never told. remind_seconds: told again while it lasts; None: never.
    settle_seconds: how long it must be gone before it counts as over.
    """

    least: Severity = Severity.WARNING
    remind_seconds: float | None = 24 * HOUR
    settle_seconds: float = 0.0
    tells_recovery: bool = True
    quiet: QuietHours = field(default_factory=QuietHours)


@dataclass(frozen=True, slots=True)
class MailSettings:
    """E-mail through an SMTP server. `security`: starttls, tls (from the first byte on) or none; certificates are
    verified. ca_file: certificates to trust instead of the system's. The password is never shown.
    """

    recipients: tuple[str, ...]
    sender: str
    host: str = "localhost"
    port: int = 587
    security: str = "starttls"
    user: str = ""
    password: str = field(default="", repr=False)
    ca_file: str = ""
    timeout_seconds: float = 20.0


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    """A POST of JSON. `form`: json (all there is) or slack (a text: Slack, Mattermost, Rocket.Chat).

    The URL and the headers may hold secrets and are never shown. key: its place in the configuration.
    """

    url: str = field(repr=False)
    form: str = "json"
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    ca_file: str = ""
    timeout_seconds: float = 20.0
    key: str = ""

    @property
    def unready_name(self) -> str:
        """Of the channel while its URL is not known."""
        return f"{self.form} webhook ({self.key})"


@dataclass(frozen=True, slots=True)
class CommandSettings:
    """A program that gets the alert as JSON on stdin, and in its environment."""

    argv: tuple[str, ...]
    limit_seconds: float = 30.0


@dataclass(frozen=True, slots=True)
class TerminalSettings:
    """The terminal's bell, and a desktop notification (OSC 9) where it knows these."""

    bell: bool = True
    notification: bool = True


@dataclass(frozen=True, slots=True)
class AppriseSettings:
    """Addresses of apprise's, for all it knows; they hold secrets and are never shown. key: as a webhook's."""

    urls: tuple[str, ...] = field(repr=False)
    limit_seconds: float = 60.0
    key: str = ""

    @property
    def unready_name(self) -> str:
        """Of the channel while its addresses are not known."""
        return f"apprise ({self.key})"


NotifierSettings = MailSettings | WebhookSettings | CommandSettings | TerminalSettings | AppriseSettings
