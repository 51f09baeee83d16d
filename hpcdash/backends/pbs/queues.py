"""Queues, from `qstat -Qf` and the server's own settings, read into the columns of domain.schema.QUEUES.

A routing queue is a row as well, though no job runs in it: people submit to it, and some sites allow nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

import pyarrow as pa

from hpcdash.backends.pbs.commands import pbs
from hpcdash.backends.pbs.dialects import Dialect
from hpcdash.backends.pbs.failures import require_success, unreadable
from hpcdash.backends.pbs.records import Form, read_records
from hpcdash.backends.pbs.values import duration_seconds
from hpcdash.backends.queries import Answer, ParsedTable, Query
from hpcdash.backends.tokens import fresh_token
from hpcdash.domain import schema
from hpcdash.domain.columns import digits

# The queues without the server's settings are better than nothing; without the queues there is nothing.
_DSV = 'qstat -Qf -F dsv -D "$1" || exit\nqstat -Bf -F dsv -D "$1" 2>/dev/null\nexit 0'
_TEXT = "qstat -Qf || exit\nqstat -Bf 2>/dev/null\nexit 0"
# Slurm's wrappers know no server, and take no two letters behind one dash. Their qstat -q always exits 153.
_WRAPPED = "qstat -Q -f || exit\nqstat -q\nexit 0"
_COMMAND = ("qstat", "-Qf")
_SERVER = "server_state"
_WANTED = (
    *("enabled", "started", "state_count", "resources_max.walltime", "resources_default.nodes"),
    *("default_queue", _SERVER),
)
# Of qstat -q: Queue, Memory, CPU Time, Walltime, Node, Run, …; a name may fill its column.
_LIMITS_HEAD = re.compile(rb"^Queue +Memory +CPU Time +Walltime [^\n]*\n[- ]+\n", re.MULTILINE)
_NAME_BYTES = 16
_COUNT = re.compile(r"(?<![A-Za-z])([A-Za-z]+):([0-9]{1,12})")
_TRUE = frozenset({"true", "yes", "t", "y", "1"})


def queues_query(dialect: Dialect) -> Query[ParsedTable]:
    """qstat for all queues, and in the same round trip for the server's default queue."""
    if dialect is Dialect.OPENPBS:
        token = fresh_token()
        return Query(pbs("sh", "-c", _DSV, "sh", token), partial(parse_queues, token=token), command=_COMMAND)
    argv = pbs("sh", "-c", _WRAPPED if dialect is Dialect.SLURM_WRAPPERS else _TEXT)
    return Query(argv, partial(parse_queues, dialect=dialect), command=_COMMAND)


def parse_queues(answer: Answer, *, dialect: Dialect = Dialect.OPENPBS, token: str = "") -> ParsedTable:
    """Rows of domain.schema.QUEUES, in the order printed; raises what the answer's failure stands for.

    What nodes a queue has is not told (its jobs may go to any that is bound to no queue): null. So are counts of jobs
    and the default queue where they are not told.
    """
    require_success(answer, _COMMAND)
    is_slurm = dialect is Dialect.SLURM_WRAPPERS
    raw, limits = _apart(answer.stdout) if is_slurm else (answer.stdout, [])
    read = read_records(raw, Form.DSV if dialect is Dialect.OPENPBS else Form.TEXT, _WANTED, token=token)
    if read is None:
        raise unreadable(answer, "queues", _COMMAND)
    said = read.table.to_pylist()
    default = next((row["default_queue"] for row in said if row[_SERVER] is not None), None)
    has_server = any(row[_SERVER] is not None for row in said)
    rows = [
        _queue(row, _default(row["id"], default) if has_server else None, is_slurm=is_slurm)
        for row in said
        if row[_SERVER] is None
    ]
    if len(limits) == len(rows):
        rows = [{**row, **told} for row, told in zip(rows, limits, strict=True)]
    return ParsedTable(pa.Table.from_pylist(rows, schema=schema.QUEUES), read.rejected)


def _apart(raw: bytes) -> tuple[bytes, list[dict[str, Any]]]:
    """The queues as Slurm's wrappers print them, and what their short list adds to each, in the same order.

    Of jobs that wait it counts an array as one, so they are not counted here.
    """
    head = _LIMITS_HEAD.search(raw)
    if head is None:
        return raw, []
    added = []
    for line in raw[head.end() :].decode("utf-8", "replace").splitlines():
        words = line[_NAME_BYTES:].split()
        if line[:_NAME_BYTES].strip() and len(words) > 4:
            added.append({"limit_seconds": duration_seconds(words[2]), "jobs_running": digits(words[4])})
    return raw[: head.start()], added


def _default(name: str, default: str | None) -> bool:
    return default is not None and name == default.partition("@")[0]


def _queue(said: Mapping[str, str | None], is_default: bool | None, *, is_slurm: bool) -> dict[str, Any]:
    counts = {state: digits(count) or 0 for state, count in _COUNT.findall(said["state_count"] or "")}
    # A partition that is down or drained is enabled and started to the wrappers.
    is_open = _is_true(said["enabled"]) and _is_true(said["started"])
    return {
        "name": said["id"],
        "available": None if is_slurm and is_open else is_open,
        "default": is_default,
        "limit_seconds": duration_seconds(said["resources_max.walltime"] or ""),
        # The wrappers print there how many nodes a partition has.
        "nodes": digits(said["resources_default.nodes"]) if is_slurm else None,
        **dict.fromkeys(("nodes_idle", "nodes_down", "cpus", "cpus_used", "gpus", "gpus_used")),
        "jobs_running": counts.get("Running"),
        "jobs_pending": _sum(counts, ("Queued", "Held", "Waiting", "Transit")),
    }


def _sum(counts: Mapping[str, int], states: tuple[str, ...]) -> int | None:
    return sum(counts.get(state, 0) for state in states) if counts else None


def _is_true(text: str | None) -> bool:
    return text is not None and text.strip().lower() in _TRUE
