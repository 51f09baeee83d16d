"""The limits that queues and the server set for a user: qstat -Qf and -Bf. Runs nothing.

How much a user uses is not told there; their jobs tell it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

import pyarrow as pa
from msgspec import Struct

from hpcdash.backends.pbs.dialects import Dialect, pbs_script
from hpcdash.backends.pbs.errors import require_success
from hpcdash.backends.pbs.queues import RESERVED_QUEUE
from hpcdash.backends.pbs.records import Form, read_all, record_form
from hpcdash.backends.pbs.values import duration_seconds, entity_limits, size_bytes
from hpcdash.backends.queries import (
    TEXT_BYTES,
    Answer,
    Native,
    ParsedTable,
    Query,
    Row,
    decoded,
    unreadable,
)
from hpcdash.domain import schema
from hpcdash.domain.columns import digits

_COMMAND = ("qstat", "-Qf")
_HEAD = re.compile(rb"User: ([^\n]*)\nGroup: ([^\n]*)\nGroups: ([^\n]*)\n")
_SERVER = "server_state"
_GENERIC = "PBS_GENERIC"
_PER = {"u": "user", "g": "group", "p": "project", "o": "all"}
# Before 10, and in Torque, each limit of an entity had a name of its own.
_COUNTS = {
    "max_run": "jobs_running",
    "max_queued": "jobs_submitted",
    "queued_jobs_threshold": "jobs_waiting",
}
_OLD_COUNTS = {
    "max_running": ("all", "jobs_running"),
    "max_user_run": ("user", "jobs_running"),
    "max_group_run": ("group", "jobs_running"),
    "max_queuable": ("all", "jobs_submitted"),
    "max_user_queuable": ("user", "jobs_submitted"),
}
_AMOUNTS = ("max_run_res", "max_queued_res")
_OLD_AMOUNTS = {
    "max_user_res": "user",
    "max_group_res": "group",
    "resources_available": "all",
    "resources_max": "job",
}
_RESOURCES = {
    "ncpus": "cpus",
    "ngpus": "gpus",
    "gpus": "gpus",
    "nodect": "nodes",
    "nodes": "nodes",
    "mem": "memory_bytes",
    "walltime": "limit_seconds",
}
_SIZES = frozenset({"mem", "vmem", "pmem", "pvmem"})
_TIMES = frozenset({"walltime", "cput", "pcput"})
_RUNNING = re.compile(r"\bRunning:([0-9]{1,12})")


class _Person(Struct, frozen=True):
    user: str
    group: str
    groups: frozenset[str]


def limits_query(dialect: Dialect, user: str) -> Query[ParsedTable]:
    """A user's limits ('': whoever asks); there is one server."""
    form, token, options = record_form(dialect)
    parse = partial(parse_limits, form=form, token=token)
    return Query(
        pbs_script("backends/pbs/limits.sh", user, *options),
        parse,
        command=_COMMAND,
        cap_bytes=TEXT_BYTES,
    )


def parse_limits(answer: Answer, *, form: Form, token: str = "") -> ParsedTable:
    """Rows of domain.schema.LIMITS, the server's first; raises what the answer's failure stands
    for.
    """
    require_success(answer, _COMMAND)
    head = _HEAD.match(answer.stdout)
    read = None if head is None else read_all(answer.stdout[head.end() :], form, token=token)
    if head is None or read is None:
        raise unreadable(answer, "queues", _COMMAND)
    user, group, groups = (decoded(part) for part in head.groups())
    person = _Person(user, group, frozenset(groups.split()))
    records, rejected = read
    records = sorted(records, key=lambda record: _SERVER not in record[1])
    # What a reservation's queue allows its reservation tells.
    rows = [
        row
        for name, native in records
        if not RESERVED_QUEUE.fullmatch(name)
        for row in _rows(name, native, person)
    ]
    return ParsedTable(pa.Table.from_pylist(rows, schema.LIMITS), rejected)


def _rows(name: str, native: Native, person: _Person) -> Iterator[Row]:
    is_server = _SERVER in native
    scope = "server" if is_server else "queue"
    running = digits((_RUNNING.search(native.get("state_count", "")) or [None, None])[1])
    used = {"jobs_running": running}
    for attribute, value in native.items():
        base, _, resource = attribute.partition(".")
        if base == "resources_assigned" and resource:
            column, amount = _amount(resource, value)
            used[column] = amount
    for limit in _limits(native, person):
        is_own = limit["per"] == "user"
        # What nothing has used is not printed.
        amount = used.get(limit["resource"], 0 if running == 0 else None)
        if limit["per"] != "all":
            amount = None
        parts = (scope, name, limit["native"], limit["subject"] or "", limit["resource"])
        yield {
            **limit,
            "scope": scope,
            "name": name,
            "used": amount,
            "free": None if amount is None else max(0, limit["maximum"] - amount),
            "queues": None if is_server else [name],
            "_id": "/".join(parts),
            "_of_user": person.user if is_own else None,
            "_of_queue": name if is_own and not is_server else None,
        }


def _limits(native: Native, person: _Person) -> Iterator[Row]:
    """Yield the columns that tell a limit of each that holds for a person."""
    for attribute, value in native.items():
        base, _, name = attribute.partition(".")
        if attribute in _COUNTS:
            resource = _COUNTS[attribute]
            limits = [
                (per, subject, resource, digits(text))
                for per, subject, text in _person_limits(value, person)
            ]
        elif attribute in _OLD_COUNTS:
            per, resource = _OLD_COUNTS[attribute]
            limits = [(per, _subject(per, person), resource, digits(value))]
        elif base in _AMOUNTS and name:
            limits = [
                (per, subject, *_amount(name, text))
                for per, subject, text in _person_limits(value, person)
            ]
        elif base in _OLD_AMOUNTS and name:
            per = _OLD_AMOUNTS[base]
            limits = [(per, _subject(per, person), *_amount(name, value))]
        else:
            continue
        for per, subject, resource, maximum in limits:
            if base == "max_queued_res":
                # What all jobs of a queue request, waiting ones included.
                is_memory = resource == "memory_bytes"
                resource = "memory_submitted_bytes" if is_memory else f"{resource}_submitted"
            if maximum is not None:
                yield {
                    "native": attribute,
                    "per": per,
                    "subject": subject,
                    "resource": resource,
                    "maximum": maximum,
                }


def _person_limits(limits: str, person: _Person) -> Iterator[tuple[str, str | None, str]]:
    """(per, subject, amount) of the entities a person is; one's own entry counts before that for
    everybody.
    """
    reported = entity_limits(limits)
    mine = {"u": {person.user}, "g": person.groups}
    named = {kind for kind, name, _ in reported if name in mine.get(kind, ())}
    for kind, name, amount in reported:
        per = _PER[kind]
        if name in mine.get(kind, ()) or kind == "p":
            yield per, None if name == _GENERIC else name, amount
        elif kind == "o":
            yield per, None, amount
        elif name == _GENERIC and kind not in named:
            yield per, _subject(per, person), amount


def _subject(per: str, person: _Person) -> str | None:
    return {"user": person.user, "group": person.group or None}.get(per)


def _amount(name: str, text: str) -> tuple[str, int | None]:
    """The resource and how much of it."""
    resource = _RESOURCES.get(name, name)
    if name in _SIZES:
        return resource, size_bytes(text)
    return resource, duration_seconds(text) if name in _TIMES else digits(text)
