"""Reservations, and whether a user may use them: scontrol show reservation. Runs nothing."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from functools import partial

import pyarrow as pa
from msgspec import Struct

from hpcdash.backends.queries import (
    TEXT_BYTES,
    Answer,
    ParsedTable,
    Query,
    Row,
    decoded,
    row_excerpt,
)
from hpcdash.backends.slurm.commands import slurm_script
from hpcdash.backends.slurm.errors import failure
from hpcdash.backends.slurm.values import account_parents, duration_seconds, pairs
from hpcdash.backends.tokens import fresh_token
from hpcdash.domain import schema
from hpcdash.domain.columns import digits, epoch_seconds

_COMMAND = ("scontrol", "show", "reservation")
_NONE = ("(null)", "")
_NOTHING_HERE = "No reservations in the system"
# Longer than a year is how Slurm writes a reservation without an end.
_ENDLESS_SECONDS = 365 * 86400 - 1
_STATES = {"ACTIVE": "active", "INACTIVE": "upcoming"}
# Source: Flags in scontrol(1).
_FLAGS = {
    "MAINT": "maintenance",
    "DAILY": "repeats every day",
    "WEEKLY": "repeats every week",
    "HOURLY": "repeats every hour",
    "WEEKDAY": "repeats on weekdays",
    "WEEKEND": "repeats on weekends",
    "FLEX": "jobs may start before it and run past it",
    "MAGNETIC": "eligible jobs use it without requesting it",
    "OVERLAP": "may overlap others",
    "PURGE_COMP": "is deleted when no job uses it",
    "REPLACE": "nodes in use are replaced by free ones",
    "IGNORE_JOBS": "ignores jobs already running on its nodes",
}


class _Person(Struct, frozen=True):
    """Person whose access is checked. `accounts` None: unknown."""

    user: str
    groups: frozenset[str]
    accounts: frozenset[str] | None


def reservations_query(user: str) -> Query[ParsedTable]:
    """Return the query for all reservations and a user's groups, in one round trip.

    The user '' is the caller.
    """
    token = fresh_token()
    return Query(
        slurm_script("backends/slurm/reservations.sh", token, user),
        partial(parse_reservations, token=token),
        command=_COMMAND,
        cap_bytes=TEXT_BYTES,
    )


def parse_reservations(answer: Answer, *, token: str) -> ParsedTable:
    """Rows of domain.schema.RESERVATIONS, the earliest first; raises what the answer's failure
    stands for.
    """
    if answer.status != 0:
        raise failure(answer, _COMMAND)
    head, _, listed = decoded(answer.stdout).partition(token + token)
    person = _person(head, token)
    rows = []
    rejected = []
    for line in filter(str.strip, listed.split("\n")):
        if line.startswith("ReservationName="):
            rows.append(_row(line, person))
        elif _NOTHING_HERE not in line:
            rejected.append(row_excerpt(line.encode()))
    rows.sort(key=lambda row: (row["starts_at"] is None, row["starts_at"], row["name"]))
    return ParsedTable(pa.Table.from_pylist(rows, schema.RESERVATIONS), tuple(rejected))


def _person(head: str, token: str) -> _Person:
    who, *reported = head.split(token)
    user, _, groups = who.strip("\n").partition("\n")
    accounts = None
    if len(reported) >= 2:
        own, tree = (
            [line.split("|") for line in part.split("\n") if line.count("|") == 1]
            for part in (reported[0], reported[1])
        )
        parents = {account: parent for account, parent in tree if account != parent}
        accounts = frozenset(account_parents((account for account, _ in own), parents))
    return _Person(user, frozenset(groups.split()), accounts)


_JOBS_NEED = {"QOS": "for jobs with QoS", "AllowedPartitions": "for jobs of partition"}


def _row(line: str, person: _Person) -> Row:
    # A comment comes last, and may contain text that looks like other keys.
    reported = {key: "" if value in _NONE else value for key, value in pairs(line).items()}
    users, groups, accounts = (
        _names(reported.get(key, "")) for key in ("Users", "Groups", "Accounts")
    )
    flags = _names(reported.get("Flags", "")) or []
    allowed = _is_allowed(users, groups, accounts, person)
    # Later releases also name QoS and partitions that a job must have.
    needs = [f"{what} {reported[key]}" for key, what in _JOBS_NEED.items() if reported.get(key)]
    if needs and allowed:
        allowed = None
    seconds = duration_seconds(reported.get("Duration", ""))
    is_endless = seconds is not None and seconds >= _ENDLESS_SECONDS
    state = reported.get("State", "")
    name = reported["ReservationName"]
    return {
        "name": name,
        "state": _STATES.get(state, state.lower()),
        "allowed": allowed,
        "starts_at": _instant(reported.get("StartTime")),
        "ends_at": None if is_endless else _instant(reported.get("EndTime")),
        "duration_seconds": None if is_endless else seconds,
        "nodes": digits(reported.get("NodeCnt")),
        "node_list": reported.get("Nodes") or None,
        "queue": reported.get("PartitionName") or None,
        "users": users,
        "groups": groups,
        "accounts": accounts,
        "flags": flags,
        "_option": f"--reservation={name}",
        "_note": "; ".join((*needs, *(_FLAGS[flag] for flag in flags if flag in _FLAGS))) or None,
    }


def _names(text: str) -> list[str] | None:
    """Return the listed names; None for an empty list."""
    return [name for name in text.split(",") if name] or None


def _instant(text: str | None) -> datetime | None:
    seconds = epoch_seconds(text)
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def _is_allowed(
    users: Sequence[str] | None,
    groups: Sequence[str] | None,
    accounts: Sequence[str] | None,
    person: _Person,
) -> bool | None:
    """Users and groups are one list, accounts another: where both are there, both must let one
    in.
    """
    people = None if users is None and groups is None else False
    if users is not None:
        people = _lets_in(users, {person.user})
    if groups is not None and not people:
        people = _lets_in(groups, person.groups)
    if accounts is None or people is False:
        return True if people is None else people
    return None if person.accounts is None else _lets_in(accounts, person.accounts)


def _lets_in(listed: Collection[str], mine: Collection[str]) -> bool:
    """Return whether a list admits a name.

    Names after `-` are excluded, and all others admitted.
    """
    excluded = {name[1:] for name in listed if name.startswith("-")}
    return not excluded.intersection(mine) if excluded else bool(set(listed).intersection(mine))
