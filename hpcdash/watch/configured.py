"""What a configuration's [watch] asks for: rules with whom they mean, who is told, when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hpcdash.domain.units import HOUR, MINUTE
from hpcdash.watch.findings import Severity
from hpcdash.watch.settings import (
    AlertSettings,
    AppriseSettings,
    CheckpointWatch,
    CommandSettings,
    FailuresWatch,
    HangingWatch,
    LossWatch,
    MailSettings,
    NodesWatch,
    StorageWatch,
    TerminalSettings,
    TrainWatch,
    WebhookSettings,
)

ANYONE = "*"
QUOTA_TOOLS = ("auto", "none", "lfs", "beegfs-ctl", "mmlsquota", "quota")


@dataclass(frozen=True, slots=True)
class Meant:
    """Which jobs: of an exact `name` (empty: any), `users` (none: one's own; ANYONE: all), `clusters` (none: all)."""

    name: str = ""
    users: tuple[str, ...] = ()
    clusters: tuple[str, ...] = ()

    def is_on(self, cluster: str) -> bool:
        return not self.clusters or cluster in self.clusters


@dataclass(frozen=True, slots=True)
class RunningRule:
    """A job that must run or wait."""

    meant: Meant
    severity: Severity = Severity.CRITICAL


@dataclass(frozen=True, slots=True)
class HangingRule:
    """Jobs whose output must grow; `log` is a file there instead of their own output, {id} in it a job's id."""

    meant: Meant
    watch: HangingWatch = field(default_factory=HangingWatch)
    log: str = ""


@dataclass(frozen=True, slots=True)
class LossesRule:
    """Running trainings whose metrics are read from their output; `log` is a file there instead, {id} a job's id."""

    meant: Meant = field(default_factory=Meant)
    watch: LossWatch = field(default_factory=LossWatch)
    log: str = ""


@dataclass(frozen=True, slots=True)
class StorageRule:
    """A path there. `quota` is one of QUOTA_TOOLS; `quota_of`: user, user:NAME, group:NAME or project:ID."""

    watch: StorageWatch
    meant: Meant = field(default_factory=Meant)
    quota: str = "auto"
    quota_of: str = "user"

    @property
    def counts_by_du(self) -> bool:
        """Whether its own limits say that it is a folder of a larger file system, whose figures are not its own."""
        return self.watch.limit_bytes is not None or self.watch.limit_inodes is not None


@dataclass(frozen=True, slots=True)
class NodesRule:
    """Nodes out of use, and spares."""

    meant: Meant = field(default_factory=Meant)
    watch: NodesWatch = field(default_factory=NodesWatch)


@dataclass(frozen=True, slots=True)
class TrainRule:
    """Trains that must go on."""

    meant: Meant
    watch: TrainWatch = field(default_factory=TrainWatch)


@dataclass(frozen=True, slots=True)
class SavesRule:
    """How jobs save. The last save is the newest of `saved`, a pattern of files there, or of the whole checkpoints in
    the folder `checkpoints`; {id} in either is a job's id. '' both: what the request of a job's launch says, if any."""

    meant: Meant
    watch: CheckpointWatch
    checkpoints: str = ""
    saved: str = ""


@dataclass(frozen=True, slots=True)
class FailuresRule:
    """Nodes that fail a job again and again."""

    meant: Meant = field(default_factory=Meant)
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
    trains: tuple[TrainRule, ...] = ()
    saves: tuple[SavesRule, ...] = ()
    failures: tuple[FailuresRule, ...] = ()
    notices: tuple[Notice, ...] = ()
    terminal: TerminalSettings | None = None
    metric_patterns: tuple[str, ...] = ()
    is_configured: bool = False
