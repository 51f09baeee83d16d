"""Records of [watch] in config.toml: targets of the watchdogs, alerts and recipients.

example.toml explains their keys.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, time
from typing import Annotated, Any, Self

from msgspec import Struct
from msgspec.structs import asdict, replace

from hpcdash.config import values
from hpcdash.config.model import Key, Reader, SameTable, Table, build, record_keys
from hpcdash.config.problems import dotted, quoted
from hpcdash.config.values import Counted, Flag, Seconds, Share, SomeSeconds, Text
from hpcdash.domain.alerts import Severity
from hpcdash.domain.units import DAY, HOUR, MINUTE

SHARE = 0.85
SCRATCH_SHARE = 0.75
LOSS_KINDS = ("nan", "inf", "divergence", "spike", "plateau", "stall", "limit")
ANYONE = "*"
RULE_TABLES = (
    "running",
    "hanging",
    "losses",
    "storage",
    "nodes",
    "chains",
    "saves",
    "failures",
    "pools",
)
QUOTA_TOOLS = ("auto", "none", "lfs", "beegfs-ctl", "mmlsquota", "quota")
Level = Annotated[Severity, values.severity]
Texts = Annotated[tuple[str, ...], values.texts]
AbsolutePath = Annotated[str, values.absolute_path]
_NEVER_PRINTED = ("password", "url", "urls", "headers", "text")
LossKinds = Annotated[tuple[str, ...], values.choice_list(*LOSS_KINDS)]


class QuietHours(Struct, frozen=True):
    """Hours of every day from `start` to `end` in which only severe alerts are sent.

    They cross midnight if `end` is before `start`; there are none if both are equal. `zone` is an
    IANA name, '' for this machine's zone.
    """

    start: Annotated[time, values.clock] = time(0)
    end: Annotated[time, values.clock] = time(0)
    zone: Annotated[str, values.zone] = ""
    lets_through: Level = Severity.CRITICAL


class AlertSettings(Struct, frozen=True):
    """Conditions for sending an alert; remind_seconds: None: send it once."""

    least: Level = Severity.WARNING
    remind_seconds: Annotated[float | None, values.seconds_or_never] = 24 * HOUR
    settle_seconds: Seconds = 0.0
    tells_recovery: Flag = True
    quiet: QuietHours = QuietHours()


class _Secretive(Struct, frozen=True):
    """Settings with secrets, which their printed form leaves out."""

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [(name, value) for name, value in asdict(self).items() if name not in _NEVER_PRINTED]

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"{type(self).__name__}({shown})"


def _refuse_password(value: object) -> str:
    text = "passwords are not read from this file: set password_file or password_env"
    raise ValueError(text)


class MailSettings(_Secretive, frozen=True):
    """E-mail through an SMTP server.

    security: starttls, tls (from the first byte on) or none; certificates are verified. ca_file:
    certificates to trust instead of the system's. The password is never shown.
    """

    recipients: Texts
    sender: Text
    host: Text = "localhost"
    port: Annotated[int, values.port] = 587
    security: Annotated[str, values.one_of("starttls", "tls", "none")] = "starttls"
    user: Text = ""
    password: Annotated[str, _refuse_password] = ""
    ca_file: AbsolutePath = ""
    timeout_seconds: SomeSeconds = 20.0


class WebhookSettings(_Secretive, frozen=True):
    """Webhook that JSON is posted to.

    form: json (all fields) or slack (a text: Slack, Mattermost, Rocket.Chat). The URL and
    the headers may hold secrets and are never shown.
    """

    url: str = ""
    form: Annotated[str, values.one_of("json", "slack")] = "json"
    headers: Mapping[str, str] = {}
    ca_file: AbsolutePath = ""
    timeout_seconds: SomeSeconds = 20.0


class CommandSettings(Struct, frozen=True):
    """Program that gets the alert as JSON on stdin, and in its environment."""

    argv: Texts
    limit_seconds: SomeSeconds = 30.0


class TerminalSettings(Struct, frozen=True):
    """Terminal's bell, and a desktop notification if the terminal has them (OSC 9)."""

    bell: Flag = True
    notification: Flag = True


