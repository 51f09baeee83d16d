"""[watch] of config.toml: targets of the watchdogs, alerts, recipients; and its reader."""

from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime, time
from functools import partial
from typing import Annotated, Any

from msgspec import Struct, field
from msgspec.structs import asdict

from hpcdash.config import values
from hpcdash.config.model import Key, Reader, SameTable, TableReader, build
from hpcdash.config.problems import KeyPath, dotted, quoted
from hpcdash.config.values import Counted, Flag, Seconds, Share, SomeSeconds, Text
from hpcdash.domain.alerts import Severity
from hpcdash.domain.units import DAY, HOUR, MINUTE

SHARE = 0.85
SCRATCH_SHARE = 0.75
LOSS_KINDS = ("nan", "inf", "divergence", "spike", "plateau", "stall", "limit")
ANYONE = "*"
QUOTA_TOOLS = ("auto", "none", "lfs", "beegfs-ctl", "mmlsquota", "quota")
Level = Annotated[Severity, values.severity]
Texts = Annotated[tuple[str, ...], values.texts]
AbsolutePath = Annotated[str, values.absolute_path]
_NEVER_PRINTED = ("password", "url", "urls", "headers", "text")
LossKinds = Annotated[tuple[str, ...], values.choice_list(*LOSS_KINDS)]


class RunningWatch(Struct, frozen=True):
    """A job that must run or wait: `name` is its exact name, `users` whose it may be (none:
    anyone's).
    """

    name: str
    users: tuple[str, ...] = ()
    severity: Severity = Severity.CRITICAL


class HangingWatch(Struct, frozen=True):
    """Log that has not grown for `limit_seconds`, which indicates a hanging job.

    Evaluations and saves are silent too.
    """

    limit_seconds: SomeSeconds = 30 * MINUTE
    severity: Level = Severity.CRITICAL


class LossWatch(Struct, frozen=True):
    """Reported problems of a training's metrics, of LOSS_KINDS.

    `severity` is that of nan, inf and divergence. limit: it will not reach its final step before
    its time limit, and too few tasks are queued behind it.
    """

    kinds: LossKinds = ("nan", "inf", "divergence", "spike", "stall", "limit")
    severity: Level = Severity.CRITICAL


class StorageWatch(Struct, frozen=True):
    """A path whose bytes and inodes must not run out.

    share: report above this share of the usable space; None: 0.85, or 0.75 if `is_scratch`.
    full_at: the share of the limit at which writes already fail: 0.8 if a file system rebalances
    its disks. floor_bytes, floor_inodes: report when less than this is free. forecast_seconds:
    report when it would be full within this time; None: never. critical_seconds: likewise, grave.
    limit_bytes, limit_inodes: the quota, if no tool reports it (du). planned_bytes_a_day: what the
    training is known to write, if that is more than was measured.
    """

    path: AbsolutePath
    share: Annotated[float | None, values.share] = None
    is_scratch: Flag = False
    full_at: Share = 1.0
    floor_bytes: Annotated[int | None, values.amount_bytes] = None
    floor_inodes: Annotated[int | None, values.count] = None
    forecast_seconds: Annotated[float | None, values.seconds_or_never] = 2 * DAY
    critical_seconds: Seconds = 12 * HOUR
    limit_bytes: Annotated[int | None, values.amount_bytes] = None
    limit_inodes: Annotated[int | None, values.counted] = None
    planned_bytes_a_day: Annotated[float, values.amount_bytes] = 0.0

    @property
    def alert_share(self) -> float:
        return self.share if self.share is not None else SCRATCH_SHARE if self.is_scratch else SHARE


class NodesWatch(Struct, frozen=True):
    """Nodes of some queues (none: all): those out of use, and spares as a share of those in use."""

    queues: Texts = ()
    least_spare_share: Share = 0.05


class ChainWatch(Struct, frozen=True):
    """A chain that runs must have as many jobs or tasks behind it as `fewest_waiting`."""

    fewest_waiting: Counted = 1


class CheckpointWatch(Struct, frozen=True):
    """Saves of a job: every `interval_seconds`, for `save_seconds`.

    `spare_seconds` must remain before its end.
    """

    interval_seconds: SomeSeconds
    save_seconds: SomeSeconds
    spare_seconds: Seconds = 60.0


