"""Jobs that check nodes: which nodes they have, and what is submitted for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from hpcdash.backends.base import Capability
from hpcdash.backends.script.node_checks import CHECKS, command_text
from hpcdash.config.request import request_text
from hpcdash.domain import nodelist
from hpcdash.domain.request import Request, SlotType
from hpcdash.errors import UsageError
from hpcdash.services.submit.launches import Launches
from hpcdash.services.submit.submission import SubmissionPlan

Row = Mapping[str, Any]
# Each is in the job's command line.
MAX_NODES = 1000
LIMIT_SECONDS = 600


class Selection(Struct, frozen=True):
    """The nodes that are to be checked, as rows of domain.schema.NODES; `left_out` says why others
    are not.
    """

    nodes: tuple[Row, ...]
    queue: str
    left_out: tuple[str, ...] = ()


def select_nodes(
    where: str, rows: Sequence[Row], queue: str, queues: Collection[str] = ()
) -> Selection:
    """The idle nodes of a queue, or nodes given by name: `n01,n[03-07]`.

    Raises UsageError if there are none.

    For one of `queues` that no node is bound to, these are the nodes bound to no queue.
    """
    queue_rows = [row for row in rows if where in (row["queues"] or ())]
    queue_rows = queue_rows or [row for row in rows if where in queues and not row["queues"]]
    if queue_rows:
        idle = tuple(row for row in queue_rows if row["state"] == "idle")
        others = [
            f"{row['name']} is {row['state']}" for row in queue_rows if row["state"] != "idle"
        ]
        if not idle:
            raise UsageError(
                f"no node of {where} is idle: {'; '.join(others[:5])}",
                "Name nodes to wait for them.",
            )
        return Selection(idle[:MAX_NODES], where, tuple(others))
    by_name = {str(row["name"]): row for row in rows}
    try:
        names = nodelist.expand(where)
    except ValueError as error:
        raise UsageError(
            f"{where!r} names no nodes: {error}", "Write n01,n[03-07], or the name of a queue."
        ) from None
    unknown = [name for name in names if name not in by_name]
    if unknown:
        raise UsageError(
            f"{unknown[0]!r} is neither a queue nor a node here", "hpcdash nodes lists them."
        )
    if len(names) > MAX_NODES:
        raise UsageError(
            f"{len(names)} nodes are more than the {MAX_NODES} of one job", "Check some of them."
        )
    return Selection(tuple(by_name[name] for name in dict.fromkeys(names)), queue)


class CheckJob(Struct):
    """A job of `nodes` that runs the checks of these names; `problem` says why it was not
    submitted.
    """

    nodes: tuple[str, ...]
    names: tuple[str, ...]
    plan: SubmissionPlan
    job_id: str = ""
    problem: str = ""


async def plan_checks(
    selection: Selection,
    names: Sequence[str],
    launches: Launches,
    limit_seconds: int = LIMIT_SECONDS,
) -> tuple[CheckJob, ...]:
    """One job for nodes with as many GPUs of one queue, where the scheduler takes them together.

    () for `names` are all that there are, on nodes without GPUs those that need none. Raises
    UsageError, and what keeps the cluster from answering.
    """
    launches.store.backend.require(Capability.NODE_CHECKS)
    await launches.queues.learn()
    jobs = []
    for nodes, chosen, request in _requests(selection, names, launches, limit_seconds):
        plan = await launches.plan(request, request_text(request, site=launches.settings.site))
        jobs.append(CheckJob(nodes, chosen, plan))
    return tuple(jobs)


def _requests(
    selection: Selection, names: Sequence[str], launches: Launches, limit_seconds: int
) -> Iterable[tuple[tuple[str, ...], tuple[str, ...], Request]]:
    writer = launches.store.backend.scripts.writer()
    if writer is None:
        raise UsageError(
            f"hpcdash writes no scripts for {launches.store.backend.title}",
            "Check its nodes by hand.",
        )
    default = next((one.name for one in launches.queues.known() if one.is_default), "")
    by_gpus: dict[int, list[Row]] = {}
    for row in selection.nodes:
        by_gpus.setdefault(int(row["gpus"] or 0), []).append(row)
    alike: list[tuple[int, str, list[Row]]] = []
    for gpus, rows in by_gpus.items():
        by_queue = {selection.queue: rows} if selection.queue else _by_queue(rows, default)
        alike += [(gpus, queue, alike_rows) for queue, alike_rows in by_queue.items()]
    for gpus, queue, rows in alike:
        nodes = [str(row["name"]) for row in rows]
        chosen = tuple(names) or tuple(
            name for name, one in CHECKS.items() if gpus or not one.needs_gpus
        )
        command = command_text(chosen, writer.ENVIRONMENT.node_name)
        for together, options in writer.node_options(nodes):
            each = gpus or 1
            request = Request(
                name="check-nodes",
                command=command,
                slots=each * len(together),
                slots_per_node=each,
                slot_type=None if gpus else SlotType.CPU,
                queue=queue,
                limit_seconds=limit_seconds,
                extra_args=options,
                job_library=False,
                site=replace(launches.settings.site, node_probe=""),
            )
            yield together, chosen, request


def _by_queue(rows: Sequence[Row], default: str) -> dict[str, list[Row]]:
    """The nodes by as few queues as have them, the default one first; '' for those that are bound
    to none.
    """
    found: dict[str, list[Row]] = {}
    left = list(rows)
    while left:
        counts = Counter(queue for row in left for queue in row["queues"] or ("",))
        chosen = max(counts, key=lambda queue: (counts[queue], queue == default))
        found[chosen] = [row for row in left if chosen in (row["queues"] or ("",))]
        left = [row for row in left if row not in found[chosen]]
    return found