class AppriseSettings(_Secretive, frozen=True):
    """Addresses of services that apprise supports; they hold secrets and are never shown."""

    urls: tuple[str, ...] = ()
    limit_seconds: SomeSeconds = 60.0


NotifierSettings = (
    MailSettings | WebhookSettings | CommandSettings | TerminalSettings | AppriseSettings
)


class JobSelector(Struct, frozen=True):
    """Selector of jobs by an exact `name` (empty: any), `users` and `clusters` (none: all).

    users: empty for the user's own jobs, ANYONE for all jobs.
    """

    name: Text = ""
    users: Texts = ()
    clusters: Texts = ()

    def is_on(self, cluster: str) -> bool:
        return not self.clusters or cluster in self.clusters

    def selected_users(self, own_user: str) -> tuple[str, ...]:
        """Return the names of the users; () for anyone."""
        if ANYONE in self.users:
            return ()
        return self.users or ((own_user,) if own_user else ())

    @staticmethod
    def check(table: Table, fit: Mapping[str, Any]) -> None:
        known = _cluster_names(table)
        for index, name in enumerate(fit.get("clusters", ())):
            if known and name not in known:
                table.add_problem(f"no [clusters.{name}] in the configuration", "clusters", index)
        if ANYONE in (users := fit.get("users", ())) and len(users) > 1:
            table.add_problem(f"{quoted(ANYONE)} means everyone: remove the other names", "users")


def _cluster_names(table: Table) -> list[str]:
    clusters = table.document.get("clusters")
    return list(clusters) if isinstance(clusters, dict) else []


def _require_cluster(table: Table, fit: Mapping[str, Any]) -> None:
    """Add a problem if there are several clusters and the rule selects none of them."""
    known = _cluster_names(table)
    if len(known) > 1 and not fit.get("clusters"):
        text = "there are several clusters: choose one, as in clusters ="
        table.add_problem(f"{text} [{quoted(known[0])}]")


Selected = Annotated[JobSelector, SameTable()]
OnClusters = Annotated[JobSelector, SameTable(only=("clusters",))]


class RunningRule(Struct, frozen=True):
    """Job that must be running or pending."""

    selector: Selected = JobSelector()
    severity: Level = Severity.CRITICAL

    @staticmethod
    def check(table: Table, fit: Mapping[str, Any]) -> None:
        table.require(fit, "name")
        _require_cluster(table, fit)


class HangingRule(Struct, frozen=True):
    """Running jobs whose log must grow; evaluations and saves write no log either."""

    selector: Selected = JobSelector()
    limit_seconds: SomeSeconds = 30 * MINUTE
    severity: Level = Severity.CRITICAL
    # File on the cluster in place of the job's output, with {id} for the job's ID.
    log: AbsolutePath = ""


class LossesRule(Struct, frozen=True):
    """Running trainings, whose metrics are read from their output."""

    selector: Selected = JobSelector()
    # limit: it will not reach its final step before its time limit, and too few tasks are queued.
    kinds: LossKinds = ("nan", "inf", "divergence", "spike", "stall", "limit")
    # Severity of nan, inf and divergence.
    severity: Level = Severity.CRITICAL
    # File on the cluster in place of the job's output, with {id} for the job's ID.
    log: AbsolutePath = ""