class FailuresWatch(Struct, frozen=True):
    """`in_a_row` failures of one job on one node; of more than `most_nodes` common ones none can be
    named.
    """

    in_a_row: Counted = 3
    most_nodes: Counted = 2


class PoolsWatch(Struct, frozen=True):
    """Report tasks of shared pools that have had no turn for `no_turn_seconds` since they came or
    last ran, that were interrupted `unsaved_in_a_row` times without a save, in a row or more often
    than they saved, or that save too slowly.
    """

    no_turn_seconds: SomeSeconds = 1.0 * DAY
    unsaved_in_a_row: Counted = 2


class QuietHours(Struct, frozen=True):
    """Hours of every day from `start` to `end` in which only severe alerts are sent.

    `zone` is an IANA name; '' is this machine's. Over midnight where `end` is before `start`; never
    where both are the same.
    """

    start: Annotated[time, values.clock] = time(0)
    end: Annotated[time, values.clock] = time(0)
    zone: Annotated[str, values.zone] = ""
    lets_through: Level = Severity.CRITICAL


class AlertSettings(Struct, frozen=True):
    """Conditions for sending an alert.

    least: less severe alerts are never sent. remind_seconds: send again while it lasts; None:
    never. settle_seconds: how long a problem must be gone before it counts as resolved.
    """

    least: Level = Severity.WARNING
    remind_seconds: Annotated[float | None, values.seconds_or_never] = 24 * HOUR
    settle_seconds: Seconds = 0.0
    tells_recovery: Flag = True
    quiet: Annotated[QuietHours, Key.TABLE] = field(default_factory=QuietHours)


class _Secretive(Struct, frozen=True):
    """Settings that hold secrets: what is printed of them leaves these out."""

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [(name, value) for name, value in asdict(self).items() if name not in _NEVER_PRINTED]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"


class MailSettings(_Secretive, frozen=True):
    """E-mail through an SMTP server.

    `security`: starttls, tls (from the first byte on) or none; certificates are verified. ca_file:
    certificates to trust instead of the system's. The password is never shown.
    """

    recipients: Texts
    sender: Text
    host: Text = "localhost"
    port: Annotated[int, values.port] = 587
    security: Annotated[str, values.one_of("starttls", "tls", "none")] = "starttls"
    user: Text = ""
    password: str = ""
    ca_file: AbsolutePath = ""
    timeout_seconds: SomeSeconds = 20.0


class WebhookSettings(_Secretive, frozen=True):
    """A POST of JSON.

    `form`: json (all there is) or slack (a text: Slack, Mattermost, Rocket.Chat).

    The URL and the headers may hold secrets and are never shown. key: its place in the
    configuration.
    """

    url: str
    form: Annotated[str, values.one_of("json", "slack")] = "json"
    headers: Mapping[str, str] = field(default_factory=dict)
    ca_file: AbsolutePath = ""
    timeout_seconds: SomeSeconds = 20.0
    key: str = ""

    @property
    def unready_name(self) -> str:
        """Name of the channel while its URL is unknown."""
        return f"{self.form} webhook ({self.key})"


class CommandSettings(Struct, frozen=True):
    """A program that gets the alert as JSON on stdin, and in its environment."""

    argv: Texts
    limit_seconds: SomeSeconds = 30.0


class TerminalSettings(Struct, frozen=True):
    """The terminal's bell, and a desktop notification (OSC 9) where it knows these."""

    bell: Flag = True
    notification: Flag = True


class AppriseSettings(_Secretive, frozen=True):
    """Addresses of apprise's, for all it knows; they hold secrets and are never shown.

    key: as a webhook's.
    """

    urls: tuple[str, ...]
    limit_seconds: SomeSeconds = 60.0
    key: str = ""

    @property
    def unready_name(self) -> str:
        """Name of the channel while its addresses are unknown."""
        return f"apprise ({self.key})"


NotifierSettings = (
    MailSettings | WebhookSettings | CommandSettings | TerminalSettings | AppriseSettings
)


class JobSelector(Struct, frozen=True):
    """Selector of jobs by an exact `name` (empty: any), `users` and `clusters` (none: all).

    `users` empty: one's own jobs; ANYONE: everybody's.
    """

    name: Text = ""
    users: Texts = ()
    clusters: Texts = ()

    def is_on(self, cluster: str) -> bool:
        return not self.clusters or cluster in self.clusters


