"""Parts of a pending job's priority, and the rules of its QoS and partition."""

from __future__ import annotations

import re
from functools import partial
from typing import TypeVar

from hpcdash.backends.base import PolicyPart
from hpcdash.backends.queries import (
    TEXT_BYTES,
    Answer,
    Facts,
    Native,
    ParsedOffers,
    ParsedTable,
    Query,
    decoded,
    unreadable,
)
from hpcdash.backends.slurm.accounts import associations_query, qos_offers_query
from hpcdash.backends.slurm.clusters import ClusterPart, query_on
from hpcdash.backends.slurm.commands import slurm, slurm_script
from hpcdash.backends.slurm.errors import require_success
from hpcdash.backends.slurm.jobs import queue_id
from hpcdash.backends.slurm.values import duration_seconds, pairs, piped_rows
from hpcdash.backends.tokens import fresh_token
from hpcdash.domain.columns import digits
from hpcdash.domain.offers import AccessRules, AccountOffer, QosOffer, QueueAccess
from hpcdash.domain.units import format_duration

T = TypeVar("T")
# The points a factor gives, and which part that is of the most it can give. Source: sprio(1).
_FACTORS = (
    ("age", "%A", "%a"),
    ("association", "%B", "%b"),
    ("fair share", "%F", "%f"),
    ("job size", "%J", "%j"),
    ("partition", "%P", "%p"),
    ("QoS", "%Q", "%q"),
)
# The sum, the site's factor, TRES (as text), and the nice value, which is subtracted.
_REST = ("%Y", "%S", "%T", "%N")
_FORMAT = "|".join((*_REST, *(letter for _, points, part in _FACTORS for letter in (points, part))))
_NONE = ("", "(null)")
TOTAL = "priority"


def priority_query(job_id: str) -> Query[Facts]:
    """sprio for one job, or for the pending tasks of an array, which share theirs."""
    array_id = queue_id(job_id).partition("_")[0].partition("+")[0]
    return Query(
        slurm("sprio", "-h", "-j", array_id, "-o", _FORMAT), parse_priority, cap_bytes=TEXT_BYTES
    )


def parse_priority(answer: Answer) -> Facts:
    """Parse the points of each factor, with their share of the maximum.

    {} for a job that does not compete for nodes. Where priorities are not multifactor sprio reports
    so, and the result is empty. Factors that give nothing and can give nothing are left out.
    """
    message = decoded(answer.stdout + answer.stderr)
    if "priority/multifactor" in message or "Unable to find jobs" in message:
        return {}
    require_success(answer)
    line = next((line for line in decoded(answer.stdout).splitlines() if line.strip()), "")
    if not line:
        return {}
    values = [value.strip() for value in line.split("|")]
    if len(values) != len(_REST) + 2 * len(_FACTORS):
        raise unreadable(answer, "priorities")
    total, site, tres, nice = values[: len(_REST)]
    texts = {TOTAL: total}
    for (name, _, _), points, part in zip(
        _FACTORS, values[len(_REST) :: 2], values[len(_REST) + 1 :: 2], strict=True
    ):
        if _number(points) or _number(part):
            texts[name] = f"{points} ({_percent(part)} of max)"
    if tres not in _NONE:
        texts["resources"] = tres
    if _number(site):
        texts["site"] = site
    if _number(nice):
        texts["nice"] = (
            f"{-_number(nice):.0f} (requested)" if _number(nice) > 0 else f"+{-_number(nice):.0f}"
        )
    return texts


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def _percent(part: str) -> str:
    percent = 100 * _number(part)
    return f"{percent:.0f}%" if percent >= 1 or not percent else "< 1%"


