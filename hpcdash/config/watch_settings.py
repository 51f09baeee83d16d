"""What [watch] of a configuration asks for: what watchdogs look at, when they speak, who is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, time, tzinfo

from hpcdash.domain.alerts import Severity
from hpcdash.domain.units import DAY, HOUR, MINUTE
from hpcdash.errors import ConfigError

SHARE = 0.85
SCRATCH_SHARE = 0.75
LOSS_KINDS = ("nan", "inf", "divergence", "spike", "plateau", "stall", "limit")
ANYONE = "*"
QUOTA_TOOLS = ("auto", "none", "lfs", "beegfs-ctl", "mmlsquota", "quota")


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
class ChainWatch:
    """A chain that runs must have as many jobs or tasks behind it as `fewest_waiting`."""

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


@dataclass(frozen=True, slots=True)
class JobSelector:
    """Which jobs: of an exact `name` (empty: any), `users` (none: one's own; ANYONE: all), `clusters` (none: all)."""

    name: str = ""
    users: tuple[str, ...] = ()
    clusters: tuple[str, ...] = ()

    def is_on(self, cluster: str) -> bool:
        return not self.clusters or cluster in self.clusters


@dataclass(frozen=True, slots=True)
class RunningRule:
    """A job that must run or wait."""

    meant: JobSelector
    severity: Severity = Severity.CRITICAL


@dataclass(frozen=True, slots=True)
class HangingRule:
    """Jobs whose output must grow; `log` is a file there instead of their own output, {id} in it a job's id."""

    meant: JobSelector
    watch: HangingWatch = field(default_factory=HangingWatch)
    log: str = ""


@dataclass(frozen=True, slots=True)
class LossesRule:
    """Running trainings whose metrics are read from their output; `log` is a file there instead, {id} a job's id."""

    meant: JobSelector = field(default_factory=JobSelector)
    watch: LossWatch = field(default_factory=LossWatch)
    log: str = ""


@dataclass(frozen=True, slots=True)
class StorageRule:
    """A path there. `quota` is one of QUOTA_TOOLS; `quota_of`: user, user:NAME, group:NAME or project:ID."""

    watch: StorageWatch
    meant: JobSelector = field(default_factory=JobSelector)
    quota: str = "auto"
    quota_of: str = "user"

    @property
    def counts_by_du(self) -> bool:
        """Whether its own limits say that it is a folder of a larger file system, whose figures are not its own."""
        return self.watch.limit_bytes is not None or self.watch.limit_inodes is not None


@dataclass(frozen=True, slots=True)
class NodesRule:
    """Nodes out of use, and spares."""

    meant: JobSelector = field(default_factory=JobSelector)
    watch: NodesWatch = field(default_factory=NodesWatch)


@dataclass(frozen=True, slots=True)
class ChainRule:
    """Chains that must go on."""

    meant: JobSelector
    watch: ChainWatch = field(default_factory=ChainWatch)


@dataclass(frozen=True, slots=True)
class SavesRule:
    """How jobs save. The last save is the newest of `saved`, a pattern of files there, or of the whole checkpoints in
    the folder `checkpoints`; {id} in either is a job's id. '' both: what the request of a job's launch says, if any."""

    meant: JobSelector
    watch: CheckpointWatch
    checkpoints: str = ""
    saved: str = ""


@dataclass(frozen=True, slots=True)
class FailuresRule:
    """Nodes that fail a job again and again."""

    meant: JobSelector = field(default_factory=JobSelector)
    watch: FailuresWatch = field(default_factory=FailuresWatch)


@dataclass(frozen=True, slots=True)
class Secret:
    """What nobody is shown: a `text` of the configuration itself, the first line of a `file` or an environment
    `variable`, of this machine; '' all three for none."""

    text: str = field(default="", repr=False)
    file: str = ""
    variable: str = ""


@dataclass(frozen=True, slots=True)
class Notice:
    """A way to tell: settings that lack their `secrets`, by the field each fills; `key` is its place in the file."""

    settings: MailSettings | WebhookSettings | CommandSettings | AppriseSettings
    secrets: Mapping[str, Secret] = field(default_factory=dict)
    key: str = ""


@dataclass(frozen=True, slots=True)
class WatchSettings:
    """[watch].

    every_seconds: from one round of `hpcdash watch` to the next. pulse_file: the main log, of this machine, that PULSE
    lines are appended to; '' for stdout. unreachable_rounds: how many rounds in a row a cluster does not answer until
    that is told. never_starts: whether one's own jobs that will never start are told. snooze_seconds: how long a key
    silences an alert. snoozed: keys of alerts, or rules as `storage/`, and until which epoch they are silent.
    terminal: None where the dashboard does not ring. metric_patterns: a person's own, of [metrics]. is_configured:
    whether there is a [watch] at all.
    """

    every_seconds: float = 10.0 * MINUTE
    pulse_file: str = ""
    unreachable_rounds: int = 3
    never_starts: bool = True
    snooze_seconds: float = 4.0 * HOUR
    snoozed: Mapping[str, float] = field(default_factory=dict)
    alerts: AlertSettings = field(default_factory=AlertSettings)
    running: tuple[RunningRule, ...] = ()
    hanging: tuple[HangingRule, ...] = ()
    losses: tuple[LossesRule, ...] = ()
    storage: tuple[StorageRule, ...] = ()
    nodes: tuple[NodesRule, ...] = ()
    chains: tuple[ChainRule, ...] = ()
    saves: tuple[SavesRule, ...] = ()
    failures: tuple[FailuresRule, ...] = ()
    notices: tuple[Notice, ...] = ()
    terminal: TerminalSettings | None = None
    metric_patterns: tuple[str, ...] = ()
    is_configured: bool = False


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
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError):
        raise ConfigError(f"{name!r} is no time zone", "Write one such as Europe/Paris or UTC.") from None
