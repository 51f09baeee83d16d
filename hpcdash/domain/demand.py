"""Total demand of a submission, and the parts of it that a cluster cannot provide."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from hpcdash.domain.offers import Offers, QosOffer, QueueOffer
from hpcdash.domain.text import counted
from hpcdash.domain.units import format_clock, format_memory

Severity = Literal["error", "warning"]


class LintFinding(Struct, frozen=True):
    """`field` is a key of REQUEST.toml (`time`, `container.image`), `line 7` of a script, or '' for
    the whole.

    `text` and `next_step` may quote remote text: make them visible before they are shown.
    """

    severity: Severity
    field: str
    text: str
    next_step: str = ""


def format_finding(finding: LintFinding) -> str:
    """`slots: 64 CPUs are more than a node has. At most 32`."""
    text = join_sentences(finding.text, finding.next_step)
    return f"{finding.field}: {text}" if finding.field else text


def join_sentences(*sentences: str) -> str:
    """`it is down. Try again`, without the empty ones."""
    return ". ".join(sentence.rstrip(".") for sentence in sentences if sentence)


class Demand(Struct, frozen=True):
    """Resources that a job requests; None and '': not requested, or unknown.

    `queues`: any of them will do; none: the default one. `features` are those of its nodes.
    `gpu_memory_bytes` (of each GPU) and `gpu_formats` (bf16, fp8) are known to no scheduler.

    `where` maps these names to what findings call the place: a request's key, or `line 3`.
    """

    queues: tuple[str, ...] = ()
    account: str = ""
    qos: str = ""
    limit_seconds: int | None = None
    nodes: int | None = None
    cpus: int | None = None
    gpus: int | None = None
    cpus_per_node: int | None = None
    gpus_per_node: int | None = None
    gpu_type: str = ""
    memory_per_node_bytes: int | None = None
    features: tuple[str, ...] = ()
    is_exclusive: bool = False
    gpu_memory_bytes: int | None = None
    gpu_formats: tuple[str, ...] = ()
    where: Mapping[str, str] = field(default_factory=dict)

    def place(self, *names: str) -> str:
        """Return where the first of these names with a known place is written; '' for none."""
        return next((self.where[name] for name in names if name in self.where), "")


def nearest(word: str, choices: Iterable[str]) -> str:
    """`Did you mean 'gpu'?`, or what there is; '' where there is nothing."""
    known = sorted(set(choices))
    by_folded = {choice.casefold(): choice for choice in known}
    near = difflib.get_close_matches(word.casefold()[:100], by_folded, n=1)
    if near:
        return f"Did you mean {by_folded[near[0]]!r}?"
    return f"Available: {', '.join(known[:12])}{', …' * (len(known) > 12)}." * bool(known)


def unmet(demand: Demand, offers: Offers) -> tuple[LintFinding, ...]:
    """Every part of a demand that the offers cannot meet; what is not known of them finds
    nothing.
    """
    return (
        *_lint_queues(demand, offers),
        *_lint_account(demand, offers),
        *_lint_qos(demand, offers),
    )


def _lint_queues(demand: Demand, offers: Offers) -> Iterator[LintFinding]:
    if not offers.queues:
        return
    place = demand.place("queues")
    unknown = [name for name in demand.queues if offers.queue(name) is None]
    for name in unknown:
        yield LintFinding(
            "error",
            place,
            f"no queue {name!r}",
            nearest(name, (one.name for one in offers.listed)),
        )
    requested = [
        queue for name in demand.queues or ("",) if (queue := offers.queue(name)) is not None
    ]
    if not requested:
        if not unknown:
            names = (queue.name for queue in offers.listed if queue.is_available)
            text = "no queue is requested, and the default queue is unknown"
            yield LintFinding("warning", place, text, nearest("", names))
        return
    open_ones = [queue for queue in requested if queue.is_available]
    if not open_ones:
        # A queue that accepts the job is better than one that refuses it.
        first = min(requested, key=lambda queue: queue.refuses)
        step = "" if first.note else "The job waits there until the queue opens."
        yield LintFinding("error" if first.refuses else "warning", place, first.closed_reason, step)
    elif all(queue.closed_reason for queue in open_ones):
        yield LintFinding("warning", place, open_ones[0].closed_reason)
    # If several queues would do, one that can accept it is enough.
    found = min((_against(demand, queue, offers) for queue in open_ones or requested), key=len)
    yield from _with_another(found, demand, offers)


def _against(demand: Demand, queue: QueueOffer, offers: Offers) -> list[LintFinding]:
    return [found for check in _CHECKS if (found := check(demand, queue, offers)) is not None]


def _with_another(
    found: list[LintFinding], demand: Demand, offers: Offers
) -> Iterator[LintFinding]:
    """The findings, the first with a queue that can take all of it."""
    able = [
        queue.name
        for queue in offers.listed
        if queue.is_available and not _against(demand, queue, offers)
    ]
    for at, one in enumerate(found):
        more = f"Queue {able[0]} fits the whole request." if able and not at else ""
        yield replace(one, next_step=" ".join(filter(None, (one.next_step, more))))


_Check = Callable[[Demand, QueueOffer, Offers], LintFinding | None]


def _over_time(demand: Demand, queue: QueueOffer, offers: Offers) -> LintFinding | None:
    if (
        demand.limit_seconds is None
        or queue.limit_seconds is None
        or demand.limit_seconds <= queue.limit_seconds
    ):
        return None
    requested = format_clock(demand.limit_seconds)
    most = format_clock(queue.limit_seconds)
    place = demand.place("limit_seconds")
    text = f"{requested} exceeds the limit of queue {queue.name}, {most}"
    if demand.qos and offers.access is not None and demand.qos in offers.access.over_time:
        return None
    if demand.qos and offers.access is None:
        return LintFinding(
            "warning",
            place,
            f"{text}, which QoS {demand.qos} may allow",
            f"At most {most} otherwise.",
        )
    return LintFinding(
        "error", place, f"{text}: the job would pend forever or be rejected", f"At most {most}."
    )


def _over_nodes(demand: Demand, queue: QueueOffer, _: Offers) -> LintFinding | None:
    has_own = demand.gpus is not None and queue.gpu_nodes > 0
    most, counted = (queue.gpu_nodes, "nodes with GPUs") if has_own else (queue.nodes, "nodes")
    if demand.nodes is None or not most or demand.nodes <= most:
        return None
    text = f"{demand.nodes} {counted} requested, but queue {queue.name} has only {most}"
    hint = (
        "Set slots_per_node to fit more on each node." if "slots" in demand.where.values() else ""
    )
    return LintFinding("error", demand.place("nodes"), text, hint or f"At most {most}.")


def is_gpu_type(requested: str, name: str) -> bool:
    """Return whether a node's GPU type is the requested one; case does not count.

    PBS's nodes may report a device by its whole name: Tesla V100-SXM2-32GB.
    """
    known = name.casefold()
    return known == requested.casefold() or (" " in known and requested.casefold() in known)


def _outside_sizes(demand: Demand, queue: QueueOffer, offers: Offers) -> LintFinding | None:
    access = offers.queue_access(queue.name)
    cpus = demand.cpus_per_node
    most_cpus = access.max_cpus_per_node
    if cpus is not None and most_cpus is not None and cpus > most_cpus:
        text = f"{cpus} CPUs per node exceed the limit of queue {queue.name}: {most_cpus}"
        place = demand.place("cpus_per_node")
        return LintFinding("error", place, text, f"At most {most_cpus}.")
    nodes = demand.nodes
    if nodes is None or (offers.access is not None and demand.qos in offers.access.over_nodes):
        return None
    most = access.max_nodes
    least = access.min_nodes
    if most is not None and nodes > most:
        text = (
            f"{counted(nodes, 'node')} requested, but queue {queue.name} allows only {most} per job"
        )
        return LintFinding("error", demand.place("nodes"), text, f"At most {most}.")
    if least is not None and nodes < least:
        text = f"queue {queue.name} requires at least {counted(least, 'node')}"
        return LintFinding("error", demand.place("nodes"), text, f"At least {least}.")
    return None


def _not_admitted(demand: Demand, queue: QueueOffer, offers: Offers) -> LintFinding | None:
    """Return why a queue admits no job of the account (or the default one) with the QoS."""
    access = offers.queue_access(queue.name)
    account = demand.account or next((one.name for one in offers.accounts if one.is_default), "")
    bound = next((one.queues for one in offers.accounts if one.name == account), ())
    if bound and queue.name not in bound:
        text = f"account {account} may be charged only in {', '.join(bound)}"
        return LintFinding("error", demand.place("account", "queues"), text)
    for kind, name, admitted, denied in (
        ("account", account, access.accounts, access.denied_accounts),
        ("QoS", demand.qos, access.qos, access.denied_qos),
    ):
        place = demand.place(kind.lower(), "queues")
        if not name:
            continue
        if admitted is None:
            if name in denied:
                return LintFinding("error", place, f"queue {queue.name} denies {kind} {name}")
        elif name not in admitted:
            shown = ", ".join(admitted[:5]) + (" …" if len(admitted) > 5 else "")
            text = f"queue {queue.name} admits only {kind} {shown}"
            if kind == "account" and access.admits_subaccounts:
                return LintFinding("warning", place, f"{text} and accounts below")
            return LintFinding("error", place, text)
    return None


def _without_gpus(demand: Demand, queue: QueueOffer, offers: Offers) -> LintFinding | None:
    if not (demand.gpus or demand.gpus_per_node or demand.gpu_type) or queue.gpus:
        return None
    having = [one.name for one in offers.listed if one.gpus > 0]
    # Nothing is known of any node.
    if not queue.nodes and not having:
        return None
    return LintFinding(
        "error",
        demand.place("gpus", "gpus_per_node", "gpu_type", "queues"),
        f"queue {queue.name} has no GPUs",
        f"Available in {', '.join(having[:5])}." if having else "Request CPUs.",
    )


def _gpu_type(demand: Demand, queue: QueueOffer, offers: Offers) -> LintFinding | None:
    requested = demand.gpu_type.casefold()
    types = queue.gpu_types
    if not requested or not types or any(is_gpu_type(requested, name) for name in types):
        return None
    having = [one.name for one in offers.listed if requested in map(str.casefold, one.gpu_types)]
    text = f"queue {queue.name} has no GPU of type {demand.gpu_type!r}"
    next_step = (
        f"Available in {', '.join(having[:5])}."
        if having
        else nearest(demand.gpu_type, queue.gpu_types)
    )
    return LintFinding("error", demand.place("gpu_type", "gpus", "gpus_per_node"), text, next_step)


def _amount(name: str, unit: str) -> _Check:
    each, has = (" per node", "only") if name.endswith("_per_node") else ("", "only")

    def over(demand: Demand, queue: QueueOffer, _: Offers) -> LintFinding | None:
        requested = getattr(demand, name)
        most = getattr(queue, name)
        if requested is None or not most or requested <= most:
            return None
        text = f"{requested} {unit}{each} requested, but queue {queue.name} has {has} {most}"
        return LintFinding("error", demand.place(name), text, f"At most {most}.")

    return over


def _over_memory(demand: Demand, queue: QueueOffer, _: Offers) -> LintFinding | None:
    requested = demand.memory_per_node_bytes
    most = queue.memory_per_node_bytes
    if requested is None or not most or requested <= most:
        return None
    text = (
        f"{format_memory(requested)} of memory per node requested, more than queue {queue.name} has"
    )
    return LintFinding(
        "error",
        demand.place("memory_per_node_bytes"),
        text,
        f"The largest node has {format_memory(most)}.",
    )


_CHECKS: tuple[_Check, ...] = (
    _not_admitted,
    _over_time,
    _outside_sizes,
    _over_nodes,
    _without_gpus,
    _gpu_type,
    _amount("gpus", "GPUs"),
    _amount("gpus_per_node", "GPUs"),
    _amount("cpus", "CPUs"),
    _amount("cpus_per_node", "CPUs"),
    _over_memory,
)


def _lint_account(demand: Demand, offers: Offers) -> Iterator[LintFinding]:
    names = [account.name for account in offers.accounts]
    if demand.account and names and demand.account.casefold() not in map(str.casefold, names):
        text = f"you may not charge account {demand.account!r}"
        yield LintFinding("error", demand.place("account"), text, nearest(demand.account, names))


def _lint_qos(demand: Demand, offers: Offers) -> Iterator[LintFinding]:
    if not demand.qos:
        return
    place = demand.place("qos")
    qos = _named(offers.qos, demand.qos)
    if offers.qos and qos is None:
        text = f"no QoS {demand.qos!r}"
        yield LintFinding(
            "error", place, text, nearest(demand.qos, (one.name for one in offers.qos))
        )
        return
    accounts = [
        one
        for one in offers.accounts
        if (one.name == demand.account if demand.account else one.is_default)
    ]
    allowed = {name for account in accounts for name in account.qos}
    if allowed and demand.qos not in allowed:
        text = f"account {accounts[0].name} may not use QoS {demand.qos!r}"
        yield LintFinding("error", place, text, nearest(demand.qos, allowed))
    if qos is None:
        return
    if demand.limit_seconds and qos.limit_seconds and demand.limit_seconds > qos.limit_seconds:
        most = format_clock(qos.limit_seconds)
        text = f"{format_clock(demand.limit_seconds)} exceeds the limit of QoS {qos.name}, {most}"
        yield LintFinding(
            "error", demand.place("limit_seconds"), text, f"At most {most}, or another QoS."
        )
    for name, requested, limit, unit in (
        ("cpus", demand.cpus, qos.most_cpus, "CPUs"),
        ("gpus", demand.gpus, qos.most_gpus, "GPUs"),
    ):
        if requested is not None and limit is not None and requested > limit:
            text = f"{requested} {unit} exceed the limit of QoS {qos.name}: {limit}"
            yield LintFinding(
                "error", demand.place(name), text, f"At most {limit}, or another QoS."
            )


def _named(offers: Iterable[QosOffer], name: str) -> QosOffer | None:
    return next((one for one in offers if one.name == name), None)