Selected = Annotated[JobSelector, SameTable()]
OnClusters = Annotated[JobSelector, SameTable(only=("clusters",))]


class RunningRule(Struct, frozen=True):
    """A job that must run or wait."""

    meant: Selected
    severity: Level = Severity.CRITICAL


class HangingRule(Struct, frozen=True):
    """Jobs whose output must grow; `log` is a file there instead of their own output, {id} in it a
    job's id.
    """

    meant: Selected
    watch: Annotated[HangingWatch, SameTable()] = field(default_factory=HangingWatch)
    log: AbsolutePath = ""


class LossesRule(Struct, frozen=True):
    """Running trainings whose metrics are read from their output; `log` is a file there instead,
    {id} a job's id.
    """

    meant: Selected = field(default_factory=JobSelector)
    watch: Annotated[LossWatch, SameTable()] = field(default_factory=LossWatch)
    log: AbsolutePath = ""


class StorageRule(Struct, frozen=True):
    """A path there.

    `quota` is one of QUOTA_TOOLS; `quota_of`: user, user:NAME, group:NAME or project:ID.
    """

    watch: Annotated[StorageWatch, SameTable()]
    meant: OnClusters = field(default_factory=JobSelector)
    quota: Annotated[str, values.one_of(*QUOTA_TOOLS)] = "auto"
    quota_of: Annotated[str, values.quota_owner] = "user"

    @property
    def counts_by_du(self) -> bool:
        """Whether it has limits of its own, so that its file system's figures are not its own."""
        return self.watch.limit_bytes is not None or self.watch.limit_inodes is not None


class NodesRule(Struct, frozen=True):
    """Nodes out of use, and spares."""

    meant: OnClusters = field(default_factory=JobSelector)
    watch: Annotated[NodesWatch, SameTable()] = field(default_factory=NodesWatch)


class ChainRule(Struct, frozen=True):
    """Chains that must go on."""

    meant: Selected
    watch: Annotated[ChainWatch, SameTable()] = field(default_factory=ChainWatch)


class SavesRule(Struct, frozen=True):
    """Rule on the saves of jobs.

    The last save is the newest of `saved`, a pattern of files there, or of the whole checkpoints in
    the folder `checkpoints`; {id} in either is a job's ID. '' both: those of the request of a job's
    launch, if any.
    """

    meant: Selected
    watch: Annotated[CheckpointWatch, SameTable()]
    checkpoints: AbsolutePath = ""
    saved: AbsolutePath = ""


class FailuresRule(Struct, frozen=True):
    """Nodes that fail a job again and again."""

    meant: OnClusters = field(default_factory=JobSelector)
    watch: Annotated[FailuresWatch, SameTable()] = field(default_factory=FailuresWatch)


class PoolsRule(Struct, frozen=True):
    """Tasks of the pools that [share.POOL] names, by what their coordinators publish."""

    meant: Selected = field(default_factory=JobSelector)
    watch: Annotated[PoolsWatch, SameTable()] = field(default_factory=PoolsWatch)


class Secret(_Secretive, frozen=True):
    """Secret that is never shown: a `text` of the configuration, a `file` or a `variable`.

    The file's first line and the environment variable are of this machine; '' all three for none.
    """

    text: str = ""
    file: str = ""
    variable: str = ""


class NotificationChannel(Struct, frozen=True):
    """Channel of notifications: settings that lack their `secrets`, by the field each fills.

    `key` is its place in the file.
    """

    settings: MailSettings | WebhookSettings | CommandSettings | AppriseSettings
    secrets: Mapping[str, Secret] = field(default_factory=dict)
    key: str = ""


def _round_seconds(value: object) -> float:
    """Read the interval of rounds: a minute to a day."""
    return values.number(
        values.seconds(value), 60, DAY, "seconds", " (a cluster must not be asked more often)"
    )


