"""Alerts as a person and a program read them: a subject, a text, JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from hpcdash.domain.alerts import Severity
from hpcdash.domain.rfc3339 import format_utc
from hpcdash.domain.text import clip, visible
from hpcdash.domain.units import format_span
from hpcdash.services.watch.alerts import AlertEvent, AlertKind, rule_title

_SUBJECT_CELLS = 120
# A person reads no more at once; the JSON has all.
MAX_IN_TEXT = 50
_MARKS = {
    AlertKind.RAISED: "",
    AlertKind.WORSENED: "worse: ",
    AlertKind.REMINDED: "still: ",
    AlertKind.RECOVERED: "over: ",
    AlertKind.UNWATCHED: "no longer watched: ",
}


class Message(Struct, frozen=True):
    """Message to send: `subject` is one line, `text` several, neither with control characters.

    `severity` is the highest one. `payload` is {"schema": 1, "cluster", "subject", "text",
    "severity", "alerts": [...]}, of types that JSON has.
    """

    subject: str
    text: str
    severity: Severity
    payload: Mapping[str, Any]


def build_message(events: Sequence[AlertEvent], cluster: str) -> Message:
    """Build one message for the events of a round, at least one, the most severe first."""
    lines = [_line(event) for event in events]
    first = lines[0] if len(lines) == 1 else f"{lines[0]} (and {len(lines) - 1} more)"
    subject = clip(f"[{visible(cluster)}] {first}", _SUBJECT_CELLS)
    paragraphs = []
    for event, line in zip(events[:MAX_IN_TEXT], lines, strict=False):
        step = visible(event.finding.next_step)
        if event.kind is AlertKind.RECOVERED:
            was = f"Previously: {visible(event.finding.text)}. " if event.ending else ""
            step = f"{was}Duration: {format_span(event.happened_at - event.since)}."
        elif event.kind is AlertKind.UNWATCHED:
            step = f"No longer checked. Since {format_utc(event.since)}."
        elif event.kind is not AlertKind.RAISED:
            step = f"Since {format_utc(event.since)}. {step}".rstrip()
        paragraphs.append(f"{line}\n  {step}" if step else line)
    if len(events) > MAX_IN_TEXT:
        paragraphs.append(f"and {len(events) - MAX_IN_TEXT} more")
    text = "\n\n".join(paragraphs) + "\n"
    # A resolved problem is no longer severe.
    severity = max(
        (event.finding.severity for event in events if not event.kind.is_end), default=Severity.INFO
    )
    return _message(cluster, subject, text, severity, events)


def trial_message(cluster: str) -> Message:
    """Build the message that tests whether it reaches anyone."""
    subject = f"[{visible(cluster)}] hpcdash: test message, nothing is wrong"
    return _message(cluster, subject, "This is a test of hpcdash's alerts.\n", Severity.INFO, ())


def _message(
    cluster: str, subject: str, text: str, severity: Severity, events: Sequence[AlertEvent]
) -> Message:
    payload = {
        "schema": 1,
        "cluster": cluster,
        "subject": subject,
        "text": text,
        "severity": severity.word,
        "alerts": [_record(event) for event in events],
    }
    return Message(subject, text, severity, payload)


def _line(event: AlertEvent) -> str:
    text = visible(event.text)
    is_critical = event.finding.severity is Severity.CRITICAL and not event.kind.is_end
    return f"{'CRITICAL ' if is_critical else ''}{_MARKS[event.kind]}{text}"


def _record(event: AlertEvent) -> dict[str, Any]:
    finding = event.finding
    return {
        "kind": str(event.kind),
        "key": finding.key,
        "rule": finding.rule,
        "subject": finding.subject,
        "aspect": finding.aspect or None,
        "severity": finding.severity.word,
        "title": rule_title(finding.rule, finding.aspect),
        "words": finding.text,
        "now": event.ending or None,
        "next_step": finding.next_step or None,
        "since": format_utc(event.since),
        "at": format_utc(event.happened_at),
    }
