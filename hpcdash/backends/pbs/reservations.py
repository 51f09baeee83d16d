"""Reservations, and whether a user may use them: pbs_rstat. Runs nothing.

Anyone may make a reservation, and names it; what a record says twice counts once, the first time,
and an id that comes twice stands for none.
"""

from __future__ import annotations

from collections import Counter
from functools import partial

import pyarrow as pa

from hpcdash.backends.pbs.dialects import pbs_script
from hpcdash.backends.pbs.errors import require_success
from hpcdash.backends.pbs.queues import is_on_list
from hpcdash.backends.pbs.values import ctime, duration_seconds, parse_hosts
from hpcdash.backends.queries import (
    TEXT_BYTES,
    Answer,
    Native,
    ParsedTable,
    Query,
    Row,
    decoded,
    row_excerpt,
    unreadable,
)
from hpcdash.backends.tokens import fresh_token
from hpcdash.domain import schema
from hpcdash.domain.columns import digits
from hpcdash.domain.nodelist import compress

_COMMAND = ("pbs_rstat", "-f")
_HEAD = "Resv ID: "
_STATES = {
    "CONFIRMED": "upcoming",
    "RUNNING": "active",
    "TIME_TO_RUN": "active",
    "FINISHED": "ended",
}
_PREFIX = "RESV_"


def reservations_query(user: str) -> Query[ParsedTable]:
    """All reservations that a user ('': whoever asks) may see."""
    token = fresh_token()
    argv = pbs_script("backends/pbs/reservations.sh", token, user)
    return Query(
        argv, partial(parse_reservations, token=token), command=_COMMAND, cap_bytes=TEXT_BYTES
    )


def parse_reservations(answer: Answer, *, token: str) -> ParsedTable:
    """Rows of domain.schema.RESERVATIONS, the earliest first; raises what the answer's failure
    stands for.
    """
    require_success(answer, _COMMAND)
    parts = decoded(answer.stdout).split(token)
    if len(parts) != 3:
        raise unreadable(answer, "reservations", _COMMAND)
    who, brief, listed = parts
    user, _, groups = who.partition("\n")
    known = {line.removeprefix(_HEAD).strip() for line in brief.split("\n") if line.strip()}
    records, rejected = _records(listed)
    times = Counter(name for name, _ in records)
    rows = []
    for name, reported in records:
        if name not in known or times[name] > 1:
            rejected.append(
                row_excerpt(f"{_HEAD}{name}: more than one record, or not in the list".encode())
            )
        else:
            rows.append(_row(name, reported, user, frozenset(groups.split())))
    rows.sort(key=lambda row: (row["starts_at"] is None, row["starts_at"], row["name"]))
    return ParsedTable(pa.Table.from_pylist(rows, schema.RESERVATIONS), tuple(rejected))


def _records(text: str) -> tuple[list[tuple[str, dict[str, str]]], list[str]]:
    records: list[tuple[str, dict[str, str]]] = []
    rejected = []
    for line in text.split("\n"):
        key, is_pair, value = line.partition(" = ")
        if line.startswith(_HEAD):
            records.append((line.removeprefix(_HEAD).strip(), {}))
        elif records and is_pair:
            records[-1][1].setdefault(key.strip(), value)
        elif not records and line.strip():
            rejected.append(row_excerpt(line.encode()))
    return records, rejected


def _row(name: str, reported: Native, user: str, groups: frozenset[str]) -> Row:
    state = reported.get("reserve_state", "").removeprefix(_PREFIX)
    queue = reported.get("queue") or name.partition(".")[0]
    hosts = parse_hosts(reported.get("resv_nodes", ""))
    users = reported.get("Authorized_Users", "")
    own_groups = reported.get("Authorized_Groups", "")
    title = reported.get("Reserve_Name", "")
    owner = reported.get("Reserve_Owner", "").partition("@")[0]
    return {
        "name": name,
        "state": _STATES.get(state, state.lower()),
        "allowed": _is_allowed(users, own_groups, owner, user, groups),
        "starts_at": ctime(reported.get("reserve_start", "")),
        "ends_at": ctime(reported.get("reserve_end", "")),
        "duration_seconds": duration_seconds(reported.get("reserve_duration", "")),
        "nodes": digits(reported.get("Resource_List.nodect", "")) or (len(hosts) or None),
        "node_list": compress(hosts) if hosts else None,
        "queue": queue,
        "users": _names(users),
        "groups": _names(own_groups),
        "flags": [
            flag
            for key, flag in (("reserve_rrule", "STANDING"), ("reserve_job", "FROM_JOB"))
            if reported.get(key)
        ],
        "_option": f"-q {queue}",
        "_note": "; ".join(filter(None, (title, f"created by {owner}" if owner else ""))) or None,
    }


def _names(text: str) -> list[str] | None:
    """Return the listed names without their hosts; None for an empty list."""
    names = (name.strip().lstrip("+").partition("@")[0] for name in text.split(",") if name.strip())
    return list(dict.fromkeys(names)) or None


def _is_allowed(
    users: str, groups: str, owner: str, user: str, own_groups: frozenset[str]
) -> bool | None:
    """Return whether the lists of a reservation admit a user; of two lists, both must."""
    if not users and not groups:
        return None if not owner else owner == user
    return (not users or is_on_list(users, {user})) and (
        not groups or is_on_list(groups, own_groups)
    )
