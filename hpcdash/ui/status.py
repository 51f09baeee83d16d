"""Status of a cluster around a view: error, age of the data, changes of the user's jobs."""

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

_CONNECTION_TEXTS = {
    "idle": "not connected",
    "connecting": "connecting …",
    "asking": "waiting for you",
    "lost": "line lost",
    "failed": "no connection",
}
_LOGIN_LINES = 3
# Longer waits for an answer are shown.
_SLOW_ANSWER_SECONDS = 3.0
# More jobs and arrays at once are announced in one line.
_MAX_ANNOUNCED = 4
_NAME_CELLS = 40


def shown_error(session: ClusterSession, view: View) -> HpcdashError | None:
    """Return the error of the shown data; None for none."""
    if view.own_error is not None:
        return view.own_error
    if view.main_kind is None:
        return None
    return session.store.connection_error or session.store.errors.get(view.main_kind)


def shown_snapshot(session: ClusterSession, view: View) -> Snapshot | None:
    """Return the snapshot of a view's main table."""
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
    """Return the last output of a login that waits for the user, and the wait; '' for none."""
    health = session.store.transport.health
    if health.state != "asking" or health.waiting_since is None:
        return ""
    waited = format_age(max(0.0, time.monotonic() - health.waiting_since))
    messages = health.text.splitlines()[-_LOGIN_LINES:] or [health.detail]
    wait = f"waiting for your input for {waited}: a prompt, or an approval on another device"
    return "\n".join([*messages, wait])


def beginning(text: str, most_lines: int) -> str:
    """Return the first lines of a text, and the number of the others."""
    lines = text.splitlines()
    if len(lines) > most_lines:
        lines[most_lines - 1 :] = [
            f"… {counted(len(lines) - most_lines + 1, 'more line')}; ! shows all"
        ]
    return "\n".join(lines)


def format_left_out(snapshot: Snapshot | None) -> str:
    """Return the number of unreadable rows of an answer; '' for none."""
    if snapshot is None or not snapshot.rejected:
        return ""
    rows = counted(len(snapshot.rejected), "unreadable row")
    return f"{rows} skipped; ! shows the errors"


def explanation(session: ClusterSession, view: View) -> tuple[str, str] | None:
    """Return a title and the whole text of the error, unreadable rows or login; None for none."""
    error = shown_error(session, view)
    snapshot = shown_snapshot(session, view)
    if error is not None:
        evidence = error.evidence if isinstance(error, CommandError) else ""
        parts = (error.message, evidence, error.next_step)
        return "the error", "\n\n".join(filter(None, parts))
    if snapshot is not None and snapshot.rejected:
        return "unreadable rows", "\n".join(snapshot.rejected)
    if text := session.store.transport.health.text:
        return "login messages", text
    return None


def _freshness(session: ClusterSession, view: View) -> StatusPart:
    """Return the state of the connection and the age of the shown data: `● live · 4 s ago`."""
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
    is_live = False
    if state == "connecting" and snapshot is not None and not snapshot.cached:
        text = "line lost, retrying"
    elif state != "connected":
        text = _CONNECTION_TEXTS.get(state, state)
    elif seconds >= _SLOW_ANSWER_SECONDS:
        text = f"no answer for {seconds:.0f} s"
    elif shown_error(session, view) is not None:
        # The login node answers, but the query failed.
        text = "last poll failed"
    else:
        text = f"{signs().mark} live"
        is_live = snapshot is None or not snapshot.cached
    return StatusPart(" · ".join(filter(None, (text, age))), "" if is_live else "bold", text)


def status_parts(session: ClusterSession, view: View, *, read_only: bool) -> list[StatusPart]:
    """Return user, cluster, alerts, age, counts, commands per minute and last response time."""
    store = session.store
    budget = store.budget
    poller = session.poller
    user = f"{store.user}@" if store.user else ""
    alerts = 0 if session.watching is None else session.watching.count
    long_counts, short_counts = view.counts()
    parts = [
        StatusPart(user + store.title, "bold", user + store.name),
        StatusPart("read-only" if read_only else "", "bold"),
        StatusPart(counted(alerts, "alert") if alerts else "", "bold"),
        _freshness(session, view),
        StatusPart(long_counts, "", short_counts),
    ]
    if store.misses_short_jobs and store.probe and store.probe.ended_kept_seconds is not None:
        retention = format_age(store.probe.ended_kept_seconds)
        text = f"short jobs may be missed: the controller drops them after {retention}"
        parts.append(StatusPart(text, "", "short jobs missed"))
    rate = f"{budget.per_minute} commands/min"
    if budget.last_seconds is not None:
        rate += f", answered in {1000 * budget.last_seconds:.0f} ms"
    if (wait := budget.wait_seconds()) >= 1:
        rate += f", at the limit: next poll in {wait:.0f} s"
    elif view.main_kind is not None and poller.is_spared(view.main_kind):
        interval = format_age(poller.interval_seconds(view.main_kind))
        rate += f", polling every {interval} (slow answers)"
    elif not poller.focused:
        rate += f", {poller.pace.unfocused_factor:g}× slower without focus"
    return [*parts, StatusPart(rate, is_aside=True)]


def announcements(events: Sequence[JobEvent]) -> list[tuple[str, bool]]:
    """Return a line for each of the user's changed jobs or arrays, and whether a job of it failed.

    Many at once, as after an absence, are one line.
    """
    groups: dict[str, list[JobEvent]] = {}
    for event in events:
        groups.setdefault(parse_array_id(event.job_id), []).append(event)
    if len(groups) > _MAX_ANNOUNCED:
        groups = {"": list(events)}
    lines = []
    for array_id, changes in groups.items():
        first = changes[0]
        name = clip(visible(first.name), _NAME_CELLS)
        if len(changes) == 1:
            text = f"{first.job_id} {name} {state_word(first.after)}"
        else:
            counts = Counter(state_word(event.after) for event in changes)
            jobs = f"array {array_id} {name}" if array_id else f"{len(changes)} of your jobs"
            text = f"{jobs}: {', '.join(f'{count} {word}' for word, count in counts.most_common())}"
        lines.append((text, any(event.after in ENDED_BADLY for event in changes)))
    return lines
