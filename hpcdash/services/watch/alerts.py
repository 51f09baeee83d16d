"""Alerts: each is told once, again when it lasts or worsens, once when it is over; a moment just
once.

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
_MOST_PASSED = 1000
_OF_ASPECTS = {
    ("is-running", "held"): "Job held",
    ("storage", "inodes"): "Running out of inodes",
    ("loss", "nan"): "Loss is NaN",
    ("loss", "inf"): "Loss is infinite",
    ("loss", "divergence"): "Loss diverging",
    ("loss", "spike"): "Loss spike",
    ("loss", "plateau"): "Loss plateau",
    ("loss", "stall"): "No new samples in the log",
}
# Whose subject is a job's id, or an array's.
_OF_JOBS = frozenset(
    (
        *(
            "is-hanging",
            "no-successor",
            "never-starts",
            "end-before-save",
            "no-save",
            "grace-too-short",
            "loss",
        ),
        *("ends-late", "allocation-ends", "no-turn", "interrupted-unsaved", "slow-save"),
    )
)


class AlertKind(StrEnum):
    RAISED = "raised"
    WORSENED = "worsened"
    REMINDED = "reminded"
    RECOVERED = "recovered"
    UNWATCHED = "unwatched"

    @property
    def is_end(self) -> bool:
        """Whether nothing is wrong any more, or nobody looks any more."""
        return self in (AlertKind.RECOVERED, AlertKind.UNWATCHED)


class Ending(Struct, frozen=True):
    """Present state after a finding disappeared.

    `words` describe it ('': unknown). `is_watched` is whether a rule still checks it: what is no
    longer watched did not recover.
    """

    words: str = ""
    is_watched: bool = True


EndingOf = Callable[[Finding], Ending]


def is_over(finding: Finding) -> Ending:
    """Return an ending without details, for any finding that is found no more."""
    return Ending()


class AlertState(Struct, frozen=True):
    """One trouble, in epoch seconds: since when, last told when and as how grave (None: not yet),
    gone since when.

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

    `before` is the alert's state if nobody is notified, `ending` the present state after an end.
    """

    kind: AlertKind
    finding: Finding
    since: float
    at: float
    before: AlertState
    ending: str = ""

    @property
    def key(self) -> str:
        return self.finding.key

    @property
    def words(self) -> str:
        """Text of the finding, or after an end of the present state."""
        return self.ending or self.finding.words


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
    """Sorts what is wrong before what is over, the gravest first."""
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
        found = _worst_by_key(findings)
        known = {key: at for key, at in self.passed.items() if now - at < _PASSED_SECONDS}
        passed = {key: at for key, at in known.items() if key not in found}
        states: dict[str, AlertState] = {}
        events: list[AlertEvent] = []
        quiet = is_quiet(settings.quiet, now)
        for key in sorted(found.keys() | self.states.keys()):
            state = self.states.get(key)
            finding = found.get(key)
            if finding is None and state is not None and _matches(key, unknown):
                states[key] = state
                continue
            if (
                finding is None
                and state is not None
                and state.finding.is_moment
                and state.told_at is not None
            ):
                passed[key] = now
            if finding is not None and state is None and finding.is_moment and key in known:
                told_at = known[key]
                state = AlertState(finding, told_at, told_at, finding.severity)
            after, event = _next(state, finding, now, settings, find_ending)
            if event is not None and _is_withheld(event, quiet, settings, snoozed):
                after, event = event.before, None
            if event is not None:
                events.append(event)
            if after is not None:
                states[key] = after
        events.sort(key=by_severity)
        newest = dict(sorted(passed.items(), key=lambda one: one[1])[-_MOST_PASSED:])
        return Alerts(states, snoozed, self.owed, newest), tuple(events)

    def keeps_back(self, owed: PendingNotification, now: float, settings: AlertSettings) -> bool:
        """Whether something owed must wait: it is silent, the hours are quiet, or the trouble seems
        to be over.
        """
        state = self.states.get(owed.key)
        if state is not None and state.gone_since is not None and not owed.kind.is_end:
            return True
        return _is_withheld(owed, is_quiet(settings.quiet, now), settings, self.snoozed)

    def snooze(self, key: str, until: float) -> Alerts:
        """Silent about a key, or a whole rule as finding_key(rule), until an epoch."""
        return replace(self, snoozed={**self.snoozed, key: until})

    def wake(self, key: str) -> Alerts:
        return replace(
            self, snoozed={name: until for name, until in self.snoozed.items() if name != key}
        )

    def to_json(self) -> bytes:
        states, snoozed = list(self.states.values()), dict(self.snoozed)
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


def _worst_by_key(findings: Iterable[Finding]) -> dict[str, Finding]:
    worst: dict[str, Finding] = {}
    for finding in findings:
        other = worst.get(finding.key)
        if other is None or _rank(finding) > _rank(other):
            worst[finding.key] = finding
    return worst


def _rank(finding: Finding) -> tuple[int, str, str]:
    return finding.severity, finding.words, finding.next_step


def _matches(key: str, keys: Collection[str]) -> bool:
    rule, _, rest = key.partition("/")
    _, _, subject = rest.partition("/")
    return key in keys or f"{rule}/" in keys or finding_key(rule, subject, ANY_ASPECT) in keys


def _next(
    state: AlertState | None,
    finding: Finding | None,
    now: float,
    settings: AlertSettings,
    find_ending: EndingOf,
) -> tuple[AlertState | None, AlertEvent | None]:
    if finding is None:
        return _gone(state, now, settings, find_ending) if state is not None else (None, None)
    if state is None:
        state = AlertState(finding, now)
    state = replace(state, finding=finding, gone_since=None)
    kind = _kind(state, now, settings)
    if kind is None:
        return state, None
    reported = replace(state, told_at=now, told_severity=finding.severity)
    return reported, AlertEvent(kind, finding, state.since, now, state)


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


def _gone(
    state: AlertState, now: float, settings: AlertSettings, find_ending: EndingOf
) -> tuple[AlertState | None, AlertEvent | None]:
    if state.finding.is_moment:
        return None, None
    since = now if state.gone_since is None else state.gone_since
    state = replace(state, gone_since=since)
    ending = find_ending(state.finding)
    if ending.is_watched and now - since < settings.settle_seconds:
        return state, None
    if state.told_at is None or not settings.tells_recovery:
        return None, None
    kind = AlertKind.RECOVERED if ending.is_watched else AlertKind.UNWATCHED
    return None, AlertEvent(kind, state.finding, state.since, now, state, ending.words)


def _is_withheld(
    event: AlertEvent | PendingNotification,
    quiet: bool,
    settings: AlertSettings,
    snoozed: Mapping[str, float],
) -> bool:
    if not event.kind.is_end and _matches(event.key, snoozed):
        return True
    return quiet and event.finding.severity < settings.quiet.lets_through


_TITLES = {
    "is-running": "Job not running",
    "is-hanging": "Log stopped growing",
    "storage": "Disk filling up",
    "drained-nodes": "Node out of service",
    "spare-nodes": "Few spare nodes",
    "no-successor": "No successor queued",
    "never-starts": "Will never start",
    "end-before-save": "Ends before its next checkpoint",
    "no-save": "No checkpoints saved",
    "grace-too-short": "Grace period too short to save",
    "fails-on-a-node": "Repeated failures on one node",
    "loss": "Abnormal loss",
    "ends-late": "Time limit too short",
    "unreachable": "Cluster not responding",
    "allocation-ends": "Allocation ends soon",
    "cannot-look": "Cannot be checked",
    "no-turn": "No turn in the pool",
    "interrupted-unsaved": "Interrupted before it saved",
    "slow-save": "Too slow to save",
    "pool-silent": "Pool without a coordinator",
}


def is_job_rule(rule: str) -> bool:
    """Whether the subject of what a rule finds is a job's id, or an array's."""
    return rule in _OF_JOBS


def rule_title(rule: str, aspect: str = "") -> str:
    """`Log stopped growing`; the rule's own name where there are no words for it."""
    if aspect == "cannot be seen":
        return "Cannot be monitored"
    known = _OF_ASPECTS.get((rule, aspect)) or _OF_ASPECTS.get((rule, aspect.partition(" ")[0]))
    return known or _TITLES.get(rule, rule)