class WatchSettings(Struct, frozen=True):
    """[watch].

    every_seconds: the interval between rounds of `hpcdash watch`. pulse_file: the file on this
    machine to which PULSE lines are appended; '' for stdout. unreachable_rounds: after how many
    rounds without an answer a cluster is reported. never_starts: whether the user's jobs that will
    never start are reported. snooze_seconds: how long a key press snoozes an alert. snoozed: keys
    of alerts, or rules such as `storage/`, and the epoch until which they are snoozed. terminal:
    None if the dashboard does not ring. metric_patterns: the user's own, from [metrics].
    is_configured: whether there is a [watch] at all.
    """

    every_seconds: Annotated[float, _round_seconds] = 10.0 * MINUTE
    pulse_file: Annotated[str, values.path_here] = ""
    unreachable_rounds: Counted = 3
    never_starts: Flag = True
    snooze_seconds: SomeSeconds = 4.0 * HOUR
    snoozed: Annotated[Mapping[str, float], Key.APART] = field(default_factory=dict)
    alerts: Annotated[AlertSettings, SameTable()] = field(default_factory=AlertSettings)
    running: Annotated[tuple[RunningRule, ...], Key.APART] = ()
    hanging: Annotated[tuple[HangingRule, ...], Key.APART] = ()
    losses: Annotated[tuple[LossesRule, ...], Key.APART] = ()
    storage: Annotated[tuple[StorageRule, ...], Key.APART] = ()
    nodes: Annotated[tuple[NodesRule, ...], Key.APART] = ()
    chains: Annotated[tuple[ChainRule, ...], Key.APART] = ()
    saves: Annotated[tuple[SavesRule, ...], Key.APART] = ()
    failures: Annotated[tuple[FailuresRule, ...], Key.APART] = ()
    pools: Annotated[tuple[PoolsRule, ...], Key.APART] = ()
    notices: tuple[NotificationChannel, ...] = ()
    terminal: Annotated[TerminalSettings | None, Key.TABLE] = None
    metric_patterns: tuple[str, ...] = ()
    is_configured: bool = False


def is_quiet(quiet: QuietHours, now_epoch: float) -> bool:
    """By the wall clock of its zone; raises ConfigError for a zone that is not known."""
    if quiet.start == quiet.end:
        return False
    clock = datetime.fromtimestamp(now_epoch, UTC).astimezone(values.zone_of(quiet.zone)).time()
    if quiet.start < quiet.end:
        return quiet.start <= clock < quiet.end
    return clock >= quiet.start or clock < quiet.end


_RULES: Mapping[str, Any] = {
    "running": RunningRule,
    "hanging": HangingRule,
    "losses": LossesRule,
    "storage": StorageRule,
    "nodes": NodesRule,
    "chains": ChainRule,
    "saves": SavesRule,
    "failures": FailuresRule,
    "pools": PoolsRule,
}
# Where a secret is: by the end of its key.
_SECRETS: Mapping[str, tuple[str, Reader]] = {
    "": ("text", values.secret_text),
    "_file": ("file", values.path_here),
    "_env": ("variable", values.variable_name),
}


def read_watch(
    reader: TableReader, document: Mapping[str, object], clusters: Collection[str]
) -> WatchSettings:
    """Read `watch` of a document; `clusters` are those that it configures."""
    if "watch" not in document:
        return WatchSettings()
    return _WatchReader(reader, reader.table(document, (), "watch"), clusters).settings()


