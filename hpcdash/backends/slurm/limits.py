"""Limits of a user's associations and QoS, and their use: sacctmgr and scontrol. Runs nothing.

The database knows every limit; the controller's association manager knows the use, of all accounts
above, and of QoS used so far. Names in both are administrators'.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from msgspec import Struct

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
from hpcdash.backends.slurm.commands import slurm
from hpcdash.backends.slurm.errors import accounting_unavailable, failure
from hpcdash.backends.slurm.values import account_parents, duration_seconds, pairs, piped_rows
from hpcdash.backends.tokens import fresh_token
from hpcdash.domain import schema
from hpcdash.domain.columns import MOST, digits
from hpcdash.domain.units import parse_memory
from hpcdash.shell_files import shell_text

_COMMAND = ("sacctmgr", "show", "assoc")
_PARTS = 5
# A database may be busy.
_LIMIT_SECONDS = 30.0

_SUFFIXES = {"cpu": "cpus", "gres/gpu": "gpus", "node": "nodes"}
_MINUTES_OF = {"cpu": "cpu", "gres/gpu": "gpu", "node": "node"}
_SECONDS_A_MINUTE = 60


class _Limit(Struct, frozen=True):
    """A limit by the database's name and the controller's; `per` as in LIMITS.

    `resource` is that of LIMITS; where it is '' the value is a list of TRES, and `ending` goes
    behind each of their names.
    """

    field: str
    key: str
    per: str
    resource: str = ""
    ending: str = ""


_GROUP = (
    _Limit("grpjobs", "GrpJobs", "all", "jobs_running"),
    _Limit("grpsubmit", "GrpSubmitJobs", "all", "jobs_submitted"),
    _Limit("grptres", "GrpTRES", "all"),
    _Limit("grptresmins", "GrpTRESMins", "all", ending="_minutes"),
    _Limit("grptresrunmins", "GrpTRESRunMins", "all", ending="_run_minutes"),
    _Limit("grpwall", "GrpWall", "all", "wall_seconds"),
)
_JOB = (
    _Limit("maxwall", "MaxWallPJ", "job", "limit_seconds"),
    _Limit("maxtres", "MaxTRESPJ", "job"),
    _Limit("maxtresmins", "MaxTRESMinsPJ", "job", ending="_minutes"),
)
_OF_ASSOCIATION = (
    _Limit("maxjobs", "MaxJobs", "user", "jobs_running"),
    _Limit("maxsubmit", "MaxSubmitJobs", "user", "jobs_submitted"),
    *_GROUP,
    *_JOB,
)
_OF_QOS = (
    _Limit("maxjobspu", "MaxJobsPU", "user", "jobs_running"),
    _Limit("maxsubmitpu", "MaxSubmitJobsPU", "user", "jobs_submitted"),
    _Limit("maxtrespu", "MaxTRESPU", "user"),
    _Limit("maxjobspa", "MaxJobsPA", "account", "jobs_running"),
    _Limit("maxsubmitpa", "MaxSubmitJobsPA", "account", "jobs_submitted"),
    _Limit("maxtrespa", "MaxTRESPA", "account"),
    *_GROUP,
    *_JOB,
)
_ASSOCIATION_FIELDS = ("account", "partition", "qos", *(limit.field for limit in _OF_ASSOCIATION))
_QOS_FIELDS = ("name", *(limit.field for limit in _OF_QOS))

# `6(2)`, `N(2)`, `6`.
_AMOUNTS = re.compile(r"([^()]*)(?:\(([0-9.]+)\))?")


class _Use(Struct, frozen=True):
    """Use of a QoS as reported by the controller, key → text.

    Accounts are keyed by name, users by number.
    """

    own: Native
    accounts: Mapping[str, Native]
    users: Mapping[str, Native]


class _Controller(Struct, frozen=True):
    """The association manager's records: (account, user, partition) → what is used; account → its
    parent.
    """

    associations: Mapping[tuple[str, str, str], Native]
    parents: Mapping[str, str]
    qos: Mapping[str, _Use]


def limits_query(user: str, cluster: str = "") -> Query[ParsedTable]:
    """Return the query for a user's limits ('': the caller), in one round trip.

    A database may serve several clusters.
    """
    token = fresh_token()
    argv = slurm(
        "sh",
        "-c",
        shell_text("backends/slurm/limits.sh"),
        "sh",
        token,
        user,
        cluster,
        ",".join(_ASSOCIATION_FIELDS),
        ",".join(_QOS_FIELDS),
    )
    parse = partial(parse_limits, token=token)
    return Query(argv, parse, _LIMIT_SECONDS, command=_COMMAND, cap_bytes=TEXT_BYTES)


def parse_limits(answer: Answer, *, token: str) -> ParsedTable:
    """Parse the rows of domain.schema.LIMITS.

    They are of one's associations, of the accounts above them, of QoS one may use and of those that
    partitions apply. Values missing in the database are taken from the controller, and the other
    way round; raises where both are empty.
    """
    parts = _parts(answer, token)
    if len(parts) != _PARTS:
        raise failure(answer, _COMMAND) if answer.status else unreadable(answer, "limits", _COMMAND)
    (
        (who, _),
        (manager, _),
        (associations, has_associations),
        (qos, has_qos),
        (partitions, _),
    ) = parts
    user, _, number = who.strip().partition("\n")
    controller = _read_controller(manager)
    own, rejected = piped_rows(associations if has_associations else "", _ASSOCIATION_FIELDS)
    qos_rows, rejected_qos = piped_rows(qos if has_qos else "", _QOS_FIELDS)
    all_qos = {row["name"]: row for row in qos_rows}
    rejected += rejected_qos
    if not own and not controller.associations and not has_associations:
        if "supported accounting" in decoded(answer.stderr):
            raise accounting_unavailable(answer, command=_COMMAND)
        raise failure(answer, _COMMAND)
    if not has_associations or not has_qos:
        rejected += ("slurmdbd does not answer: limits of QoS that nobody uses now are missing",)
    if not own:
        own = _user_associations(controller, user)
    rows = [row for one in own for row in _association_rows(one, user, controller)]
    accounts = account_parents([one["account"] for one in own], controller.parents)
    rows += [row for account in accounts for row in _account_rows(account, controller)]
    by_partition = _partition_qos(partitions)
    chosen = dict.fromkeys(name for one in own for name in one["qos"].split(",") if name)
    if not has_qos:
        all_qos = {name: {"name": name} for name in controller.qos}
    if not chosen:
        chosen = dict.fromkeys(
            name for name, use in controller.qos.items() if number.strip() in use.users
        )
    for name in dict.fromkeys((*chosen, *by_partition)):
        reported = all_qos.get(name, {"name": name})
        use = controller.qos.get(name)
        own_accounts = tuple(dict.fromkeys(one["account"] for one in own))
        rows += _qos_rows(
            reported, use, (user, number.strip()), own_accounts, by_partition.get(name)
        )
    return ParsedTable(pa.Table.from_pylist(rows, schema.LIMITS), rejected)


def _parts(answer: Answer, token: str) -> list[tuple[str, bool]]:
    """Return the output of each command, and whether it succeeded."""
    pieces = decoded(answer.stdout).split(token)
    parts = []
    before = pieces[0]
    for piece in pieces[1:]:
        status, _, rest = piece.partition("\n")
        parts.append((before, status == "0"))
        before = rest
    return parts


# -- association manager


def _read_controller(text: str) -> _Controller:
    associations: dict[tuple[str, str, str], Native] = {}
    parents: dict[str, str] = {}
    qos: dict[str, _Use] = {}
    for line in text.split("\n"):
        if line.startswith("ClusterName="):
            account, rest = _between(line, " Account=", " UserName=")
            user, rest = _between(rest, "", " Partition=")
            partition, rest = _between(rest, "", " Priority=")
            user = user.partition("(")[0]
            associations[account, user, partition] = pairs(rest)
            if not user:
                parents[account] = _between(rest, " ParentAccount=", " Lft=")[0].partition("(")[0]
        elif line.startswith("QOS="):
            name, rest = _between(line, "QOS=", " UsageRaw=")
            own, _, limits = rest.partition(" Account Limits=")
            account_limits, _, user_limits = limits.partition(" User Limits=")
            qos[name.rpartition("(")[0]] = _Use(
                pairs(own), _split_limits(account_limits), _split_limits(user_limits)
            )
    return _Controller(associations, parents, qos)


def _between(text: str, start: str, end: str) -> tuple[str, str]:
    """Return the text between `start` and `end` of a line, and the text after `end`."""
    found, _, rest = (text.partition(start)[2] if start else text).partition(end)
    return found, rest


def _split_limits(text: str) -> dict[str, dict[str, str]]:
    """` physics={MaxJobsPA=N(6) …} chem={…}` by name."""
    found = {}
    for part in text.split("}"):
        name, is_one, limits = part.partition("={")
        if is_one:
            found[_subject(name.strip())] = pairs(limits)
    return found


def _subject(text: str) -> str:
    """A user's number, of `1001` or `alice(1001)`; an account's name."""
    return text[text.index("(") + 1 : -1] if text.endswith(")") and "(" in text else text


def _user_associations(controller: _Controller, user: str) -> list[dict[str, str]]:
    """Return a user's associations in the form of the database, without their QoS."""
    return [
        {"account": account, "partition": partition, "qos": ""}
        for account, name, partition in controller.associations
        if name and name == user
    ]


