"""Alerts: each is told once, again when it lasts or worsens, and once when it is over. Knows no rule and no clock.

The state is a value: a step makes the next one, and JSON keeps it from one run to the next.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

import msgspec

from hpcdash.errors import HpcdashError
from hpcdash.watch.findings import Finding, Severity
from hpcdash.watch.quiet import is_quiet
from hpcdash.watch.settings import AlertSettings

STATE_SCHEMA = 1


class AlertKind(StrEnum):
    RAISED = "raised"
    WORSENED = "worsened"
    REMINDED = "reminded"
    RECOVERED = "recovered"


@dataclass(frozen=True, slots=True)
class AlertState:
    """One trouble, in epoch seconds: since when, last told when and as how grave (None: not yet), gone since when."""

    finding: Finding
    since: float
    told_at: float | None = None
    told_severity: Severity | None = None
    gone_since: float | None = None


@dataclass(frozen=True, slots=True)
class AlertEvent:
    """What there is to tell; `before` is the alert's state had it not been told."""

    kind: AlertKind
    finding: Finding
    since: float
    at: float
    before: AlertState

    @property
    def key(self) -> str:
        return self.finding.key


@dataclass(frozen=True, slots=True)
class Alerts:
    """All that is wrong now, by key; `snoozed` are keys, or rules as finding_key(rule), and until when
    they are silent."""

    states: Mapping[str, AlertState] = field(default_factory=dict)
    snoozed: Mapping[str, float] = field(default_factory=dict)

    def step(
        self,
        findings: Iterable[Finding],
        now: float,
        settings: AlertSettings | None = None,
        unknown: Collection[str] = (),
    ) -> tuple[Alerts, tuple[AlertEvent, ...]]:
        """(the next state, what there is to tell, the gravest first); the order of the findings means nothing.

        `unknown` are keys, or rules as finding_key(rule), that could not be looked at this time: what is wrong with
        them stays so. In quiet hours and while snoozed all is kept back, and told afterwards where it still holds.
        """
        settings = settings or AlertSettings()
        snoozed = {key: until for key, until in self.snoozed.items() if until > now}
        found = _worst_by_key(findings)
        states: dict[str, AlertState] = {}
        events: list[AlertEvent] = []
        quiet = is_quiet(settings.quiet, now)
        for key in sorted(found.keys() | self.states.keys()):
            state = self.states.get(key)
            finding = found.get(key)
            if finding is None and state is not None and _is_meant(key, unknown):
                states[key] = state
                continue
            after, event = _next(state, finding, now, settings)
            if event is not None and _is_kept_back(event, quiet, settings, snoozed):
                after, event = event.before, None
            if event is not None:
                events.append(event)
            if after is not None:
                states[key] = after
        events.sort(key=lambda event: (-event.finding.severity, event.key))
        return Alerts(states, snoozed), tuple(events)

    def snooze(self, key: str, until: float) -> Alerts:
        """Silent about a key, or a whole rule as finding_key(rule), until an epoch."""
        return replace(self, snoozed={**self.snoozed, key: until})

    def wake(self, key: str) -> Alerts:
        return replace(self, snoozed={name: until for name, until in self.snoozed.items() if name != key})

    def untold(self, event: AlertEvent) -> Alerts:
        """As if an event of the last step had not been told, because nobody could be reached: the next step has it."""
        return replace(self, states={**self.states, event.key: event.before})

    def to_json(self) -> bytes:
        return msgspec.json.encode(_Kept(STATE_SCHEMA, list(self.states.values()), dict(self.snoozed)))

    @classmethod
    def from_json(cls, text: bytes) -> Alerts:
        """Raises HpcdashError for what to_json has not written."""
        try:
            kept = msgspec.json.decode(text, type=_Kept)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise _unreadable(str(error)) from None
        if kept.schema != STATE_SCHEMA:
            raise _unreadable(f"it is of schema {kept.schema}, not {STATE_SCHEMA}")
        return cls({state.finding.key: state for state in kept.states}, kept.snoozed)


@dataclass(frozen=True, slots=True)
class _Kept:
    schema: int
    states: list[AlertState]
    snoozed: dict[str, float]


def _unreadable(why: str) -> HpcdashError:
    return HpcdashError(f"the kept state of the alerts cannot be read: {why}", "Remove it: what is wrong is told anew.")


def _worst_by_key(findings: Iterable[Finding]) -> dict[str, Finding]:
    worst: dict[str, Finding] = {}
    for finding in findings:
        other = worst.get(finding.key)
        if other is None or _rank(finding) > _rank(other):
            worst[finding.key] = finding
    return worst


def _rank(finding: Finding) -> tuple[int, str, str]:
    return finding.severity, finding.words, finding.next_step


def _is_meant(key: str, keys: Collection[str]) -> bool:
    rule = key[: key.index("/") + 1]
    return key in keys or rule in keys


def _next(
    state: AlertState | None, finding: Finding | None, now: float, settings: AlertSettings
) -> tuple[AlertState | None, AlertEvent | None]:
    if finding is None:
        return _gone(state, now, settings) if state is not None else (None, None)
    if state is None:
        state = AlertState(finding, now)
    state = replace(state, finding=finding, gone_since=None)
    kind = _kind(state, now, settings)
    if kind is None:
        return state, None
    told = replace(state, told_at=now, told_severity=finding.severity)
    return told, AlertEvent(kind, finding, state.since, now, state)


def _kind(state: AlertState, now: float, settings: AlertSettings) -> AlertKind | None:
    severity = state.finding.severity
    if severity < settings.least:
        return None
    if state.told_at is None or state.told_severity is None:
        return AlertKind.RAISED
    if severity > state.told_severity:
        return AlertKind.WORSENED
    if settings.remind_seconds is not None and now - state.told_at >= settings.remind_seconds:
        return AlertKind.REMINDED
    return None


def _gone(state: AlertState, now: float, settings: AlertSettings) -> tuple[AlertState | None, AlertEvent | None]:
    since = now if state.gone_since is None else state.gone_since
    state = replace(state, gone_since=since)
    if now - since < settings.settle_seconds:
        return state, None
    if state.told_at is None or not settings.tells_recovery:
        return None, None
    return None, AlertEvent(AlertKind.RECOVERED, state.finding, state.since, now, state)


def _is_kept_back(event: AlertEvent, quiet: bool, settings: AlertSettings, snoozed: Mapping[str, float]) -> bool:
    if event.kind is not AlertKind.RECOVERED and _is_meant(event.key, snoozed):
        return True
    return quiet and event.finding.severity < settings.quiet.lets_through