class _WatchReader:
    def __init__(
        self, reader: TableReader, table: Mapping[str, Any], clusters: Collection[str]
    ) -> None:
        self._reader = reader
        self._table = table
        self._clusters = clusters

    def settings(self) -> WatchSettings:
        ways = {
            "mail": self._mail,
            "webhook": self._webhook,
            "command": self._command,
            "apprise": self._apprise,
        }
        fit = self._reader.fit(WatchSettings, self._table, ("watch",), apart=ways)
        snoozed = self._reader.table(self._table, ("watch",), "snoozed")
        rules = {key: tuple(self._rules(key, record)) for key, record in _RULES.items()}
        notices = [
            read(*at)
            for key, read in ways.items()
            for at in self._reader.tables(self._table, ("watch",), key)
        ]
        return build(
            WatchSettings,
            fit,
            snoozed=self._reader.mapping(snoozed, ("watch", "snoozed"), values.moment),
            notices=tuple(notice for notice in notices if notice is not None),
            is_configured=True,
            **rules,
        )

    def _rules(self, key: str, record: Any) -> Iterable[Any]:
        """The rules of a kind; what cannot be used is left out."""
        for table, path in self._reader.tables(self._table, ("watch",), key):
            rule = self._reader.record(record, table, path, partial(self._check, record, path))
            if rule is not None and (
                record is not RunningRule or self._reader.has(table, path, table, ("name",))
            ):
                yield rule

    def _check(self, record: object, path: KeyPath, fit: Mapping[str, Any]) -> None:
        """Check a rule's table for conflicting values."""
        problem, clusters = self._reader.problem, fit.get("clusters", ())
        for at, name in enumerate(clusters):
            if self._clusters and name not in self._clusters:
                problem((*path, "clusters", at), f"there is no [clusters.{name}]")
        if ANYONE in (users := fit.get("users", ())) and len(users) > 1:
            problem(
                (*path, "users"), f"{quoted(ANYONE)} is anyone: no other name belongs beside it"
            )
        if record in (RunningRule, StorageRule) and len(self._clusters) > 1 and not clusters:
            named = quoted(next(iter(self._clusters)))
            problem(
                path, f"there are several clusters: say which it is on, as in clusters = [{named}]"
            )
        if "checkpoints" in fit and "saved" in fit:
            problem((*path, "saved"), "checkpoints or saved tells the last save: one of the two")

    # -- recipients

    def _mail(self, table: Mapping[str, object], path: KeyPath) -> NotificationChannel | None:
        if "password" in table:
            text = "a password does not stand here: password_file or password_env says where it is"
            self._reader.problem((*path, "password"), text)
            table = {key: value for key, value in table.items() if key != "password"}
        fit, secret = self._with_secret(MailSettings, table, path, "password", ("_file", "_env"))
        if not self._reader.has(table, path, fit, ("recipients", "sender")):
            return None
        return NotificationChannel(
            build(MailSettings, fit), {"password": secret} if secret else {}, dotted(path)
        )

    def _webhook(self, table: Mapping[str, object], path: KeyPath) -> NotificationChannel | None:
        headers: dict[str, Secret] = {}
        for end, (field_name, reader) in _SECRETS.items():
            key = f"headers{end}"
            given = self._reader.mapping(self._reader.table(table, path, key), (*path, key), reader)
            headers |= {name: Secret(**{field_name: value}) for name, value in given.items()}
        apart = [f"headers{end}" for end in _SECRETS]
        fit, secret = self._with_secret(
            WebhookSettings, table, path, "url", ("_file", "_env", ""), apart
        )
        if secret is None:
            self._reader.problem(path, "url_file, url_env or url is missing: where to post")
            return None
        secrets = {"url": secret, **{f"headers.{name}": header for name, header in headers.items()}}
        return NotificationChannel(build(WebhookSettings, fit, url=""), secrets, dotted(path))

    def _command(self, table: Mapping[str, object], path: KeyPath) -> NotificationChannel | None:
        settings = self._reader.record(CommandSettings, table, path)
        return None if settings is None else NotificationChannel(settings, key=dotted(path))

    def _apprise(self, table: Mapping[str, object], path: KeyPath) -> NotificationChannel | None:
        fit, secret = self._with_secret(AppriseSettings, table, path, "urls", ("_file", "_env"))
        if secret is None:
            self._reader.problem(
                path, "urls_file or urls_env is missing: where apprise's addresses are"
            )
            return None
        return NotificationChannel(
            build(AppriseSettings, fit, urls=()), {"urls": secret}, dotted(path)
        )

    def _with_secret(
        self,
        record: type,
        table: Mapping[str, object],
        path: KeyPath,
        name: str,
        ends: Iterable[str],
        apart: Iterable[str] = (),
    ) -> tuple[dict[str, Any], Secret | None]:
        ways = {f"{name}{end}": _SECRETS[end] for end in ends}
        readers = {key: reader for key, (_, reader) in ways.items()}
        fit = self._reader.fit(record, table, path, readers, apart)
        given = [key for key in table if key in ways]
        for key in given[1:]:
            self._reader.problem((*path, key), f"{given[0]} says it already")
        found = {field_name: fit.pop(key) for key, (field_name, _) in ways.items() if key in fit}
        return fit, Secret(**found) if found else None