def _partition_qos(text: str) -> dict[str, list[str]]:
    """QoS → the partitions that apply it to all of their jobs."""
    by_qos: dict[str, list[str]] = {}
    for line in text.split("\n"):
        reported = pairs(line)
        if (name := reported.get("PartitionName")) and reported.get("QoS", "N/A") != "N/A":
            by_qos.setdefault(reported["QoS"], []).append(name)
    return by_qos


# -- rows


def _association_rows(reported: Native, user: str, controller: _Controller) -> Iterator[Row]:
    account = reported["account"]
    partition = reported["partition"]
    name = "/".join(part for part in (account, user, partition) if part)
    used = controller.associations.get((account, user, partition))
    jobs = {"_of_user": user, "_of_account": account, "_of_queue": partition or None}
    for limit in _OF_ASSOCIATION:
        # The limits of all jobs of an association are those of its user's jobs there.
        per = "job" if limit.per == "job" else "user"
        subject = None if per == "job" else user
        yield from _limit_rows(
            limit,
            reported,
            used,
            scope="association",
            name=name,
            per=per,
            subject=subject,
            jobs=jobs,
        )


def _account_rows(account: str, controller: _Controller) -> Iterator[Row]:
    used = controller.associations.get((account, "", ""))
    for limit in _GROUP:
        jobs = {"_of_account": account}
        yield from _limit_rows(
            limit,
            {},
            used,
            scope="account",
            name=account,
            per="account",
            subject=account,
            jobs=jobs,
        )


