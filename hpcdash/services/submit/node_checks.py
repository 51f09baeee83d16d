"""Jobs that check nodes: the selection of nodes, and the plans of their submission."""

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
# Each is an argument of the job's command line.
MAX_NODES = 1000
LIMIT_SECONDS = 600


class Selection(Struct, frozen=True):
    """Nodes to check, as rows of domain.schema.NODES, and the reasons for `skipped` nodes."""

    nodes: tuple[Row, ...]
    queue: str
    skipped: tuple[str, ...] = ()


def select_nodes(
    where: str, rows: Sequence[Row], queue: str, queues: Collection[str] = ()
) -> Selection:
    """Select the idle nodes of a queue, or nodes by name: `n01,n[03-07]`.

    A queue in `queues` without nodes of its own has those that are bound to no queue. Raises
    UsageError if no node is selected.
    """
    queue_rows = [row for row in rows if where in (row["queues"] or ())]
    if not queue_rows and where in queues:
        queue_rows = [row for row in rows if not row["queues"]]
    if queue_rows:
        idle = []
        busy = []
        for row in queue_rows:
            if row["state"] == "idle":
                idle.append(row)
            else:
                busy.append(f"{row['name']} is {row['state']}")
        if not idle:
            raise UsageError(
                f"no idle nodes in {where}: {'; '.join(busy[:5])}",
                "Specify nodes by name to wait for them.",
            )
        return Selection(tuple(idle[:MAX_NODES]), where, tuple(busy))
    by_name = {str(row["name"]): row for row in rows}
    try:
        names = nodelist.expand(where)
    except ValueError as error:
        raise UsageError(
            f"{where!r} is not a list of nodes: {error}", "Use n01,n[03-07], or a queue's name."
        ) from None
    unknown = [name for name in names if name not in by_name]
    if unknown:
        raise UsageError(f"{unknown[0]!r} is not a queue or node here", "hpcdash nodes lists them.")
    if len(names) > MAX_NODES:
        raise UsageError(
            f"{len(names)} nodes exceed the limit of {MAX_NODES} per job",
            "Check fewer nodes at once.",
        )
    return Selection(tuple(by_name[name] for name in dict.fromkeys(names)), queue)


class CheckJob(Struct, frozen=True):
    """A planned job on `nodes` that runs the checks of these names."""

    nodes: tuple[str, ...]
    names: tuple[str, ...]
    plan: SubmissionPlan


async def plan_checks(
    selection: Selection,
    names: Sequence[str],
    launches: Launches,
    limit_seconds: int = LIMIT_SECONDS,
) -> tuple[CheckJob, ...]:
    """Plan a job for each group of nodes of one queue with the same number of GPUs.

    A group is split where the scheduler takes fewer nodes at once. () for `names` selects all
    checks, on nodes without GPUs those that need none. Raises UsageError, and the errors of an
    unreachable cluster.
    """
    launches.store.backend.require(Capability.NODE_CHECKS)
    await launches.queues.fetch()
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
            f"hpcdash cannot write {launches.store.backend.title} scripts",
            "Check the nodes by hand.",
        )
    default = next((one.name for one in launches.queues.known() if one.is_default), "")
    by_gpus: dict[int, list[Row]] = {}
    for row in selection.nodes:
        by_gpus.setdefault(int(row["gpus"] or 0), []).append(row)
    for gpus, rows in by_gpus.items():
        chosen = tuple(names)
        if not chosen:
            chosen = tuple(name for name, one in CHECKS.items() if gpus or not one.needs_gpus)
        command = command_text(chosen, writer.ENVIRONMENT.node_name)
        slots_per_node = gpus or 1
        by_queue = {selection.queue: rows} if selection.queue else _by_queue(rows, default)
        for queue, queue_rows in by_queue.items():
            nodes = [str(row["name"]) for row in queue_rows]
            for job_nodes, options in writer.node_options(nodes):
                request = Request(
                    name="check-nodes",
                    command=command,
                    slots=slots_per_node * len(job_nodes),
                    slots_per_node=slots_per_node,
                    slot_type=None if gpus else SlotType.CPU,
                    queue=queue,
                    limit_seconds=limit_seconds,
                    extra_args=options,
                    job_library=False,
                    site=replace(launches.settings.site, node_probe=""),
                )
                yield job_nodes, chosen, request


def _by_queue(rows: Sequence[Row], default: str) -> dict[str, list[Row]]:
    """Assign nodes to as few queues as possible, preferring the default; '' if bound to none."""
    found: dict[str, list[Row]] = {}
    left = list(rows)
    while left:
        counts = Counter(queue for row in left for queue in row["queues"] or ("",))
        chosen = max(counts, key=lambda queue: (counts[queue], queue == default))
        found[chosen] = [row for row in left if chosen in (row["queues"] or ("",))]
        left = [row for row in left if row not in found[chosen]]
    return found
