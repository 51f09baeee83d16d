"""Limits of a user's associations and QoS, and their use: sacctmgr and scontrol. Runs nothing.

The database knows every limit; the controller's association manager knows the use, of all accounts
above, and of QoS used so far. Names in both are administrators'.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

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
from hpcdash.backends.slurm.commands import slurm_script
from hpcdash.backends.slurm.errors import accounting_unavailable, failure
from hpcdash.backends.slurm.values import (
    account_parents,
    duration_seconds,
    memory_bytes,
    pairs,
    piped_rows,
)
from hpcdash.backends.tokens import fresh_token
from hpcdash.domain import schema
from hpcdash.domain.columns import MOST, digits

_COMMAND = ("sacctmgr", "show", "assoc")
_PARTS = 5
# A database may be busy.
_LIMIT_SECONDS = 30.0

_SUFFIXES = {"cpu": "cpus", "gres/gpu": "gpus", "node": "nodes", "mem": "memory_bytes"}
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

    def amounts(self, text: str) -> Iterator[tuple[str, str, str]]:
        """Yield resource, amount as it is written, and unit of each amount in a value."""
        if self.resource:
            yield self.resource, text, "minutes" if self.resource.endswith("_seconds") else ""
            return
        for item in filter(None, text.split(",")):
            tres, _, amount = item.partition("=")
            if self.ending:
                yield _MINUTES_OF.get(tres, tres) + self.ending, amount, ""
            else:
                yield _SUFFIXES.get(tres, tres), amount, "memory" if tres == "mem" else ""


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
    argv = slurm_script(
        "backends/slurm/limits.sh",
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
        rejected += ("slurmdbd does not respond: limits of unused QoS are missing",)
    if not own:
        # In the form of the database, without their QoS.
        own = [
            {"account": account, "partition": partition, "qos": ""}
            for account, name, partition in controller.associations
            if name and name == user
        ]
    rows = [row for association in own for row in _association_rows(association, user, controller)]
    accounts = tuple(dict.fromkeys(association["account"] for association in own))
    for account in account_parents(accounts, controller.parents):
        used = controller.associations.get((account, "", ""))
        holder = _Holder("account", account, used, {"_of_account": account})
        rows += _rows("account", account, _GROUP, {}, {"all": [holder]})
    names = [name for association in own for name in association["qos"].split(",") if name]
    if not has_qos:
        all_qos = {name: {"name": name} for name in controller.qos}
    if not names:
        names = [name for name, use in controller.qos.items() if number.strip() in use.users]
    by_partition = _partition_qos(partitions)
    for name in dict.fromkeys((*names, *by_partition)):
        queues = by_partition.get(name)
        # Jobs of a partition's QoS cannot be distinguished by their own, and are not counted.
        jobs = {"_of_qos": name} if queues is None else None
        holders = _qos_holders(controller.qos.get(name), user, number.strip(), accounts, jobs)
        rows += _rows("qos", name, _OF_QOS, all_qos.get(name, {}), holders, queues)
    return ParsedTable(pa.Table.from_pylist(rows, schema.LIMITS), rejected)


def _partition_qos(text: str) -> dict[str, list[str]]:
    """QoS → the partitions that apply it to all of their jobs."""
    by_qos: dict[str, list[str]] = {}
    for reported in map(pairs, text.split("\n")):
        if "PartitionName" in reported and reported.get("QoS", "N/A") != "N/A":
            by_qos.setdefault(reported["QoS"], []).append(reported["PartitionName"])
    return by_qos


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


# -- rows


class _Holder(Struct, frozen=True):
    """Holder of a limit: `per` and `subject` as in LIMITS, what they use (None: the
    controller reports nothing, and the jobs are counted), and the columns that select their jobs.
    """

    per: str
    subject: str | None
    used: Native | None
    jobs: Mapping[str, str | None]


def _association_rows(reported: Native, user: str, controller: _Controller) -> Iterator[Row]:
    account = reported["account"]
    partition = reported["partition"]
    used = controller.associations.get((account, user, partition))
    jobs = {"_of_user": user, "_of_account": account, "_of_queue": partition or None}
    # The limits of all jobs of an association are those of its user's jobs there.
    own = [_Holder("user", user, used, jobs)]
    holders = {"user": own, "all": own, "job": [_Holder("job", None, used, {})]}
    name = "/".join(part for part in (account, user, partition) if part)
    return _rows("association", name, _OF_ASSOCIATION, reported, holders)


def _qos_holders(
    use: _Use | None, user: str, number: str, accounts: Sequence[str], jobs: Native | None
) -> dict[str, list[_Holder]]:
    """Return those that the limits of a QoS are for; `number` is the user's, `jobs` None where they
    are not counted.
    """

    def holder(per: str, subject: str | None, used: Native | None) -> _Holder:
        own = {} if subject is None else {f"_of_{per}": subject}
        return _Holder(per, subject, used, {} if jobs is None or per == "job" else {**jobs, **own})

    own = use.own if use else None
    user_use = use.users.get(number, {}) if use else None
    return {
        "all": [holder("all", None, own)],
        "job": [holder("job", None, own)],
        "user": [holder("user", user, user_use)],
        "account": [
            holder("account", account, use.accounts.get(account, {}) if use else None)
            for account in accounts
        ],
    }


def _rows(
    scope: str,
    name: str,
    limits: Sequence[_Limit],
    reported: Native,
    holders: Mapping[str, Sequence[_Holder]],
    queues: list[str] | None = None,
) -> Iterator[Row]:
    """Yield a row for each amount that the limits set, by the holders of each `per`."""
    for limit in limits:
        written = {
            resource: _database_amount(amount, unit)
            for resource, amount, unit in limit.amounts(reported.get(limit.field, ""))
        }
        for holder in holders[limit.per]:
            most, uses = _controller_amounts(limit, holder.used or {})
            known = {resource: amount for resource, amount in written.items() if amount is not None}
            for resource, maximum in (known or most).items():
                # The controller prints nothing for resources that are not in use yet.
                is_used = holder.per != "job" and holder.used is not None
                used = uses.get(resource, 0) if is_used else None
                yield {
                    "scope": scope,
                    "name": name,
                    "per": holder.per,
                    "subject": holder.subject,
                    "resource": resource,
                    "maximum": maximum,
                    "used": used,
                    "free": None if used is None else max(0, maximum - used),
                    "queues": queues,
                    "native": limit.key,
                    "_id": "/".join((scope, name, limit.key, holder.subject or "", resource)),
                    **holder.jobs,
                }


def _controller_amounts(limit: _Limit, used: Native) -> tuple[dict[str, int], dict[str, int]]:
    """(limits, uses) in the controller's `cpu=6(2),mem=N(200)`."""
    most: dict[str, int] = {}
    uses: dict[str, int] = {}
    for resource, text, unit in limit.amounts(used.get(limit.key, "")):
        if found := _AMOUNTS.fullmatch(text):
            for amounts, word in ((most, found[1]), (uses, found[2] or "")):
                if (amount := _number(word, unit)) is not None:
                    amounts[resource] = amount
    return most, uses


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
        return memory_bytes(text, bare_unit_bytes=1 << 20)
    return digits(text)