def _qos_rows(
    reported: Native,
    use: _Use | None,
    user: tuple[str, str],
    accounts: Sequence[str],
    queues: list[str] | None,
) -> Iterator[Row]:
    """Return the rows of QoS; `user` is name and number.

    A partition's QoS is not counted where its jobs cannot be distinguished by their own QoS.
    """
    name = reported["name"]
    for limit in _OF_QOS:
        subjects: Sequence[tuple[str | None, Native | None]] = [(None, use.own if use else None)]
        if limit.per == "user":
            subjects = [(user[0], use.users.get(user[1], {}) if use else None)]
        elif limit.per == "account":
            subjects = [
                (account, use.accounts.get(account, {}) if use else None) for account in accounts
            ]
        for subject, used in subjects:
            jobs = {"_of_qos": name} if queues is None else {}
            if jobs and limit.per in ("user", "account"):
                jobs[f"_of_{limit.per}"] = str(subject)
            yield from _limit_rows(
                limit,
                reported,
                used,
                scope="qos",
                name=name,
                per=limit.per,
                subject=subject,
                jobs=jobs,
                queues=queues,
            )


def _limit_rows(
    limit: _Limit,
    reported: Native,
    used: Native | None,
    *,
    scope: str,
    name: str,
    per: str,
    subject: str | None,
    jobs: Mapping[str, str | None],
    queues: list[str] | None = None,
) -> Iterator[Row]:
    """Return a row for each amount that a limit sets.

    `used` None: the controller reports nothing, and the jobs are counted.
    """
    message = reported.get(limit.field, "")
    now = (used or {}).get(limit.key, "")
    most = dict(_amounts(message, limit, _database_amount)) or _controller_amounts(
        now, limit, which=0
    )
    uses = _controller_amounts(now, limit, which=1)
    for resource, maximum in most.items():
        # The controller prints nothing for resources that are not in use yet.
        amount = None if per == "job" or used is None else uses.get(resource, 0)
        yield {
            "scope": scope,
            "name": name,
            "per": per,
            "subject": subject,
            "resource": resource,
            "maximum": maximum,
            "used": amount,
            "free": None if amount is None else max(0, maximum - amount),
            "queues": queues,
            "native": limit.key,
            "_id": "/".join((scope, name, limit.key, subject or "", resource)),
            **dict.fromkeys(("_of_user", "_of_queue", "_of_qos", "_of_account")),
            **({} if per == "job" else jobs),
        }


