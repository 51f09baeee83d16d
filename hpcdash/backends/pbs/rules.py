"""Parts of a waiting job's priority, and rules of its queue: qstat -f of a job, qstat -Qf."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial

from hpcdash.backends.base import PolicyPart
from hpcdash.backends.pbs.dialects import Dialect, DialectPart, pbs
from hpcdash.backends.pbs.errors import require_success
from hpcdash.backends.pbs.reasons import resource_amount
from hpcdash.backends.pbs.records import Form, read_attributes, record_form, record_query
from hpcdash.backends.pbs.values import (
    duration_seconds,
    entity_limits,
    parse_hosts,
    resources_under,
)
from hpcdash.backends.queries import (
    Answer,
    Facts,
    Native,
    ParsedTable,
    Query,
    unreadable,
)
from hpcdash.domain.job_ids import holds_many, parse_array_id
from hpcdash.domain.offers import QueueLimits
from hpcdash.domain.units import format_duration

_Format = Callable[[Native], Facts]
# accrue_type of pbs_ifl.h, while a job waits.
_ACCRUES = {
    "1": "not counted now: the owner is at a limit, or the job cannot start yet",
    "2": "is counted",
}
_MAX_HOSTS = 4
# preempt_queue_prio of the scheduler where the site sets none: queues from there on may take
# others' places.
_EXPRESS_PRIORITY = 150
_ENTITIES = {"u": "user", "g": "group", "p": "project"}
_COUNTS = {
    "max_run": "running jobs",
    "max_queued": "jobs",
    "queued_jobs_threshold": "waiting jobs",
    "max_run_soft": "running jobs safe from preemption",
}
_AMOUNTS = {
    "max_run_res": "running limit",
    "max_queued_res": "running and queued limit",
    "queued_jobs_threshold_res": "queued limit",
    "max_run_res_soft": "limit safe from preemption",
}
# Limits as PBS had them before 10, and Torque has them.
_OLD_COUNTS = {
    "max_running": "total running jobs",
    "max_user_run": "running jobs per user",
    "max_group_run": "running jobs per group",
    "max_queuable": "total jobs",
    "max_user_queuable": "jobs per user",
    "max_array_size": "array tasks",
}
_OLD_AMOUNTS = {
    "max_user_res": "running limit per user",
    "max_group_res": "running limit per group",
}
_PER_JOB = (
    ("resources_max", "longest time", "limit per job"),
    ("resources_min", "shortest time", "minimum per job"),
    ("resources_default", "default time limit", "default"),
)
_LISTS = (("user", "only for users"), ("group", "only for groups"), ("host", "only from hosts"))


def priority_query(dialect: Dialect, job_id: str) -> Query[Facts]:
    """One job's own attributes; the waiting tasks of an array share their array's."""
    return _query(
        dialect,
        ("qstat", "-f"),
        parse_array_id(job_id) if holds_many(job_id) else job_id,
        "jobs",
        _priority,
    )


def _parse_queue_limits(answer: Answer, *, form: Form, token: str) -> Mapping[str, QueueLimits]:
    require_success(answer, ("qstat", "-Qf"))
    return {
        "" if "server_state" in native else name: QueueLimits(
            _whole(native.get("default_chunk.ncpus", "")),
            _whole(native.get("resources_max.ncpus", "")),
            _whole(native.get("resources_max.ngpus", "")),
            tuple(
                part.partition("@")[0].strip()
                for part in native.get("route_destinations", "").split(",")
                if part
            ),
        )
        for name, native in read_attributes(answer.stdout, form, token=token)
    }


def _query(
    dialect: Dialect, command: tuple[str, ...], name: str, what: str, formatter: _Format
) -> Query[Facts]:
    parse = partial(_parse, command=(*command, name), what=what, formatter=formatter)
    return record_query(dialect, command, parse, name)


def _parse(
    answer: Answer,
    *,
    command: tuple[str, ...],
    form: Form,
    token: str,
    what: str,
    formatter: _Format,
) -> Facts:
    """{} where nothing was told: others' jobs may be hidden."""
    require_success(answer, command)
    records = read_attributes(answer.stdout, form, token=token)
    if not records:
        if answer.stdout.strip():
            raise unreadable(answer, what, command)
        return {}
    # A value may have been cut off.
    return {name: value for name, value in formatter(records[0][1]).items() if value}