class StorageRule(Struct, frozen=True):
    """Path whose bytes and inodes must not run out."""

    path: AbsolutePath
    selector: OnClusters = JobSelector()
    # None: 0.85, or 0.75 if is_scratch.
    share: Annotated[float | None, values.share] = None
    is_scratch: Flag = False
    full_at: Share = 1.0
    floor_bytes: Annotated[int | None, values.amount_bytes] = None
    floor_inodes: Annotated[int | None, values.count] = None
    # None: no forecast.
    forecast_seconds: Annotated[float | None, values.seconds_or_never] = 2 * DAY
    critical_seconds: Seconds = 12 * HOUR
    # None: as a quota tool reports them.
    limit_bytes: Annotated[int | None, values.amount_bytes] = None
    limit_inodes: Annotated[int | None, values.counted] = None
    planned_bytes_a_day: Annotated[float, values.amount_bytes] = 0.0
    quota: Annotated[str, values.one_of(*QUOTA_TOOLS)] = "auto"
    # user, user:NAME, group:NAME or project:ID.
    quota_of: Annotated[str, values.quota_owner] = "user"

    @property
    def alert_share(self) -> float:
        if self.share is not None:
            return self.share
        return SCRATCH_SHARE if self.is_scratch else SHARE

    @property
    def counts_by_du(self) -> bool:
        """Whether du measures the path, because the limits are the user's own."""
        return self.limit_bytes is not None or self.limit_inodes is not None

    check = staticmethod(_require_cluster)


class NodesRule(Struct, frozen=True):
    """Nodes of some queues (none: all) that are out of use, and spares as a share of used nodes."""

    selector: OnClusters = JobSelector()
    queues: Texts = ()
    least_spare_share: Share = 0.05


class ChainRule(Struct, frozen=True):
    """Running chain that must have at least `fewest_waiting` jobs or tasks queued behind it."""

    selector: Selected = JobSelector()
    fewest_waiting: Counted = 1


class SavesRule(Struct, frozen=True):
    """Saves of a job: every `interval_seconds`, each taking `save_seconds`.

    The last save is the newest file of the pattern `saved` on the cluster, or the newest complete
    checkpoint in the folder `checkpoints`; {id} in either is the job's ID. Without both, it is in
    the checkpoints of the job's request, if it was launched from here.
    """

    interval_seconds: SomeSeconds
    save_seconds: SomeSeconds
    selector: Selected = JobSelector()
    # Time that must remain before the job's end.
    spare_seconds: Seconds = 60.0
    checkpoints: AbsolutePath = ""
    saved: AbsolutePath = ""

    @staticmethod
    def check(table: Table, fit: Mapping[str, Any]) -> None:
        if "checkpoints" in fit and "saved" in fit:
            table.add_problem("checkpoints is also set: set only one of them", "saved")


class FailuresRule(Struct, frozen=True):
    """`in_a_row` failures of a job on a node.

    If the failures have more than `most_nodes` nodes in common, no node is reported.
    """

    selector: OnClusters = JobSelector()
    in_a_row: Counted = 3
    most_nodes: Counted = 2


class PoolsRule(Struct, frozen=True):
    """Tasks of the pools of [share.POOL] that have a problem, as their coordinators publish them.

    They have had no turn for `no_turn_seconds` since their submission or last run, were interrupted
    without a save `unsaved_in_a_row` times in a row or more often than they saved, or save too
    slowly.
    """

    selector: Selected = JobSelector()
    no_turn_seconds: SomeSeconds = 1.0 * DAY
    unsaved_in_a_row: Counted = 2


class Secret(_Secretive, frozen=True):
    """Secret that is never shown: a `text`, a file's first line, or an environment variable.

    File and variable are of this machine; all three are '' for none.
    """

    text: str = ""
    file: str = ""
    variable: str = ""


class NotificationChannel(Struct, frozen=True):
    """Channel of notifications: its settings without secrets, and `secrets` by field.

    `key` is its place in the file.
    """

    settings: MailSettings | WebhookSettings | CommandSettings | AppriseSettings
    secrets: Mapping[str, Secret] = {}
    key: str = ""