def _controller_amounts(text: str, limit: _Limit, *, which: int) -> dict[str, int]:
    """Parse the controller's `cpu=6(2),mem=N(200)`: the limits (0) or the used amounts (1)."""

    def amount(word: str, unit: str) -> int | None:
        found = _AMOUNTS.fullmatch(word)
        return None if found is None else _number((found[1], found[2])[which] or "", unit)

    return dict(_amounts(text, limit, amount))


def _amounts(text: str, limit: _Limit, amount: Any) -> Iterator[tuple[str, int]]:
    if limit.resource:
        unit = "minutes" if limit.resource.endswith("_seconds") else ""
        if (value := amount(text, unit)) is not None:
            yield limit.resource, value
        return
    for item in filter(None, text.split(",")):
        tres, _, word = item.partition("=")
        is_memory = tres == "mem" and not limit.ending
        if (value := amount(word, "memory" if is_memory else "")) is not None:
            yield _resource(tres, limit.ending), value


def _resource(tres: str, ending: str) -> str:
    if ending:
        return f"{_MINUTES_OF.get(tres, tres)}{ending}"
    return "memory_bytes" if tres == "mem" else _SUFFIXES.get(tres, tres)


def _number(text: str, unit: str) -> int | None:
    """A count of the controller's: memory in MiB, times in minutes with hundredths; None for N and
    ''.
    """
    whole_text, _, hundredths = text.partition(".")
    whole = digits(whole_text)
    if whole is None:
        return None
    factor = {"memory": 1 << 20, "minutes": _SECONDS_A_MINUTE}.get(unit, 1)
    amount = whole * factor
    if unit == "minutes" and hundredths:
        amount += (digits(hundredths[:2].ljust(2, "0")) or 0) * _SECONDS_A_MINUTE // 100
    return amount if amount <= MOST else None


def _database_amount(text: str, unit: str) -> int | None:
    """An amount as sacctmgr writes it: `64G`, `1-00:00:00`, `6`."""
    if unit == "minutes":
        return duration_seconds(text) if text else None
    if unit == "memory":
        try:
            return parse_memory(text, bare_unit_bytes=1 << 20)
        except ValueError:
            return None
    return digits(text)