def _priority(native: Native) -> Facts:
    requested = _whole(native.get("Priority", ""))
    texts = {"requested": f"{requested:+d} (qsub -p)" if requested else "none (qsub -p)"}
    waited = duration_seconds(native.get("eligible_time", ""))
    if waited is not None:
        texts["counted wait"] = f"for {format_duration(waited)}"
    if accrues := _ACCRUES.get(native.get("accrue_type", "")):
        texts["wait"] = accrues
    if native.get("topjob", "").lower() == "true":
        texts["place"] = "reserved: one of the top jobs"
    hosts = parse_hosts(native.get("estimated.exec_vnode", ""))
    if hosts:
        more = f" and {len(hosts) - _MAX_HOSTS} more" if len(hosts) > _MAX_HOSTS else ""
        texts["may run on"] = ", ".join(hosts[:_MAX_HOSTS]) + more
    runs = _whole(native.get("run_count", ""))
    if runs and runs > 0:
        texts["started"] = "once" if runs == 1 else f"{runs} times"
    return texts


def _queue_rules(native: Native) -> Facts:
    texts: dict[str, str] = {}
    if native.get("enabled") == "False":
        texts["accepts jobs"] = "not now"
    elif native.get("from_route_only") == "True":
        texts["accepts jobs"] = "only from routing queues"
    if native.get("started") == "False":
        texts["starts jobs"] = "not now"
    if native.get("route_destinations"):
        texts["routes jobs to"] = native["route_destinations"].replace(",", ", ")
    for start, time_label, label in _PER_JOB:
        given = resources_under(native, start)
        if seconds := duration_seconds(given.pop("walltime", "")):
            texts[time_label] = format_duration(seconds)
        if given:
            texts[label] = ", ".join(resource_amount(name, value) for name, value in given.items())
    texts |= _limits(native)
    for entity, label in _LISTS:
        if native.get(f"acl_{entity}_enable", "").lower() == "true":
            texts[label] = native.get(f"acl_{entity}s", "").replace(",", ", ") or "nobody listed"
    priority = _whole(native.get("Priority", ""))
    if priority:
        texts["queue priority"] = str(priority)
        if priority >= _EXPRESS_PRIORITY:
            texts["queue priority"] += " (its jobs may preempt other jobs)"
    if delay := _whole(native.get("kill_delay", "")):
        texts["from TERM to KILL"] = format_duration(delay)
    return texts


def _limits(native: Native) -> dict[str, str]:
    texts = {
        _limit_label(label, who): limit
        for name, label in _COUNTS.items()
        for who, limit in _by_entity(native.get(name, ""))
    }
    amounts: dict[str, list[str]] = {}
    for name, label in _AMOUNTS.items():
        for resource, value in resources_under(native, name).items():
            for who, limit in _by_entity(value):
                amounts.setdefault(_limit_label(label, who), []).append(
                    resource_amount(resource, limit)
                )
    for name, label in _OLD_AMOUNTS.items():
        for resource, value in resources_under(native, name).items():
            amounts.setdefault(label, []).append(resource_amount(resource, value))
    texts |= {label: native[name] for name, label in _OLD_COUNTS.items() if native.get(name)}
    return texts | {label: ", ".join(parts) for label, parts in amounts.items()}


def _limit_label(label: str, who: str) -> str:
    return f"{label} {who}" if who else f"total {label}"


def _by_entity(limits: str) -> list[tuple[str, str]]:
    """('per user', '3') of [u:PBS_GENERIC=3], ('of alice', '5') of [u:alice=5], ('', '100') of
    [o:PBS_ALL=100].
    """
    found = []
    for kind, name, limit in entity_limits(limits):
        what = _ENTITIES.get(kind)
        if what is None:
            who = ""
        elif name == "PBS_GENERIC":
            who = f"per {what}"
        else:
            who = f"of {name}" if kind == "u" else f"of {what} {name}"
        found.append((who, limit))
    return found


def _whole(text: str) -> int | None:
    return int(text) if re.fullmatch(r"-?[0-9]{1,9}", text) else None


class PbsPolicy(DialectPart, PolicyPart):
    """The rules of queues and of the server."""

    def queue_rules(self, queue: str) -> Query[Facts]:
        """With what else the queue allows."""
        return _query(self.dialect, ("qstat", "-Q", "-f"), queue, "queues", _queue_rules)

    def queue_limits(self) -> Query[Mapping[str, QueueLimits]] | None:
        """Query the limits of the queues and, under '', of the server, which apply in all of them."""
        if self.dialect is Dialect.TORQUE:
            return None
        form, token, options = record_form(self.dialect)
        argv = pbs("sh", "-c", 'qstat -Qf "$@" && qstat -Bf "$@"', "sh", *options)
        parse = partial(_parse_queue_limits, form=form, token=token)
        return Query(argv, parse, command=("qstat", "-Qf"))

    def limits(self, user: str, cluster: str) -> Query[ParsedTable]:
        from hpcdash.backends.pbs.limits import limits_query

        return limits_query(self.dialect, user)

    def reservations(self, user: str) -> Query[ParsedTable]:
        from hpcdash.backends.pbs.reservations import reservations_query

        return reservations_query(user)