_FIELDS = (
    "name",
    "preempt",
    "preemptmode",
    "gracetime",
    "maxwall",
    "maxtrespu",
    "maxjobspu",
    "maxsubmitpu",
    "grptres",
    "grpjobs",
    "maxtres",
)
_LIMITS = (
    ("longest time", "maxwall"),
    ("limit per job", "maxtres"),
    ("limit per user", "maxtrespu"),
    ("running jobs per user", "maxjobspu"),
    ("jobs per user", "maxsubmitpu"),
    ("total limit", "grptres"),
    ("total running jobs", "grpjobs"),
)
_MODES = {
    "requeue": "is put back into the queue",
    "cancel": "is cancelled",
    "suspend": "is suspended, and resumed later",
    "gang": "takes turns with others",
}
MADE_WAY = "a preempted job"
GRACE = "grace time"
PREEMPTED_BY = "may be preempted by"
# The controller reports whether partitions, or QoS, preempt one another; scontrol prints the
# cluster's mode for both.
_PREEMPTION_SCRIPT = """
scontrol show config | sed -n '/^PreemptType /p'
exec scontrol -a show partition
"""


def parse_qos(answer: Answer, *, qos: str) -> Facts:
    """Parse the facts of one QoS; {} for a QoS that does not exist."""
    require_success(answer)
    rows, rejected = piped_rows(decoded(answer.stdout), _FIELDS)
    if rejected:
        raise unreadable(answer, "QoS")
    by_name = {row["name"]: row for row in rows}
    own = by_name.get(qos)
    if own is None:
        return {}
    above = [name for name, other in by_name.items() if qos in other["preempt"].split(",")]
    below = [name for name in own["preempt"].split(",") if name]
    texts: dict[str, str] = {}
    if above:
        texts[PREEMPTED_BY] = ", ".join(above)
        # With the cluster's own mode, the grace time is still the QoS's.
        texts |= _making_way(own["preemptmode"], own["gracetime"]) or {
            GRACE: _format_grace(own["gracetime"])
        }
    if below:
        texts["may preempt"] = ", ".join(below)
    return texts | {label: own[field] for label, field in _LIMITS if own[field]}


def parse_queue_rules(answer: Answer) -> Facts:
    """Parse the rules of preemption in a partition; {} where it has none."""
    require_success(answer)
    rules = pairs(decoded(answer.stdout))
    return _making_way(rules.get("PreemptMode", ""), rules.get("GraceTime", ""))


def parse_preemption(answer: Answer, *, queue: str) -> Facts:
    """{} for a partition that is not there; no PREEMPTED_BY where partitions do not go before one
    another.
    """
    require_success(answer)
    head, *blocks = decoded(answer.stdout).split("PartitionName=")
    partitions = {block.split(None, 1)[0]: pairs(block) for block in blocks if block.strip()}
    own = partitions.get(queue)
    if own is None:
        return {}
    texts = _making_way(own.get("PreemptMode", ""), own.get("GraceTime", ""))
    above = [name for name, other in partitions.items() if _tier(other) > _tier(own)]
    return (
        {PREEMPTED_BY: ", ".join(above), **texts} if above and "partition_prio" in head else texts
    )


def _tier(partition: Native) -> int:
    return digits(partition.get("PriorityTier")) or 0


def _making_way(mode: str, grace: str) -> dict[str, str]:
    modes = [_MODES[word] for word in mode.lower().split(",") if word in _MODES]
    if not modes:
        # 'cluster' and 'OFF': nothing of its own.
        return {}
    return {MADE_WAY: " and ".join(modes), GRACE: _format_grace(grace)}


def _format_grace(grace: str) -> str:
    seconds = digits(grace) or duration_seconds(grace)
    return format_duration(seconds) if seconds else "none"


# slurm.conf(5): from here on, accounts below a listed one are listed, too.
_SUBACCOUNTS_SINCE = (23, 2)
_VERSION = re.compile(r"([0-9]+)\.([0-9]+)")
_NO_NAMES = frozenset({"ALL", "N/A", "(null)", "NONE", ""})