class WatchSettings(Struct, frozen=True):
    """Settings of [watch]."""

    every_seconds: Annotated[
        float, values.seconds_in_range(60, DAY, " (clusters must not be polled more often)")
    ] = 10.0 * MINUTE
    # '' for stdout.
    pulse_file: Annotated[str, values.path_here] = ""
    unreachable_rounds: Counted = 3
    never_starts: Flag = True
    snooze_seconds: SomeSeconds = 4.0 * HOUR
    # Epoch until which an alert is snoozed, by its key, or by its rule such as `storage/`.
    snoozed: Mapping[str, Annotated[float, values.moment]] = {}
    alerts: Annotated[AlertSettings, SameTable()] = AlertSettings()
    running: tuple[RunningRule, ...] = ()
    hanging: tuple[HangingRule, ...] = ()
    losses: tuple[LossesRule, ...] = ()
    storage: tuple[StorageRule, ...] = ()
    nodes: tuple[NodesRule, ...] = ()
    chains: tuple[ChainRule, ...] = ()
    saves: tuple[SavesRule, ...] = ()
    failures: tuple[FailuresRule, ...] = ()
    pools: tuple[PoolsRule, ...] = ()
    notices: Annotated[tuple[NotificationChannel, ...], Key.NONE] = ()
    # None if the dashboard does not ring.
    terminal: TerminalSettings | None = None
    # The patterns of [metrics].
    metric_patterns: tuple[str, ...] = ()
    # Whether the file has a [watch].
    is_configured: bool = False

    def on_cluster(self, cluster: str) -> Self:
        """Return these settings with only the rules of a cluster."""
        rules = {
            table: tuple(rule for rule in getattr(self, table) if rule.selector.is_on(cluster))
            for table in RULE_TABLES
        }
        return replace(self, **rules)


def is_quiet(quiet: QuietHours, now_epoch: float) -> bool:
    """Return whether a time is in the quiet hours; raises ConfigError for an unknown zone."""
    if quiet.start == quiet.end:
        return False
    clock = datetime.fromtimestamp(now_epoch, UTC).astimezone(values.time_zone(quiet.zone)).time()
    if quiet.start < quiet.end:
        return quiet.start <= clock < quiet.end
    return clock >= quiet.start or clock < quiet.end


# Field of Secret and its reader, by the ending of the key.
_SECRETS: Mapping[str, tuple[str, Reader]] = {
    "": ("text", values.secret_text),
    "_file": ("file", values.path_here),
    "_env": ("variable", values.variable_name),
}
# By key: the settings, the name of the secret and the endings of its keys.
_CHANNELS: Mapping[str, tuple[Any, str, tuple[str, ...]]] = {
    "mail": (MailSettings, "password", ("_file", "_env")),
    "webhook": (WebhookSettings, "url", ("_file", "_env", "")),
    "command": (CommandSettings, "", ()),
    "apprise": (AppriseSettings, "urls", ("_file", "_env")),
}


def read_watch(root: Table) -> WatchSettings:
    """Read `watch` of a document."""
    if "watch" not in root.values:
        return WatchSettings()
    table = root.table("watch")
    fit = table.fit(WatchSettings, apart=_CHANNELS)
    notices = []
    for key, (record, secret, endings) in _CHANNELS.items():
        for channel_table in table.tables(key):
            notices.append(_read_channel(channel_table, record, secret, endings))
    return build(WatchSettings, fit, notices=tuple(filter(None, notices)), is_configured=True)


def _read_channel(
    table: Table, record: Any, secret: str, endings: Iterable[str]
) -> NotificationChannel | None:
    """Read a channel of notifications, whose `secret` is given by one key; headers are secrets."""
    places = {f"{secret}{ending}": _SECRETS[ending] for ending in endings}
    headers = {}
    if record is WebhookSettings:
        headers = {f"headers{ending}": place for ending, place in _SECRETS.items()}
    fit = table.fit(record, {key: reader for key, (_, reader) in places.items()}, headers)
    given = [key for key in table.values if key in places]
    for key in given[1:]:
        table.add_problem(f"{given[0]} is also set: set only one of them", key)
    secrets = {}
    for key in given:
        if key in fit:
            secrets[secret] = Secret(**{places[key][0]: fit.pop(key)})
    for key, (field, reader) in headers.items():
        for header, value in table.table(key).mapping(reader).items():
            secrets[f"headers.{header}"] = Secret(**{field: value})
    if places and not given and record is not MailSettings:
        *first, last = places
        table.add_problem(f"{', '.join(first)} or {last} is missing")
    if not table.require(fit, *record_keys(record).required):
        return None
    return NotificationChannel(build(record, fit), secrets, dotted(table.path))
