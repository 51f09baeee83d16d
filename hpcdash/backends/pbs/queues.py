"""Queues, from `qstat -Qf` and the server's own settings, read into the columns of
domain.schema.QUEUES.

A routing queue is a row as well, though no job runs in it: people submit to it, and some sites
allow nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from datetime import datetime
from functools import partial

import pyarrow as pa
from msgspec import Struct

from hpcdash.backends.pbs.dialects import Dialect, pbs
from hpcdash.backends.pbs.errors import require_success
from hpcdash.backends.pbs.records import (
    Form,
    read_attributes,
    read_records,
    record_form,
    record_query,
)
from hpcdash.backends.pbs.values import ctime, duration_seconds
from hpcdash.backends.queries import (
    Answer,
    ParsedTable,
    Query,
    Row,
    decoded,
    unreadable,
)
from hpcdash.domain import schema
from hpcdash.domain.columns import digits
from hpcdash.domain.states import REFUSING, QueueStanding
from hpcdash.shell_files import shell_text

_COMMAND = ("qstat", "-Qf")
_SERVER = "server_state"
_WANTED = (
    "enabled",
    "started",
    "state_count",
    "resources_max.walltime",
    "queue_type",
    "route_destinations",
    "from_route_only",
    "acl_user_enable",
    "acl_users",
    *("acl_group_enable", "acl_groups", "default_queue", "scheduling", _SERVER),
)
_HEAD = re.compile(rb"(?:(?:User|Groups|Reservation|Start): [^\n]*\n)*")
RESERVED_QUEUE = re.compile(r"[RSM][0-9]+")
SCHEDULING_OFF = "scheduling is off on this server: jobs do not start"
_MAX_NAMED = 5
_COUNT = re.compile(r"(?<![A-Za-z])([A-Za-z]+):([0-9]{1,12})")
_TRUE = frozenset({"true", "yes", "t", "y", "1"})


def queues_query(dialect: Dialect) -> Query[ParsedTable]:
    """qstat for all queues, and in the same round trip for the server's default queue."""
    _, token, options = record_form(dialect)
    argv = pbs(
        "sh", "-c", shell_text("backends/pbs/queues.sh"), *(("sh", *options) if options else ())
    )
    parse = partial(parse_queues, dialect=dialect, token=token)
    return Query(argv, parse, command=_COMMAND, commands=_count_commands)


def _count_commands(parsed: ParsedTable) -> int:
    """Count the queries of the queues and of the server; beside a reservation's queue also of the
    reservations.
    """
    return 2 + any(
        RESERVED_QUEUE.fullmatch(name) is not None for name in parsed.table["name"].to_pylist()
    )


def parse_queues(
    answer: Answer, *, dialect: Dialect = Dialect.OPENPBS, token: str = ""
) -> ParsedTable:
    """Rows of domain.schema.QUEUES, in the order printed; raises what the answer's failure stands
    for.

    What nodes a queue has is not told (its jobs may go to any that is bound to no queue): null. So
    are counts of jobs and the default queue where they are not told.
    """
    require_success(answer, _COMMAND)
    head = _HEAD.match(answer.stdout)
    raw = answer.stdout if head is None else answer.stdout[head.end() :]
    read = read_records(
        raw, Form.DSV if dialect is Dialect.OPENPBS else Form.TEXT, _WANTED, token=token
    )
    if read is None:
        raise unreadable(answer, "queues", _COMMAND)
    message = read.table.to_pylist()
    servers = [row for row in message if row[_SERVER] is not None]
    default = (servers[0]["default_queue"] or "").partition("@")[0] if servers else None
    person = _person(b"" if head is None else head[0])
    is_off = any(
        row["scheduling"] is not None and not _is_true(row["scheduling"]) for row in message
    )
    rows = [_row(row, default, person, is_off=is_off) for row in message if row[_SERVER] is None]
    return ParsedTable(pa.Table.from_pylist(rows, schema=schema.QUEUES), read.rejected)


def pause_query(dialect: Dialect) -> Query[str]:
    """Query whether scheduling is off: jobs wait without a comment then, or with the last one."""
    return record_query(dialect, ("qstat", "-Bf"), _parse_pause)


