"""Alerts: each is sent once, again when it lasts or worsens, and once when it is resolved; a moment
just once.

The state is a value: a step makes the next one, and JSON keeps it from one run to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from enum import StrEnum
from itertools import chain

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
    """Kind of a change of an alert."""

    RAISED = "raised"
    WORSENED = "worsened"
    REMINDED = "reminded"
    RECOVERED = "recovered"
    UNWATCHED = "unwatched"

    @property
    def is_end(self) -> bool:
        """Whether the problem is resolved, or no longer watched."""
        return self in (AlertKind.RECOVERED, AlertKind.UNWATCHED)


# Returns the present state after a finding disappeared, '' if unknown; None if no rule checks it,
# so that it did not recover.
FindEnding = Callable[[Finding], str | None]


class AlertState(
    Struct,
    frozen=True,
    # As a state of an earlier version has them.
    rename={"sent_at": "told_at", "sent_severity": "told_severity", "channels": "told_to"},
):
    """One problem; times are epoch seconds."""

    finding: Finding
    since: float
    # When, and how severe, it was last sent; None: not yet.
    sent_at: float | None = None
    sent_severity: Severity | None = None
    gone_since: float | None = None
    # Channels that were notified, or are owed it; None: unknown, in a state of an earlier version.
    channels: tuple[str, ...] | None = None


class AlertEvent(Struct, frozen=True):
    """Change of an alert to report."""

    kind: AlertKind
    finding: Finding
    since: float
    happened_at: float
    # Present state after an end.
    ending: str = ""
    # Channels that know of the problem, or will; None: unknown.
    channels: tuple[str, ...] | None = None

    @property
    def key(self) -> str:
        return self.finding.key

    @property
    def text(self) -> str:
        """Text of the finding, or after an end of the present state."""
        return self.ending or self.finding.text


class PendingNotification(Struct, frozen=True):
    """Notification that a channel (a notifier's name) has not accepted since `owed_at` (epoch)."""

    channel: str
    kind: AlertKind
    finding: Finding
    since: float
    owed_at: float
    # Whether the channel was notified of that trouble before.
    is_known: bool = False
    # Whether no channel accepted it.
    is_for_all: bool = False
    ending: str = ""

    @property
    def key(self) -> str:
        return self.finding.key

    def event(self, now: float) -> AlertEvent:
        """Return the event that is owed, as of now."""
        return AlertEvent(self.kind, self.finding, self.since, now, self.ending)


def by_severity(event: AlertEvent | PendingNotification) -> tuple[bool, int, str]:
    """Sort problems before resolved ones, the most severe first."""
    return event.kind.is_end, -event.finding.severity, event.key


class Alerts(Struct, frozen=True):
    """All that is wrong now, by key."""

    states: Mapping[str, AlertState] = field(default_factory=dict)
    # Keys, or rules as finding_key(rule), and until when they are silent.
    snoozed: Mapping[str, float] = field(default_factory=dict)
    # Notifications that channels have not accepted yet.
    owed: tuple[PendingNotification, ...] = ()
    # Moments that were sent and are found no more, and since when.
    passed: Mapping[str, float] = field(default_factory=dict)

    def step(
        self,
        findings: Iterable[Finding],
        now: float,
        settings: AlertSettings,
        unknown: Collection[str] = (),
        find_ending: FindEnding = lambda finding: "",
    ) -> tuple[Alerts, tuple[AlertEvent, ...]]:
        """Return the next state, and what to report in the order of by_severity.

        `unknown` are keys, rules as finding_key(rule), or all of a rule on a subject (ANY_ASPECT)
        that could not be checked: their state does not change. In quiet hours and while snoozed
        everything is held back, and reported afterwards if it still applies.
        """
        snoozed = {key: until for key, until in self.snoozed.items() if until > now}
        # The last of a key counts: the worst.
        by_key = {finding.key: finding for finding in sorted(findings, key=_rank)}
        known = {key: since for key, since in self.passed.items() if now - since < _PASSED_SECONDS}
        passed = {key: since for key, since in known.items() if key not in by_key}
        states: dict[str, AlertState] = {}
        events: list[AlertEvent] = []
        is_quiet_now = is_quiet(settings.quiet, now)
        for key in sorted(by_key.keys() | self.states.keys()):
            before = self.states.get(key)
            ending: str | None = ""
            if key in by_key:
                state = _found_state(by_key[key], before, now, known.get(key))
                kind = _kind(state, now, settings)
            else:
                assert before is not None
                if _matches(key, unknown):
                    states[key] = before
                    continue
                if before.finding.is_moment:
                    if before.sent_at is not None:
                        passed[key] = now
                    continue
                ending = find_ending(before.finding)
                state = replace(
                    before, gone_since=now if before.gone_since is None else before.gone_since
                )
                kind = _end_kind(state, ending, now, settings)
                if kind and (state.sent_at is None or not settings.tells_recovery):
                    continue
            states[key] = state
            if kind is None:
                continue
            event = AlertEvent(
                kind, state.finding, state.since, now, ending=ending or "", channels=state.channels
            )
            if _is_withheld(event, is_quiet_now, settings, snoozed):
                continue
            events.append(event)
            if kind.is_end:
                del states[key]
            else:
                states[key] = replace(state, sent_at=now, sent_severity=state.finding.severity)
        events.sort(key=by_severity)
        newest = dict(sorted(passed.items(), key=lambda item: item[1])[-_MAX_PASSED:])
        return Alerts(states, snoozed, self.owed, newest), tuple(events)

    def with_snoozed(self, *snoozed: Mapping[str, float]) -> Alerts:
        """Snooze what a configuration or a person names, and nothing else."""
        together: dict[str, float] = {}
        for key, until in chain.from_iterable(names.items() for names in snoozed):
            together[key] = max(until, together.get(key, until))
        return replace(self, snoozed=together)

    def keeps_back(self, owed: PendingNotification, now: float, settings: AlertSettings) -> bool:
        """Whether a notification must wait: it is snoozed, the hours are quiet, or the trouble
        seems to be over.
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
        """Read what to_json has written; raises HpcdashError for anything else."""
        try:
            stored = msgspec.json.decode(text, type=_StoredAlerts)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise _unreadable(str(error)) from None
        if stored.schema != STATE_SCHEMA:
            raise _unreadable(f"has schema {stored.schema}, not {STATE_SCHEMA}")
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
        f"cannot read the saved alert state: {why}", "Remove it; alerts will be sent again."
    )


def _rank(finding: Finding) -> tuple[int, str, str]:
    return finding.severity, finding.text, finding.next_step


def _matches(key: str, keys: Collection[str]) -> bool:
    rule, _, rest = key.partition("/")
    _, _, subject = rest.partition("/")
    return key in keys or f"{rule}/" in keys or finding_key(rule, subject, ANY_ASPECT) in keys


def _found_state(
    finding: Finding, before: AlertState | None, now: float, passed_at: float | None
) -> AlertState:
    """Return the state of a finding; `passed_at` is when it was last a moment that passed."""
    if before is not None:
        return replace(before, finding=finding, gone_since=None)
    if passed_at is None or not finding.is_moment:
        return AlertState(finding, now)
    return AlertState(finding, passed_at, passed_at, finding.severity)


def _kind(state: AlertState, now: float, settings: AlertSettings) -> AlertKind | None:
    severity = state.finding.severity
    if severity < settings.least:
        return None
    if state.sent_at is None or state.sent_severity is None:
        return AlertKind.RAISED
    if severity > state.sent_severity:
        return AlertKind.WORSENED
    if state.finding.is_moment:
        return None
    if settings.remind_seconds is not None and now - state.sent_at >= settings.remind_seconds:
        return AlertKind.REMINDED
    return None


def _end_kind(
    state: AlertState, ending: str | None, now: float, settings: AlertSettings
) -> AlertKind | None:
    if ending is None:
        return AlertKind.UNWATCHED
    since = now if state.gone_since is None else state.gone_since
    return AlertKind.RECOVERED if now - since >= settings.settle_seconds else None


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
    "no-turn": "Waiting too long for the pool",
    "interrupted-unsaved": "Interrupted before saving",
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
