"""Status of a cluster around a view: errors, age, and jobs that started and ended."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

from hpcdash.domain.job_ids import parse_array_id
from hpcdash.domain.job_text import state_word
from hpcdash.domain.states import ENDED_BADLY
from hpcdash.domain.tables import Kind
from hpcdash.domain.text import clip, counted, visible
from hpcdash.domain.units import format_age
from hpcdash.errors import CommandError, HpcdashError
from hpcdash.services.cluster.snapshots import Snapshot
from hpcdash.services.jobs.tracker import JobEvent
from hpcdash.services.session import ClusterSession
from hpcdash.ui.view import View
from hpcdash.ui.widgets.cells import signs
from hpcdash.ui.widgets.lines import StatusPart

_LINE_WORDS = {
    "idle": "not connected",
    "connecting": "connecting …",
    "asking": "waiting for you",
    "lost": "line lost",
    "failed": "no connection",
}
_LOGIN_LINES = 3
# An answer that takes longer is worth a word.
_SLOW_ANSWER_SECONDS = 4.0
# More jobs and arrays than these at once are reported in one line.
_ANNOUNCED_ONE_BY_ONE = 4
_NAME_CELLS = 40


def shown_error(session: ClusterSession, view: View) -> HpcdashError | None:
    """Return the error of the shown data; None for none."""
    if view.own_error is not None:
        return view.own_error
    if view.main_kind is None:
        return None
    return session.store.connection_error or session.store.errors.get(view.main_kind)


def shown_snapshot(session: ClusterSession, view: View) -> Snapshot | None:
    """The table a view stands on."""
    kind = view.main_kind
    return session.store.snapshots.get(kind) if kind is not None else None


def format_snapshot_age(session: ClusterSession, taken_at: float) -> str:
    return format_age(max(0.0, session.store.clock.now() - taken_at))


def format_meanwhile(session: ClusterSession, kind: Kind | None, snapshot: Snapshot | None) -> str:
    """Return the age of the data shown during an error, and when the next attempt follows."""
    poller = session.poller
    parts = []
    if snapshot is not None:
        parts.append(f"showing data from {format_snapshot_age(session, snapshot.taken_at)} ago")
    if poller.waiting_for_person is not None:
        parts.append("ctrl+r retries")
    elif kind is not None and (seconds := poller.unanswered_seconds(kind)) > 0:
        parts.append(f"retrying for {seconds:.0f} s")
    elif kind is not None and (wait := poller.next_in_seconds(kind)) >= 1:
        parts.append(f"retrying in {wait:.0f} s (ctrl+r: now)")
    return "; ".join(parts)


def format_login(session: ClusterSession) -> str:
    """Return the last output of a login that waits for the person, and the wait; '' for none."""
    health = session.store.transport.health
    if health.state != "asking" or health.waiting_since is None:
        return ""
    waited = format_age(max(0.0, time.monotonic() - health.waiting_since))
    messages = health.text.splitlines()[-_LOGIN_LINES:] or [health.detail]
    requested = f"waiting for you for {waited}: a prompt, or an approval on another device"
    return "\n".join([*messages, requested])


def beginning(text: str, most_lines: int) -> str:
    """The first lines, and how many more there are."""
    lines = text.splitlines()
    if len(lines) > most_lines:
        lines[most_lines - 1 :] = [
            f"… {counted(len(lines) - most_lines + 1, 'more line')}; ! shows all"
        ]
    return "\n".join(lines)


def format_left_out(snapshot: Snapshot | None) -> str:
    """Return how many rows of an answer could not be read; '' for none."""
    if snapshot is None or not snapshot.rejected:
        return ""
    count = len(snapshot.rejected)
    left_out = "1 row" if count == 1 else f"{count} rows"
    return f"{left_out} of the answer unreadable and skipped; ! shows them"


def explanation(session: ClusterSession, view: View) -> tuple[str, str] | None:
    """All that is known of what is wrong: a title, and lines as they came; None where nothing
    is.
    """
    error = shown_error(session, view)
    snapshot = shown_snapshot(session, view)
    if error is not None:
        evidence = error.evidence if isinstance(error, CommandError) else ""
        return "the error", "\n\n".join(
            part for part in (error.message, evidence, error.next_step) if part
        )
    if snapshot is not None and snapshot.rejected:
        return "unreadable rows", "\n".join(snapshot.rejected)
    if text := session.store.transport.health.text:
        return "login messages", text
    return None


def _freshness(session: ClusterSession, view: View) -> StatusPart:
    """State of the connection and age of the shown data: `● live · 4 s ago`."""
    store = session.store
    state = store.transport.health.state
    if store.connection_error is not None and state not in ("lost", "asking"):
        state = "failed"
    snapshot = shown_snapshot(session, view)
    taken_at = view.taken_at()
    age = "" if taken_at is None else f"{format_snapshot_age(session, taken_at)} ago"
    if snapshot is not None and snapshot.cached:
        age = f"from the last run, {age}"
    seconds = session.poller.unanswered_seconds()
    if state != "connected":
        text = _LINE_WORDS.get(state, state)
        is_well = False
    elif seconds >= _SLOW_ANSWER_SECONDS:
        text = f"no answer for {seconds:.0f} s"
        is_well = False
    elif shown_error(session, view) is not None:
        # The login node answers, but the query failed.
        text = "last answer failed"
        is_well = False
    else:
        text = f"{signs().mark} live"
        is_well = snapshot is None or not snapshot.cached
    parts = [text, *([age] if age else [])]
    return StatusPart(" · ".join(parts), "" if is_well else "bold", text)


def format_alert_count(session: ClusterSession) -> str:
    """Return the number of alerts that are not silent.

    '' for none, and where no rules are checked.
    """
    count = session.watching.count if session.watching is not None else 0
    return counted(count, "alert") if count else ""


def status_parts(session: ClusterSession, view: View, *, read_only: bool) -> list[StatusPart]:
    """Return user, cluster, age, counts, connection, commands per minute and last response time."""
    store = session.store
    budget = store.budget
    poller = session.poller
    answer = (
        "" if budget.last_seconds is None else f", answered in {1000 * budget.last_seconds:.0f} ms"
    )
    slower = "" if poller.focused else f", {poller.pace.unfocused_factor:g}× slower without focus"
    if view.main_kind is not None and poller.is_spared(view.main_kind):
        slower = (
            f", polling every {format_age(poller.interval_seconds(view.main_kind))} (slow answers)"
        )
    stored = store.probe.ended_kept_seconds if store.probe and store.misses_short_jobs else None
    missed = (
        ""
        if stored is None
        else f"short jobs may be missed: the controller forgets them after {format_age(stored)}"
    )
    long_counts, short_counts = view.counts()
    return [
        StatusPart(
            f"{store.user}@{store.title}" if store.user else store.title,
            "bold",
            f"{store.user}@{store.name}" if store.user else store.name,
        ),
        StatusPart("read-only" if read_only else "", "bold"),
        StatusPart(format_alert_count(session), "bold"),
        _freshness(session, view),
        StatusPart(long_counts, "", short_counts),
        StatusPart(missed, "", "short jobs missed" if missed else ""),
        StatusPart(f"{budget.per_minute} commands/min{answer}{slower}", is_aside=True),
    ]


def announcements(events: Sequence[JobEvent]) -> list[tuple[str, bool]]:
    """Return a line on each of one's own jobs that changed, tasks of one array in one, and whether
    a job of it failed; many at once (an absence) are one line.
    """
    groups: dict[str, list[JobEvent]] = {}
    for event in events:
        groups.setdefault(parse_array_id(event.job_id), []).append(event)
    if len(groups) > _ANNOUNCED_ONE_BY_ONE:
        groups = {"": list(events)}
    return [
        (_format_events(number, happened), any(event.after in ENDED_BADLY for event in happened))
        for number, happened in groups.items()
    ]


def _format_events(number: str, happened: Sequence[JobEvent]) -> str:
    first = happened[0]
    name = clip(visible(first.name), _NAME_CELLS)
    if len(happened) == 1:
        return f"{first.job_id} {name} {state_word(first.after)}"
    counts = Counter(state_word(event.after) for event in happened)
    who = f"array {number} {name}" if number else f"{len(happened)} of your jobs"
    return f"{who}: {', '.join(f'{count} {word}' for word, count in counts.most_common())}"
