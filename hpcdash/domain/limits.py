"""Text for limits, their amounts and scopes, and for the users of a reservation."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from hpcdash.domain.units import (
    format_amount,
    format_count,
    format_duration,
    format_memory,
    format_span,
)

# Subject of a limit, in the terms of the contract.
RESOURCES = {
    "jobs_running": "running jobs",
    "jobs_submitted": "jobs in the queue",
    "jobs_waiting": "waiting jobs",
    "cpus": "CPUs",
    "gpus": "GPUs",
    "nodes": "nodes",
    "memory_bytes": "memory",
    "limit_seconds": "time limit",
    "wall_seconds": "wall time",
    "cpu_minutes": "CPU-hours",
    "gpu_minutes": "GPU-hours",
    "node_minutes": "node-hours",
    "cpu_run_minutes": "CPU-hours of running jobs",
    "gpu_run_minutes": "GPU-hours of running jobs",
    "node_run_minutes": "node-hours of running jobs",
}
_PER = {
    "job": "a job",
    "user": "a user",
    "account": "an account",
    "group": "a group",
    "project": "a project",
    "all": "all together",
}
_SCOPES = {
    "qos": "QoS",
    "association": "association",
    "account": "account",
    "queue": "queue",
    "server": "server",
}


def format_resource(resource: str) -> str:
    """Format the name of a resource: `CPU-hours` for `cpu_minutes`, `license/matlab hours` for the
    scheduler's own `license/matlab_minutes`.
    """
    known = RESOURCES.get(resource)
    if known is not None:
        return known
    if "_submitted" in resource:
        # Pending jobs count too.
        return f"{format_resource(resource.replace('_submitted', ''))} of jobs in the queue"
    for ending, text in (("_run_minutes", " hours of running jobs"), ("_minutes", " hours")):
        if resource.endswith(ending):
            return resource.removesuffix(ending) + text
    return resource


def format_limited(resource: str, amount: int | None) -> str:
    """Format an amount of a resource: `12`, `64G`, `1d`, `1667` (hours, from minutes); '' for
    None.
    """
    if amount is None:
        return ""
    if resource.endswith("_bytes"):
        return format_memory(amount)
    if resource.endswith("_seconds"):
        return format_duration(amount)
    if resource.endswith("_minutes"):
        return format_amount(amount / 60)
    return format_count(amount)


def limit_applies(row: Mapping[str, Any], job: Mapping[str, Any]) -> bool:
    """Return whether a limit holds for a job with this `user`, `account`, `qos` and `queue`."""
    queues = row["queues"]
    match row["scope"]:
        case "qos":
            is_named = row["name"] == job["qos"] if queues is None else job["queue"] in queues
            return bool(is_named) and row["subject"] in (None, job["user"], job["account"])
        case "queue":
            return queues is None or job["queue"] in queues
        case "association":
            # `physics/alice`, or `physics/alice/gpu` for one partition.
            account, _, partition = (*str(row["name"]).split("/", 2), "", "")[:3]
            return account == job["account"] and partition in ("", job["queue"])
    return True


def format_whose(row: Mapping[str, Any]) -> str:
    """Format the scope of a row of LIMITS: `QoS normal`, `account physics`, `queue debug`."""
    return f"{_SCOPES.get(row['scope'], row['scope'])} {row['name'] or ''}".strip()


def format_per(row: Mapping[str, Any]) -> str:
    """Format the users that a limit counts together: `a job`, `user alice`, `all together`."""
    return (
        f"{row['per']} {row['subject']}"
        if row["subject"]
        else _PER.get(row["per"], str(row["per"]))
    )


def format_limit(row: Mapping[str, Any]) -> str:
    """Format `QoS limited: 6 of 6 CPUs used, for user alice`; of a job `QoS tiny: CPUs 4, for a
    job`.
    """
    resource = str(row["resource"])
    name = format_resource(resource)
    maximum = format_limited(resource, row["maximum"])
    used = format_limited(resource, row["used"])
    amount = f"{used} of {maximum} {name}" if used else f"{name} {maximum}"
    verb = " used" if used and not resource.startswith("jobs_") else ""
    return f"{format_whose(row)}: {amount}{verb}, for {format_per(row)}"


def format_share_tree(row: Mapping[str, Any]) -> str:
    """Format a user of SHARES below its account, an account below its parent: `    alice (gpu)`."""
    partition = f" ({row['partition']})" if row["partition"] else ""
    return f"{'  ' * (row['_depth'] or 0)}{row['user'] or row['account']}{partition}"


def format_who(row: Mapping[str, Any]) -> str:
    """Format the users of a reservation of RESERVATIONS: `user alice, bob; account physics`.

    '' if none is named.
    """
    parts = []
    for key, word in (("users", "user"), ("groups", "group"), ("accounts", "account")):
        names = row[key] or ()
        if excluded := [name[1:] for name in names if name.startswith("-")]:
            parts.append(f"every {word} but {', '.join(excluded)}")
        elif names:
            parts.append(f"{word} {', '.join(names)}")
    return "; ".join(parts)


def format_when(row: Mapping[str, Any], now: datetime) -> str:
    """Format the start or end of a reservation.

    For example `begins in 3 h, lasts 4 h`, `ends in 20 min`, `has no end`.
    """
    starts = row["starts_at"]
    ends = row["ends_at"]
    seconds = row["duration_seconds"]
    if starts is not None and starts > now:
        lasts = f", lasts {format_span(seconds)}" if seconds else ""
        if ends is None and not seconds:
            lasts = ", has no end"
        return f"starts in {format_span((starts - now).total_seconds())}{lasts}"
    if ends is None:
        return "has no end" if starts is not None else ""
    left = (ends - now).total_seconds()
    return f"ends in {format_span(left)}" if left > 0 else f"ended {format_span(-left)} ago"