def _parse_pause(answer: Answer, *, form: Form, token: str) -> str:
    require_success(answer, ("qstat", "-Bf"))
    servers = read_attributes(answer.stdout, form, token=token)
    is_off = any(
        "scheduling" in native and not _is_true(native["scheduling"]) for _, native in servers
    )
    return SCHEDULING_OFF if is_off else ""


_PENDING = ("Queued", "Held", "Waiting", "Transit")


def _row(reported: Row, default: str | None, person: _Person, *, is_off: bool) -> Row:
    counts = {
        state: digits(count) or 0 for state, count in _COUNT.findall(reported["state_count"] or "")
    }
    standing, note = _parse_standing(reported, person)
    takes_jobs = standing not in REFUSING
    is_open = _is_true(reported["enabled"]) and _is_true(reported["started"])
    is_reserved = standing is QueueStanding.RESERVED
    return {
        "name": reported["id"],
        "available": takes_jobs and is_open,
        "default": None if default is None else reported["id"] == default,
        "limit_seconds": duration_seconds(reported["resources_max.walltime"] or ""),
        "jobs_running": counts.get("Running"),
        "jobs_pending": sum(counts.get(state, 0) for state in _PENDING) if counts else None,
        # What becomes of a job there.
        "_standing": standing and str(standing),
        "_note": note or None,
        "_opens_at": person.starts.get(reported["id"] or "") if is_reserved else None,
        "_server_note": SCHEDULING_OFF if is_off and takes_jobs else None,
    }


class _Person(Struct, frozen=True):
    """Person whose access is checked, and the start of each reservation that they may see, by its
    queue.
    """

    user: str
    groups: frozenset[str]
    starts: Mapping[str, datetime]


def _person(head: bytes) -> _Person:
    reported: dict[str, str] = {}
    starts: dict[str, datetime] = {}
    for line in decoded(head).splitlines():
        key, _, value = line.partition(": ")
        reported[key] = value
        # pbs_rstat tells a reservation's start before its queue.
        if key == "Reservation" and (start := ctime(reported.pop("Start", ""))) is not None:
            starts[value] = start
    return _Person(reported.get("User", ""), frozenset(reported.get("Groups", "").split()), starts)


def _parse_standing(reported: Row, person: _Person) -> tuple[QueueStanding | None, str]:
    """Return what becomes of a job in a queue, and a note on it."""
    if not _is_true(reported["enabled"]):
        return QueueStanding.DISABLED, "disabled: PBS rejects new jobs"
    if _is_true(reported["from_route_only"]):
        return QueueStanding.CLOSED, "accepts jobs only from routing queues"
    for name, mine, who in (("user", {person.user}, ""), ("group", person.groups, "group ")):
        listed = reported[f"acl_{name}s"] or ""
        is_checked = _is_true(reported[f"acl_{name}_enable"]) and person.user
        if is_checked and not is_on_list(listed, mine):
            admitted = _some(listed) or "nobody"
            return QueueStanding.CLOSED, f"closed to you: only {who}{admitted} may submit"
    if not _is_true(reported["started"]):
        if RESERVED_QUEUE.fullmatch(reported["id"] or ""):
            return QueueStanding.RESERVED, "reservation: jobs start when the reservation begins"
        return QueueStanding.STOPPED, "stopped: jobs wait until the site starts the queue"
    if (reported["queue_type"] or "").lower().startswith("r"):
        destinations = _some(reported["route_destinations"] or "") or "no queue"
        return QueueStanding.ROUTING, f"routes jobs to {destinations}"
    return None, ""


def is_on_list(listed: str, names: Collection[str]) -> bool:
    """Whether an access list lets any of the names in: `alice`, `+alice@host`, `-bob`, `*`; hosts
    are not looked at.

    A name's own entry counts before one for all.
    """
    listed_names = filter(None, map(str.strip, listed.split(",")))
    entries = {
        one.lstrip("+-").partition("@")[0] or "*": not one.startswith("-") for one in listed_names
    }
    reported = [entries[name] for name in names if name in entries]
    return any(reported) if reported else entries.get("*", False)


def _some(listed: str) -> str:
    names = [
        one.strip().lstrip("+").partition("@")[0]
        for one in listed.split(",")
        if one.strip()[:1] not in ("", "-")
    ]
    return ", ".join(names[:_MAX_NAMED]) + (" …" if len(names) > _MAX_NAMED else "")


def _is_true(text: str | None) -> bool:
    return text is not None and text.strip().lower() in _TRUE
