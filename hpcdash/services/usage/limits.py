"""Limits beside the jobs that use them up: how much is used, and which limit a job waits for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from msgspec.structs import replace

from hpcdash.backends.base import Capability, PolicyReason
from hpcdash.domain.limits import format_limit, limit_applies
from hpcdash.domain.schema import LIMITS
from hpcdash.domain.states import ACTIVE, WAITING
from hpcdash.domain.tables import Kind
from hpcdash.errors import HpcdashError

if TYPE_CHECKING:
    from hpcdash.services.cluster.snapshots import Snapshot
    from hpcdash.services.cluster.store import ClusterStore

_SCOPES = {"_of_user": "user", "_of_queue": "queue", "_of_qos": "qos", "_of_account": "account"}
_COUNTED = frozenset({"cpus", "gpus", "nodes", "memory_bytes"})
_COLUMNS = (*_SCOPES.values(), "state", "_tasks", *sorted(_COUNTED))
_MAX_NAMED = 3


def has_uncounted(limits: pa.Table) -> bool:
    """Whether only jobs tell how much is used of some of the limits."""
    return any(
        row["used"] is None and any(row[name] for name in _SCOPES) for row in limits.to_pylist()
    )


def with_counted_use(
    limits: pa.Table, mine: pa.Table | None, everyone: pa.Table | None, user: str
) -> pa.Table:
    """Limits of domain.schema.LIMITS, `used` and `free` counted where they are null and jobs tell
    them.

    `mine` and `everyone` are lists of domain.schema.JOBS, None where they are not known; `user` is
    whose `mine` is.
    """
    rows = limits.to_pylist()
    jobs: dict[bool, Sequence[Mapping[str, Any]]] = {}
    for row in rows:
        if row["used"] is not None or not any(row[name] for name in _SCOPES):
            continue
        is_own = row["_of_user"] == user
        known = mine if is_own and mine is not None else everyone
        if known is None:
            continue
        if is_own not in jobs:
            jobs[is_own] = known.select(_COLUMNS).to_pylist()
        row["used"] = _used(row, jobs[is_own])
        row["free"] = None if row["used"] is None else max(0, row["maximum"] - row["used"])
    return pa.Table.from_pylist(rows, LIMITS)


async def fetch_limits(
    store: ClusterStore, on_problem: Callable[[str], None] = lambda text: None
) -> Snapshot:
    """Fetch the limits, and the user's jobs if the scheduler does not report their use.

    `on_problem` receives why the jobs are unknown. Raises AccountingUnavailable, and the errors of
    an unreachable cluster.
    """
    # The probe reports the user and the cluster.
    await store.open()
    snapshot = await store.fetch(Kind.LIMITS)
    mine = None
    if has_uncounted(snapshot.table):
        try:
            mine = (await store.fetch(Kind.MINE)).table
        except HpcdashError as error:
            on_problem(f"could not determine your jobs' usage: {error.message}")
    return replace(snapshot, table=with_counted_use(snapshot.table, mine, None, store.user))


def _used(limit: Mapping[str, Any], jobs: Sequence[Mapping[str, Any]]) -> int | None:
    resource = str(limit["resource"])
    states = ACTIVE
    if "submitted" in resource:
        states = ACTIVE | WAITING
    elif resource == "jobs_waiting":
        states = WAITING
    scopes = {column: limit[name] for name, column in _SCOPES.items() if limit[name] is not None}
    counted = []
    for job in jobs:
        is_in_scope = all(job[column] == value for column, value in scopes.items())
        if job["state"] in states and is_in_scope:
            counted.append(job)
    if resource.startswith("jobs_"):
        return sum(job["_tasks"] or 1 for job in counted)
    column = resource.replace("_submitted", "")
    if column not in _COUNTED or any(job[column] is None for job in counted):
        return None
    return sum(int(job[column]) * (job["_tasks"] or 1) for job in counted)


def find_limits(
    reason: PolicyReason, job: Mapping[str, Any], limits: pa.Table
) -> list[Mapping[str, Any]]:
    """Return the limits that a job waits for, the fullest first; only exhausted ones if any are."""
    found = []
    for row in limits.to_pylist():
        in_scope = row["scope"] == reason.scope if reason.scope else row["scope"] != "qos"
        is_per = reason.per in ("", row["per"])
        is_resource = reason.resource in ("", row["resource"])
        if in_scope and is_per and is_resource and limit_applies(row, job):
            found.append(row)
    used_up = [row for row in found if row["free"] == 0]
    return used_up or sorted(found, key=lambda row: (row["free"] is None, row["free"] or 0))


def policy_lines(
    reason: PolicyReason, job: Mapping[str, Any], limits: pa.Table | None
) -> list[str]:
    """Format the site's rules that a job waits for, a line each.

    They are the limits with their use, and where more is shown.
    """
    lines = []
    if reason.view == "limits" and limits is not None:
        lines = [format_limit(row) for row in find_limits(reason, job, limits)[:_MAX_NAMED]]
    return [*lines, format_pointer(reason)]


def find_policy_reason(store: ClusterStore, job: Mapping[str, Any]) -> PolicyReason | None:
    """The site's rule that a job waits for, where a view shows it."""
    reason = store.backend.reasons.policy(str(job["state"]), job["reason"])
    if reason is None or Capability(reason.view) not in store.backend.capabilities:
        return None
    has_none = (
        reason.view == "shares" and store.probe is not None and store.probe.has_accounting is False
    )
    return None if has_none else reason


def policy_hint(store: ClusterStore, job: Mapping[str, Any]) -> str:
    """The first of the limits that a job waits for, where they are known already, and the view that
    shows more.

    '' for a job that waits for no rule of the site.
    """
    reason = find_policy_reason(store, job)
    if reason is None:
        return ""
    known = store.snapshots.get(Kind.LIMITS) if reason.view == "limits" else None
    limits = find_limits(reason, job, known.table) if known is not None else ()
    return " · ".join([*map(format_limit, limits[:1]), f":{reason.view}"])


def format_pointer(reason: PolicyReason) -> str:
    """`see :limits, or hpcdash limits`."""
    return f"see :{reason.view}, or hpcdash {reason.view}"
