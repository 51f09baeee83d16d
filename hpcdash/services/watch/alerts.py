"""Alerts: each is sent once, again when it lasts or worsens, and once when it is resolved; a moment
just once.

The state is a value: a step makes the next one, and JSON keeps it from one run to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from enum import StrEnum

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from hpcdash.config.watch_settings import AlertSettings, is_quiet
from hpcdash.domain.alerts import ANY_ASPECT, Finding, Severity, finding_key
from hpcdash.domain.units import DAY
from hpcdash.errors import HpcdashError

STATE_SCHEMA = 1
# A job that is requeued and runs again shows its log's events again.
_PASSED_SECONDS = 7.0 * DAY
_MAX_PASSED = 1000
_ASPECT_TITLES = {
    ("is-running", "held"): "Job held",
    ("storage", "inodes"): "Running out of inodes",
    ("loss", "nan"): "Loss is NaN",
    ("loss", "inf"): "Loss is infinite",
    ("loss", "divergence"): "Loss diverging",
    ("loss", "spike"): "Loss spike",
    ("loss", "plateau"): "Loss plateau",
    ("loss", "stall"): "No new samples in the log",
}


class AlertKind(StrEnum):
    RAISED = "raised"
    WORSENED = "worsened"
    REMINDED = "reminded"
    RECOVERED = "recovered"
    UNWATCHED = "unwatched"

    @property
    def is_end(self) -> bool:
        """Whether the problem is resolved, or no longer watched."""
        return self in (AlertKind.RECOVERED, AlertKind.UNWATCHED)


class Ending(Struct, frozen=True):
    """Present state after a finding disappeared.

    `text` describes it ('': unknown). `is_watched` is whether a rule still checks it: what is no
    longer watched did not recover.
    """

    text: str = ""
    is_watched: bool = True


EndingOf = Callable[[Finding], Ending]


def is_over(finding: Finding) -> Ending:
    """Return an ending without details, for any finding that is found no more."""
    return Ending()


class AlertState(Struct, frozen=True):
    """One problem, in epoch seconds: since when, when and how severe it was last sent (None: not
    yet), and since when it is gone.

    told_to: the channels that were told, or are owed it (None: not known; a state of an earlier
    version).
    """

    finding: Finding
    since: float
    told_at: float | None = None
    told_severity: Severity | None = None
    gone_since: float | None = None
    told_to: tuple[str, ...] | None = None


class AlertEvent(Struct, frozen=True):
    """Change of an alert to report.

    `ending` is the present state after an end. `told_to` are the channels that know of the problem,
    or will (None: unknown).
    """

    kind: AlertKind
    finding: Finding
    since: float
    at: float
    ending: str = ""
    told_to: tuple[str, ...] | None = None

    @property
    def key(self) -> str:
        return self.finding.key

    @property
    def text(self) -> str:
        """Text of the finding, or after an end of the present state."""
        return self.ending or self.finding.text


class PendingNotification(Struct, frozen=True):
    """Notification that a channel (a notifier's name) has not accepted since `owed_at` (epoch).

    is_known: the channel was notified of that trouble before. is_for_all: no channel accepted it.
    """

    channel: str
    kind: AlertKind
    finding: Finding
    since: float
    owed_at: float
    is_known: bool = False
    is_for_all: bool = False
    ending: str = ""

    @property
    def key(self) -> str:
        return self.finding.key


def by_severity(one: AlertEvent | PendingNotification) -> tuple[bool, int, str]:
    """Sort problems before resolved ones, the most severe first."""
    return one.kind.is_end, -one.finding.severity, one.key


class Alerts(Struct, frozen=True):
    """All that is wrong now, by key; `snoozed` are keys, or rules as finding_key(rule), and until
    when they are silent; `owed` is what channels are still to be told; `passed` are moments that
    were told and are found no more, and since when.
    """

    states: Mapping[str, AlertState] = field(default_factory=dict)
    snoozed: Mapping[str, float] = field(default_factory=dict)
    owed: tuple[PendingNotification, ...] = ()
    passed: Mapping[str, float] = field(default_factory=dict)

    def step(
        self,
        findings: Iterable[Finding],
        now: float,
        settings: AlertSettings | None = None,
        unknown: Collection[str] = (),
        find_ending: EndingOf = is_over,
    ) -> tuple[Alerts, tuple[AlertEvent, ...]]:
        """Returns (the next state, what to report in the order of by_severity); the order of the
        findings does not matter.

        `unknown` are keys, rules as finding_key(rule), or all of a rule about a subject as
        finding_key(rule, subject, ANY_ASPECT), that could not be checked this time: their state
        does not change. `find_ending` says why something is no longer found. In quiet hours and while
        snoozed everything is held back, and reported afterwards if it still applies.
        """
        settings = settings or AlertSettings()
        snoozed = {key: until for key, until in self.snoozed.items() if until > now}
        # The last of a key counts: the worst.
        found = {finding.key: finding for finding in sorted(findings, key=_rank)}
        known = {key: at for key, at in self.passed.items() if now - at < _PASSED_SECONDS}
        passed = {key: at for key, at in known.items() if key not in found}
        states: dict[str, AlertState] = {}
        events: list[AlertEvent] = []
        quiet = is_quiet(settings.quiet, now)
        for key in sorted(found.keys() | self.states.keys()):
            state = self.states.get(key)
            finding = found.get(key)
            ending = Ending()
            if finding is not None:
                if state is None:
                    passed_at = known.get(key) if finding.is_moment else None
                    since = now if passed_at is None else passed_at
                    severity = None if passed_at is None else finding.severity
                    state = AlertState(finding, since, passed_at, severity)
                state = replace(state, finding=finding, gone_since=None)
                kind = _kind(state, now, settings)
            else:
                assert state is not None
                if _matches(key, unknown):
                    states[key] = state
                    continue
                if state.finding.is_moment:
                    if state.told_at is not None:
                        passed[key] = now
                    continue
                gone_since = now if state.gone_since is None else state.gone_since
                state = replace(state, gone_since=gone_since)
                ending = find_ending(state.finding)
                if ending.is_watched and now - gone_since < settings.settle_seconds:
                    states[key] = state
                    continue
                if state.told_at is None or not settings.tells_recovery:
                    continue
                kind = AlertKind.RECOVERED if ending.is_watched else AlertKind.UNWATCHED
            states[key] = state
            if kind is None:
                continue
            event = AlertEvent(kind, state.finding, state.since, now, ending.text, state.told_to)
            if _is_withheld(event, quiet, settings, snoozed):
                continue
            events.append(event)
            if kind.is_end:
                del states[key]
            else:
                states[key] = replace(state, told_at=now, told_severity=state.finding.severity)
        events.sort(key=by_severity)
        newest = dict(sorted(passed.items(), key=lambda one: one[1])[-_MAX_PASSED:])
        return Alerts(states, snoozed, self.owed, newest), tuple(events)

    def keeps_back(self, owed: PendingNotification, now: float, settings: AlertSettings) -> bool:
        """Whether something owed must wait: it is silent, the hours are quiet, or the trouble seems
        to be over.
        """
        state = self.states.get(owed.key)
        if state is not None and state.gone_since is not None and not owed.kind.is_end:
            return True
        return _is_withheld(owed, is_quiet(settings.quiet, now), settings, self.snoozed)

    def to_json(self) -> bytes:
        states = list(self.states.values())
        snoozed = dict(self.snoozed)
        return msgspec.json.encode(
            _StoredAlerts(STATE_SCHEMA, states, snoozed, self.owed, dict(self.passed))
        )

    @classmethod
    def from_json(cls, text: bytes) -> Alerts:
        """Raises HpcdashError for what to_json has not written."""
        try:
            stored = msgspec.json.decode(text, type=_StoredAlerts)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise _unreadable(str(error)) from None
        if stored.schema != STATE_SCHEMA:
            raise _unreadable(f"it has schema {stored.schema}, not {STATE_SCHEMA}")
        return cls(
            {state.finding.key: state for state in stored.states},
            stored.snoozed,
            stored.owed,
            stored.passed,
        )


class _StoredAlerts(Struct, frozen=True):
    schema: int
    states: list[AlertState]
    snoozed: dict[str, float]
    owed: tuple[PendingNotification, ...] = ()
    passed: dict[str, float] = field(default_factory=dict)


def _unreadable(why: str) -> HpcdashError:
    return HpcdashError(
        f"the saved alert state cannot be read: {why}", "Remove it; alerts will be sent again."
    )


def _rank(finding: Finding) -> tuple[int, str, str]:
    return finding.severity, finding.text, finding.next_step


def _matches(key: str, keys: Collection[str]) -> bool:
    rule, _, rest = key.partition("/")
    _, _, subject = rest.partition("/")
    return key in keys or f"{rule}/" in keys or finding_key(rule, subject, ANY_ASPECT) in keys


def _kind(state: AlertState, now: float, settings: AlertSettings) -> AlertKind | None:
    severity = state.finding.severity
    if severity < settings.least:
        return None
    if state.told_at is None or state.told_severity is None:
        return AlertKind.RAISED
    if severity > state.told_severity:
        return AlertKind.WORSENED
    if state.finding.is_moment:
        return None
    if settings.remind_seconds is not None and now - state.told_at >= settings.remind_seconds:
        return AlertKind.REMINDED
    return None


def _is_withheld(
    event: AlertEvent | PendingNotification,
    quiet: bool,
    settings: AlertSettings,
    snoozed: Mapping[str, float],
) -> bool:
    if not event.kind.is_end and _matches(event.key, snoozed):
        return True
    return quiet and event.finding.severity < settings.quiet.lets_through


# By rules whose subject is the ID of a job or an array, and by the others.
_JOB_TITLES = {
    "is-hanging": "Log stopped growing",
    "no-successor": "No successor queued",
    "never-starts": "Will never start",
    "end-before-save": "Ends before its next checkpoint",
    "no-save": "No checkpoints saved",
    "grace-too-short": "Grace period too short to save",
    "loss": "Abnormal loss",
    "ends-late": "Time limit too short",
    "allocation-ends": "Allocation ends soon",
    "no-turn": "No turn in the pool",
    "interrupted-unsaved": "Interrupted before it saved",
    "slow-save": "Too slow to save",
}
_TITLES = {
    "is-running": "Job not running",
    "storage": "Disk filling up",
    "drained-nodes": "Node out of service",
    "spare-nodes": "Few spare nodes",
    "fails-on-a-node": "Repeated failures on one node",
    "unreachable": "Cluster not responding",
    "cannot-look": "Cannot be checked",
    "pool-silent": "Pool without a coordinator",
}


def is_job_rule(rule: str) -> bool:
    """Whether the subject of what a rule finds is a job's id, or an array's."""
    return rule in _JOB_TITLES


def rule_title(rule: str, aspect: str = "") -> str:
    """Return the title of a rule's alerts, as `Log stopped growing`; its name if it has none."""
    if aspect == "cannot be seen":
        return "Cannot be monitored"
    # Of `spike train_loss` the first word counts.
    title = _ASPECT_TITLES.get((rule, aspect.partition(" ")[0])) or _JOB_TITLES.get(rule)
    return title or _TITLES.get(rule, rule)
