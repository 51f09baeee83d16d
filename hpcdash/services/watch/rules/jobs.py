"""Rules on jobs: they run, they will start, their logs grow, their chains and allocations last."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from hpcdash.backends.base import ReasonsPart
from hpcdash.config.watch_settings import ChainRule, HangingRule
from hpcdash.domain.alerts import Finding, Severity, format_job, shown
from hpcdash.domain.chains import JobChain
from hpcdash.domain.columns import column_text
from hpcdash.domain.states import ACTIVE, ENDED, WAITING, JobState
from hpcdash.domain.text import clip, counted
from hpcdash.domain.units import MINUTE, format_span
from hpcdash.services.watch.rules.rows import Row, job_finding, rows_where
from hpcdash.services.watch.state import LogState

RUNNING = "is-running"
NEVER_STARTS = "never-starts"
HANGING = "is-hanging"
NO_SUCCESSOR = "no-successor"
ALLOCATION_ENDS = "allocation-ends"
# An allocation's end is warned of so long before.
SOON_SECONDS = 15 * MINUTE
_LIVING = frozenset(JobState) - ENDED
_REASON_CELLS = 80
_NEVER = re.compile(r"^(?:it )?will (?:never|not) start: ")


def living_rows(jobs: pa.Table, name: str, users: Collection[str] = ()) -> list[Row]:
    """Return the unfinished jobs of a name and any of the users; unknown states count as alive."""
    requested: dict[str, Collection[str]] = {"name": (name,), "state": _LIVING}
    if users:
        requested["user"] = users
    return rows_where(jobs, **requested)


def running_subject(name: str, users: Collection[str]) -> str:
    """Return the subject of a finding about a job that must be running."""
    return f"{name} of {','.join(users)}" if users else name


def find_not_running(
    jobs: pa.Table,
    name: str,
    users: Collection[str] = (),
    severity: Severity = Severity.CRITICAL,
) -> list[Finding]:
    """Return a finding if a job is neither running nor pending, or held.

    `jobs` must hold all jobs of the users.
    """
    rows = living_rows(jobs, name, users)
    who = shown(name) + (f" of {shown(', '.join(users))}" if users else "")
    subject = running_subject(name, users)
    if not rows:
        text = f"no job {who} is running or pending"
        step = "hpcdash history shows how it ended; submit it again."
        return [Finding(RUNNING, subject, severity, text, step)]
    if any(row["state"] != JobState.HELD for row in rows):
        return []
    text = f"{who} is held and will not start until released"
    step = f"hpcdash release {', '.join(shown(row['id']) for row in rows[:5])}"
    return [Finding(RUNNING, subject, Severity.WARNING, text, step, aspect="held")]


def format_pulse(name: str, rows: Iterable[Row], now: datetime, reasons: ReasonsPart) -> str:
    """Format the state of a job from the unfinished rows (domain.schema.JOBS) of its name.

    The most alive of them counts; times are in the zone of `now`; `reasons` are the scheduler's.
    """
    row = min(
        rows,
        key=lambda row: (_rank(row), row["started_at"] or now, row["_number"] or 0, str(row["id"])),
        default=None,
    )
    if row is None:
        return f"{name} is neither running nor pending"
    who = f"{name} ({row['id']})"
    if row["state"] in ACTIVE:
        return f"{who} {_format_activity(row, now)}"
    reason = row["reason"] or ""
    if row["state"] == JobState.HELD:
        return f"{who} is held and will not start until it is released"
    if reason == "JobArrayTaskLimit" or "subjobs limit" in reason:
        return f"{who} waits for the running task of its array to end"
    if reasons.never_starts(row["state"], reason):
        return f"{who} {format_never(row['state'], reason, reasons)}"
    if "depend" in reason.lower():
        after = f" ({row['dependency']})" if row["dependency"] else ""
        return f"{who} waits for its dependency to end{after}"
    expected = row["_expected_start_at"]
    because = f" ({reason})" if reason else ""
    if expected is None:
        return f"{who} is pending, without an estimated start{because}"
    when = f"{expected.astimezone(now.tzinfo):%Y-%m-%d %H:%M:%S}{because}"
    seconds = (expected - now).total_seconds()
    if seconds <= 0:
        return f"{who} is pending; the scheduler estimated its start at {when}"
    return f"{who} should start in {format_span(seconds)} (scheduler's estimate), at {when}"


def _rank(row: Row) -> int:
    ranks = (JobState.RUNNING, JobState.SUSPENDED, JobState.COMPLETING)
    if row["state"] in ranks:
        return ranks.index(row["state"])
    return 4 if row["state"] == JobState.HELD else 3


def _format_activity(row: Row, now: datetime) -> str:
    if row["state"] != JobState.RUNNING:
        return f"is {row['state']}"
    nodes = f" on {row['node_list']}" if row["node_list"] else ""
    if row["started_at"] is None:
        return f"is running{nodes}"
    ran = format_span((now - row["started_at"]).total_seconds())
    text = f"has been running for {ran}{nodes}"
    if row["ends_at"] is not None and row["ends_at"] > now:
        text += f", {format_span((row['ends_at'] - now).total_seconds())} left"
    return text


def find_never_starting(jobs: pa.Table, reasons: ReasonsPart) -> list[Finding]:
    """Return a finding for each waiting job, or rest of an array, that will never start."""
    # Queues are long and their reasons few.
    reported = pc.unique(column_text(jobs["reason"])).to_pylist()
    never = [reason for reason in reported if reasons.never_starts(JobState.PENDING, reason)]
    states = (JobState.PENDING, JobState.HELD, JobState.REQUEUED)
    findings = []
    for row in rows_where(jobs, reason=never, state=states):
        step = reasons.never_starts(row["state"], row["reason"])
        if step:
            text = f" {format_never(row['state'], row['reason'], reasons)}"
            step = step.replace("{id}", shown(row["id"]))
            findings.append(job_finding(NEVER_STARTS, row, text, step))
    return findings


def format_never(state: str, reason: str, reasons: ReasonsPart) -> str:
    """Format `will never start: the partition does not allow this request (PartitionConfig)`."""
    hint = _NEVER.sub("", reasons.hint(state, reason))
    hint = hint.partition(";")[0].partition(": change ")[0]
    if not hint:
        return f"will never start: {shown(reason)}"
    return f"will never start: {shown(hint)} ({clip(shown(reason), _REASON_CELLS)})"


def find_hanging(
    row: Row, path: str, log: LogState, rule: HangingRule, now: float
) -> list[Finding]:
    """Return a finding if the log of a running job has been the same for longer than the limit.

    The job's start counts too; `now` is an epoch.
    """
    since = log.same_since
    if row["started_at"] is not None:
        since = max(since, row["started_at"].timestamp())
    if now - since <= rule.limit_seconds:
        return []
    grown = "has been missing" if log.size_bytes is None else "has not grown"
    text = f": the log {grown} for {format_span(now - since)}: {shown(path)}"
    who = shown(row["id"])
    step = (
        f"A hung job cannot see a kill or save switch: hpcdash stacks {who} shows where it is "
        f"stuck; hpcdash cancel {who}"
    )
    return [job_finding(HANGING, row, text, step, rule.severity)]


class Successors(Struct, frozen=True):
    """Numbers of jobs and tasks that wait in a chain: ready to start on their own, held, and those
    that never start.
    """

    ready: int
    held: int
    never: int


def count_successors(chain: JobChain, reasons: ReasonsPart) -> Successors:
    counts = {"ready": 0, "held": 0, "never": 0}
    for row in chain.rows:
        if row["state"] in WAITING:
            kind = "held" if row["state"] == JobState.HELD else "ready"
            if reasons.never_starts(row["state"], row["reason"]):
                kind = "never"
            counts[kind] += row["_tasks"] or 1
    return Successors(**counts)


def find_unfollowed(chain: JobChain, reasons: ReasonsPart, rule: ChainRule) -> list[Finding]:
    """Return a finding if too little is queued behind a running chain."""
    running = [row for row in chain.rows if row["state"] in ACTIVE]
    waiting = count_successors(chain, reasons)
    if not running or waiting.ready >= rule.fewest_waiting:
        return []
    last = running[-1]
    who = shown(last["id"])
    queued = counted(waiting.ready, "successor") if waiting.ready else "no successor"
    text = f"{shown(last['name'])} ({who}) is running with {queued} queued"
    besides = [f"{waiting.held} held"] if waiting.held else []
    besides += [f"{waiting.never} that will never start"] if waiting.never else []
    if besides:
        text += f", plus {' and '.join(besides)}"
    step = f"hpcdash submit SCRIPT --array 1-10%1 --after {who}"
    if waiting.held and not waiting.never:
        step = f"hpcdash release {who} --chain"
    return [Finding(NO_SUCCESSOR, chain.units[0].job_id, Severity.WARNING, text, step)]


def find_ending_allocations(
    jobs: pa.Table, allocations: Collection[str], now: float
) -> list[Finding]:
    """Return a finding for each running allocation, by its id, whose time limit is near."""
    findings = []
    rows = rows_where(jobs, id=allocations, state=(JobState.RUNNING,)) if allocations else ()
    for row in rows:
        left = None if row["ends_at"] is None else row["ends_at"].timestamp() - now
        if left is None or left > SOON_SECONDS:
            continue
        who = format_job(row["id"], row["name"])
        text = f"the allocation {who} ends in {format_span(max(0.0, left))}"
        step = (
            f"hpcdash alter {shown(row['id'])} --time +1h, if the site allows it; hpcdash alloc "
            "creates another"
        )
        name = row["name"] or ""
        findings.append(
            Finding(ALLOCATION_ENDS, row["id"], Severity.WARNING, text, step, name=name)
        )
    return findings