def parse_access_rules(answer: Answer, *, token: str, has_subaccounts: bool) -> AccessRules:
    """Parse the accounts and QoS that partitions admit, the sizes of their jobs, and the QoS that
    override these.
    """
    require_success(answer)
    partitions, _, qos = decoded(answer.stdout).partition(f"{token}\n")
    queues = {
        one["PartitionName"]: _queue_access(one, has_subaccounts=has_subaccounts)
        for one in map(pairs, partitions.split("\n"))
        if "PartitionName" in one
    }
    rows, _ = piped_rows(qos, ("name", "flags"))
    flags = {row["name"]: row["flags"].split(",") for row in rows}
    return AccessRules(
        queues,
        over_time=frozenset(name for name in flags if "PartitionTimeLimit" in flags[name]),
        over_nodes=frozenset(name for name in flags if "PartitionMaxNodes" in flags[name]),
    )


def _queue_access(partition: Native, *, has_subaccounts: bool) -> QueueAccess:
    accounts = _names(partition.get("AllowAccounts"))
    qos = _names(partition.get("AllowQos"))
    return QueueAccess(
        accounts=accounts or None,
        denied_accounts=_names(partition.get("DenyAccounts")),
        qos=qos or None,
        denied_qos=_names(partition.get("DenyQos")),
        admits_subaccounts=has_subaccounts,
        min_nodes=digits(partition.get("MinNodes")) or None,
        max_nodes=digits(partition.get("MaxNodes")),
        max_cpus_per_node=digits(partition.get("MaxCPUsPerNode")),
        default_limit_seconds=duration_seconds(partition.get("DefaultTime", ""))
        or duration_seconds(partition.get("MaxTime", "")),
    )


def _names(listed: str | None) -> tuple[str, ...]:
    return () if listed is None or listed in _NO_NAMES else tuple(listed.split(","))


class SlurmPolicy(ClusterPart, PolicyPart):
    """The rules of QoS, partitions and accounts."""

    def qos(self, qos: str) -> Query[Facts]:
        """All QoS, for those that may preempt this one name it."""
        argv = slurm("sacctmgr", "-n", "-P", "show", "qos", f"format={','.join(_FIELDS)}")
        return Query(argv, partial(parse_qos, qos=qos), cap_bytes=TEXT_BYTES)

    def queue_rules(self, queue: str) -> Query[Facts]:
        argv = slurm("scontrol", "-a", "show", "partition", queue)
        return self._on_one(Query(argv, parse_queue_rules, cap_bytes=TEXT_BYTES))

    def preemption(self, queue: str) -> Query[Facts]:
        query = Query(
            slurm("sh", "-c", _PREEMPTION_SCRIPT),
            partial(parse_preemption, queue=queue),
            command=("scontrol",),
            cap_bytes=TEXT_BYTES,
        )
        return self._on_one(query)

    def access_rules(self, version: str) -> Query[AccessRules]:
        found = _VERSION.search(version)
        has_subaccounts = found is None or (int(found[1]), int(found[2])) >= _SUBACCOUNTS_SINCE
        token = fresh_token()
        query = Query(
            slurm_script("backends/slurm/access.sh", token),
            partial(parse_access_rules, token=token, has_subaccounts=has_subaccounts),
            command=("scontrol", "show", "partition"),
            cap_bytes=TEXT_BYTES,
            commands=lambda _: 2,
        )
        return self._on_one(query)

    def associations(self, user: str, cluster: str = "") -> Query[ParsedOffers[AccountOffer]]:
        return associations_query(user, cluster)

    def qos_offers(self) -> Query[ParsedOffers[QosOffer]]:
        return qos_offers_query()

    def shares(self, user: str) -> Query[ParsedTable]:
        from hpcdash.backends.slurm.shares import shares_query

        return self._on_one(shares_query(user))

    def limits(self, user: str, cluster: str) -> Query[ParsedTable]:
        from hpcdash.backends.slurm.limits import limits_query

        return self._on_one(limits_query(user, cluster))

    def reservations(self, user: str) -> Query[ParsedTable]:
        from hpcdash.backends.slurm.reservations import reservations_query

        return self._on_one(reservations_query(user))

    def _on_one(self, query: Query[T]) -> Query[T]:
        """Raises UsageError where several clusters are selected."""
        return query_on(query, self.clusters.require_one())
