"""Occupancy of a cluster's nodes: used and free slots by node, and one's own jobs on them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from msgspec.structs import replace

from hpcdash.domain import schema
from hpcdash.domain.columns import has_state
from hpcdash.domain.nodelist import contains, expand
from hpcdash.domain.states import ACTIVE, UNAVAILABLE

# A vnode of PBS: gpu01[0] is of gpu01.
VNODE = re.compile(r"\[[0-9]+\]$")
# Lists of more nodes are those of whole partitions.
_MAX_NODES = 10_000


class OwnSlots(Struct, frozen=True):
    """Slots of one of one's own jobs on a node; `count` None: their split over nodes is unknown."""

    job_id: str
    count: int | None


class NodeSlots(Struct, frozen=True):
    """Slots of a node; `used` is None if unreported.

    `own` are those of one's own jobs. They count as used, as the list of jobs may be newer than
    that of nodes.

    Unused slots of a node that `is_unavailable` (down, drained or draining) start no job.
    """

    name: str
    total: int
    used: int | None
    is_unavailable: bool = False
    own: tuple[OwnSlots, ...] = ()

    @property
    def own_count(self) -> int:
        """Slots of one's own jobs, as far as their split is known; at most all of the node's."""
        return min(self.total, sum(slots.count or 0 for slots in self.own))

    @property
    def free(self) -> int:
        return 0 if self.is_unavailable or self.used is None else max(0, self.total - self.used)


class SlotGroup(Struct, frozen=True):
    """Nodes with slots of one model, '' if it is unreported, in the scheduler's order."""

    model: str
    nodes: tuple[NodeSlots, ...]

    @property
    def total(self) -> int:
        return sum(node.total for node in self.nodes)

    @property
    def used(self) -> int:
        return sum(node.used or 0 for node in self.nodes)

    @property
    def free(self) -> int:
        return sum(node.free for node in self.nodes)


class Occupancy(Struct, frozen=True):
    """Slots of a cluster, GPUs (`unit` "GPU") or, where there are none, CPUs; the largest group
    first.
    """

    unit: str
    groups: tuple[SlotGroup, ...]

    @property
    def nodes(self) -> Iterable[NodeSlots]:
        return (node for group in self.groups for node in group.nodes)

    @property
    def unavailable(self) -> tuple[str, ...]:
        """Names of the nodes that start no job."""
        return tuple(node.name for node in self.nodes if node.is_unavailable)


def cluster_occupancy(nodes: pa.Table, mine: pa.Table | None = None) -> Occupancy:
    """Build the occupancy from rows of domain.schema.NODES and one's own of domain.schema.JOBS."""
    has_gpus = bool(pc.any(pc.greater(nodes["gpus"], 0), min_count=0).as_py())
    unit, key = ("GPU", "gpus") if has_gpus else ("CPU", "cpus")
    names, states, models, totals, used = (
        nodes[column].to_pylist() for column in ("name", "state", "gpu_type", key, f"{key}_used")
    )
    sizes = {name: total for name, total in zip(names, totals, strict=True) if total}
    in_use = dict(zip(names, used, strict=True))
    own: dict[str, list[OwnSlots]] = {}
    for job_id, placed, count in _own_jobs(mine, key):
        for name, part in _split(placed, count, sizes, in_use).items():
            own.setdefault(name, []).append(OwnSlots(job_id, part))
    groups: dict[str, list[NodeSlots]] = {}
    for name, state, model, total in zip(names, states, models, totals, strict=True):
        if total:
            node = NodeSlots(
                name, total, in_use[name], state in UNAVAILABLE, tuple(own.get(name, ()))
            )
            if node.used is not None and node.used < node.own_count:
                node = replace(node, used=node.own_count)
            groups.setdefault(str(model or "") if has_gpus else "", []).append(node)
    made = (SlotGroup(model, tuple(members)) for model, members in groups.items())
    return Occupancy(unit, tuple(sorted(made, key=attrgetter("total"), reverse=True)))


def _own_jobs(mine: pa.Table | None, key: str) -> Iterable[tuple[str, Sequence[str], int | None]]:
    """Yield the id, nodes and slots of one's own jobs that have nodes."""
    if mine is None:
        return
    placed = mine.filter(pc.is_valid(mine["node_list"]))
    columns = (placed[column].to_pylist() for column in ("id", "node_list", key))
    for job_id, node_list, count in zip(*columns, strict=True):
        if count == 0:
            continue
        try:
            # Most jobs have one node.
            names = expand(node_list) if "[" in node_list or "," in node_list else [node_list]
        except ValueError:
            continue
        if len(names) <= _MAX_NODES:
            yield job_id, names, count


def _split(
    names: Sequence[str],
    count: int | None,
    totals: Mapping[str, int],
    used: Mapping[str, int | None],
) -> dict[str, int | None]:
    """Return the slots that a job has on each of its nodes, None where several splits are possible.

    A split is certain on one node, on whole nodes, and where all that is used is the job's.
    """
    known = [name for name in names if name in totals]
    if count is None or len(known) < len(names):
        return dict.fromkeys(known)
    if len(names) == 1:
        return {names[0]: count}
    if count == sum(totals[name] for name in known):
        return {name: totals[name] for name in known}
    in_use = {name: used[name] or 0 for name in known}
    if count == sum(in_use.values()):
        return dict(in_use)
    return dict.fromkeys(known)


def on_node(jobs: pa.Table, node: str) -> pa.Table:
    """Return the jobs that have a node; each distinct node list is parsed once.

    The node list of a job on PBS's vnodes (gpu01[0]) has their host: the jobs are those of all its
    vnodes.
    """
    node = VNODE.sub("", node)
    active = active_jobs(jobs)
    lists = [
        text for text in pc.unique(active["node_list"]).to_pylist() if text and contains(text, node)
    ]
    if not lists:
        return schema.empty(schema.JOBS)
    return active.filter(pc.is_in(active["node_list"], pa.array(lists, pa.string())))


def active_jobs(jobs: pa.Table) -> pa.Table:
    """Return the jobs that have nodes, by their states."""
    return jobs.filter(has_state(jobs, ACTIVE))
