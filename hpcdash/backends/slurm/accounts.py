"""The accounts and QoS that a person may submit with: sacctmgr. Runs nothing.

sacctmgr takes no separator but `|`. All that it prints here was named by administrators; a row of
another number of fields is rejected.
"""

from __future__ import annotations

from collections.abc import Iterable

from hpcdash.backends.queries import (
    TEXT_BYTES,
    Answer,
    ParsedOffers,
    Query,
    decoded,
    unreadable,
)
from hpcdash.backends.slurm.commands import slurm
from hpcdash.backends.slurm.errors import require_success
from hpcdash.backends.slurm.values import duration_seconds, piped_rows
from hpcdash.domain.columns import digits
from hpcdash.domain.offers import AccountOffer, QosOffer

_OF_A_USER = ("user", "defaultaccount", "account", "partition", "qos", "defaultqos")
_OF_A_QOS = (
    "name",
    "maxwall",
    "maxjobspu",
    "maxtrespu",
    "maxtres",
    "maxsubmitpu",
    "grptres",
    "grpjobs",
    "preempt",
)
# A database may hold thousands of associations, and be busy.
_LIMIT_SECONDS = 20.0


def associations_query(user: str, cluster: str = "") -> Query[ParsedOffers[AccountOffer]]:
    """One's associations with the default account; a database may serve several clusters."""
    cluster_filter = (f"cluster={cluster}",) if cluster else ()
    requested = (
        "show",
        "user",
        f"name={user}",
        *cluster_filter,
        "withassoc",
        f"format={','.join(_OF_A_USER)}",
    )
    return Query(
        slurm("sacctmgr", "-n", "-P", "-r", *requested),
        parse_associations,
        _LIMIT_SECONDS,
        cap_bytes=TEXT_BYTES,
    )


def parse_associations(answer: Answer) -> ParsedOffers[AccountOffer]:
    """Parse an offer for each account, the default one first.

    An account with several associations has the QoS of all, the default QoS first; if each of them
    is for a partition, it has these queues.
    """
    rows, rejected = _rows(answer, _OF_A_USER, "accounts")
    qos: dict[str, dict[str, None]] = {}
    partitions: dict[str, set[str]] = {}
    defaults = {row["defaultaccount"] for row in rows}
    for row in rows:
        # sacctmgr prints a row even if there is no association on this cluster.
        if row["account"]:
            names = [row["defaultqos"], *row["qos"].split(",")]
            qos.setdefault(row["account"], {}).update(dict.fromkeys(name for name in names if name))
            partitions.setdefault(row["account"], set()).add(row["partition"])
    offers = [
        AccountOffer(
            name,
            name in defaults,
            tuple(names),
            queues=() if "" in partitions[name] else tuple(sorted(partitions[name])),
        )
        for name, names in qos.items()
    ]
    return ParsedOffers(
        tuple(sorted(offers, key=lambda offer: (not offer.is_default, offer.name))), rejected
    )


def qos_offers_query() -> Query[ParsedOffers[QosOffer]]:
    requested = ("show", "qos", f"format={','.join(_OF_A_QOS)}")
    return Query(
        slurm("sacctmgr", "-n", "-P", "-r", *requested),
        parse_qos_offers,
        _LIMIT_SECONDS,
        cap_bytes=TEXT_BYTES,
    )


def parse_qos_offers(answer: Answer) -> ParsedOffers[QosOffer]:
    """All QoS in the database's order; of a user's and a job's limits on CPUs and GPUs the smaller
    one counts.
    """
    rows, rejected = _rows(answer, _OF_A_QOS, "QoS")
    preempted_by: dict[str, list[str]] = {}
    for row in rows:
        for name in filter(None, row["preempt"].split(",")):
            preempted_by.setdefault(name, []).append(row["name"])
    return ParsedOffers(
        tuple(_qos(row, preempted_by.get(row["name"], ())) for row in rows), rejected
    )


def _qos(row: dict[str, str], above: Iterable[str]) -> QosOffer:
    limits = [_trackable(row[name]) for name in ("maxtrespu", "maxtres")]
    cpus = [limit["cpu"] for limit in limits if "cpu" in limit]
    gpus = [limit["gres/gpu"] for limit in limits if "gres/gpu" in limit]
    notes = [
        f"jobs can be preempted by {', '.join(above)}" if above else "",
        f"queued jobs per user: at most {row['maxsubmitpu']}" if row["maxsubmitpu"] else "",
        f"{row['grptres']} in total" if row["grptres"] else "",
        f"{row['grpjobs']} running jobs in total" if row["grpjobs"] else "",
    ]
    return QosOffer(
        row["name"],
        duration_seconds(row["maxwall"]) if row["maxwall"] else None,
        digits(row["maxjobspu"]),
        min(cpus, default=None),
        min(gpus, default=None),
        "; ".join(note for note in notes if note),
    )


def _trackable(text: str) -> dict[str, int]:
    """`cpu=6,gres/gpu=4` as amounts; what is no whole number (`mem=4G`) is left out."""
    pairs = (item.partition("=") for item in text.split(","))
    return {name: count for name, _, amount in pairs if (count := digits(amount)) is not None}


def _rows(
    answer: Answer, fields: tuple[str, ...], what: str
) -> tuple[list[dict[str, str]], tuple[str, ...]]:
    """The rows by field, and those rejected; raises where there are lines and none is a row."""
    require_success(answer)
    rows, rejected = piped_rows(decoded(answer.stdout), fields)
    if rejected and not rows:
        raise unreadable(answer, what)
    return rows, rejected
