"""Nodes: one pbsnodes with a record a vnode, read into the columns of domain.schema.NODES.

A row is a vnode, which is what the scheduler places jobs on; nearly always that is a whole host. A
host that was divided (gpu01 into gpu01[0] and gpu01[1]) is left out where it keeps nothing for
itself: no job could be put there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

import pyarrow as pa

from hpcdash.backends.pbs.dialects import Dialect, pbs
from hpcdash.backends.pbs.errors import require_success
from hpcdash.backends.pbs.records import Form, read_all, record_form
from hpcdash.backends.pbs.values import instants, resources_under, size_bytes
from hpcdash.backends.queries import (
    Answer,
    Native,
    ParsedTable,
    Query,
    Row,
    unreadable,
)
from hpcdash.domain import schema
from hpcdash.domain.columns import MOST, digits
from hpcdash.domain.states import NodeState

# In the order in which they decide, where a node has several.
_STATES: tuple[tuple[str, NodeState], ...] = (
    ("down", NodeState.DOWN),
    # Its daemon does not report this vnode any more.
    ("stale", NodeState.DOWN),
    ("unresolvable", NodeState.DOWN),
    ("fail", NodeState.DOWN),
    ("error", NodeState.DOWN),
    ("offline", NodeState.DRAINED),
    ("offline-by-mom", NodeState.DRAINED),
    ("drained", NodeState.DRAINED),
    ("draining", NodeState.DRAINING),
    ("state-unknown", NodeState.UNKNOWN),
    ("maintenance", NodeState.RESERVED),
    ("maint", NodeState.RESERVED),
    ("job-busy", NodeState.ALLOCATED),
    ("job-exclusive", NodeState.ALLOCATED),
    ("allocated", NodeState.ALLOCATED),
    # Its load is over the limit: it takes no more, whoever makes the load.
    ("busy", NodeState.ALLOCATED),
    ("resv-exclusive", NodeState.RESERVED),
    ("reserve", NodeState.RESERVED),
    ("reserved", NodeState.RESERVED),
    # An image is being installed for the job that waits for it.
    ("provisioning", NodeState.PLANNED),
    ("wait-provisioning", NodeState.PLANNED),
    ("planned", NodeState.PLANNED),
    ("mixed", NodeState.MIXED),
    ("completing", NodeState.MIXED),
    ("free", NodeState.IDLE),
    ("idle", NodeState.IDLE),
    ("job-sharing", NodeState.IDLE),
    ("time-shared", NodeState.IDLE),
    # Switched off to save power, and on again for a job.
    ("sleep", NodeState.IDLE),
)
_STATE_OF = dict(_STATES)
_PLACE_OF = {word: place for place, (word, _) in enumerate(_STATES)}
# Of these the state says all.
_SAID_BY_STATE = frozenset(
    {"free", "idle", "mixed", "allocated", "job-busy", "job-exclusive", "job-sharing"}
)
_FLAG_NAMES = {"maintenance": "maint"}
_BAD = frozenset({NodeState.DOWN, NodeState.DRAINED, NodeState.DRAINING, NodeState.UNKNOWN})


def node_state(native: str, *, has_jobs: bool) -> tuple[NodeState, list[str]]:
    """Our state and the flags of `free`, `down,offline` or `<various>`; unknown where no word of it
    is known.

    A flag is a word beside the one that made the state, or one that says more than the state does.
    """
    parts = list(dict.fromkeys(re.findall(r"[a-z][a-z0-9_-]*", native.lower().replace("_", "-"))))
    known = sorted((word for word in parts if word in _STATE_OF), key=_PLACE_OF.__getitem__)
    if not known:
        return NodeState.UNKNOWN, [word.replace("-", "_") for word in parts]
    state = _STATE_OF[known[0]]
    if has_jobs and state is NodeState.IDLE:
        state = NodeState.MIXED
    elif has_jobs and state is NodeState.DRAINED:
        state = NodeState.DRAINING
    reported = _SAID_BY_STATE | {str(state)}
    flags = [
        _FLAG_NAMES.get(word, word.replace("-", "_")) for word in parts if word not in reported
    ]
    return state, flags


def is_bad(state: NodeState) -> bool:
    """Whether no job can start there for now, for a reason that somebody has to see to."""
    return state in _BAD


# The names sites give the resource that tells a GPU's kind; PBS itself has none.
_GPU_TYPES = ("gpu_model", "gpu_type", "gputype", "gpumodel", "gpu_name", "accelerator_model")
# Resources that are no features: they say where or how much.
_NO_FEATURES = frozenset({"arch", "host", "vnode", *_GPU_TYPES})
_AMOUNT = re.compile(r"-?[0-9.]+ ?[kmgtpeKMGTPE]?[bBwW]?|[0-9:]+")
# PBS: 12[4].srv/0, a job and its slot. Torque: 0-3/12.srv, slots and their job; without a job they
# are none.
_SLOTS = re.compile(r"([0-9][0-9,-]*)(?:/([^,\s/]+))?")
_ALL_VNODES = ("pbsnodes", "-av")
_NO_NODES = (b"no node list", b"No nodes found")
_HOST_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def nodes_query(dialect: Dialect) -> Query[ParsedTable]:
    """pbsnodes, with each vnode where PBS has vnodes."""
    _, token, options = record_form(dialect)
    command = ("pbsnodes", "-a") if dialect is Dialect.TORQUE else _ALL_VNODES
    parse = partial(parse_nodes, dialect=dialect, token=token)
    return Query(pbs(*command, *options), parse, command=command)


def down_hosts_query(dialect: Dialect, hosts: Sequence[str]) -> Query[frozenset[str]] | None:
    """Query these hosts by pbsnodes.

    A job stays R on a host that is gone until the server gives it up (node_fail_requeue, 310 s as
    PBS comes).
    """
    named = [host for host in hosts if _HOST_NAME.fullmatch(host)]
    if not named:
        return None
    form, token, options = record_form(dialect)
    parse = partial(parse_down_hosts, form=form, token=token)
    return Query(pbs("pbsnodes", *options, *named), parse, command=("pbsnodes", *named))


def parse_down_hosts(answer: Answer, *, form: Form, token: str = "") -> frozenset[str]:
    """Return the hosts that are reported down; one that pbsnodes does not know is not."""
    read = read_all(answer.stdout, form, token=token)
    records = read[0] if read else []
    return frozenset(
        name
        for name, native in records
        if node_state(native.get("state", ""), has_jobs=True)[0] is NodeState.DOWN
    )


def parse_nodes(
    answer: Answer, *, dialect: Dialect = Dialect.OPENPBS, token: str = ""
) -> ParsedTable:
    """Rows of domain.schema.NODES, in the order printed; raises what the answer's failure stands
    for.

    `memory_used_bytes` is what jobs asked for, `queues` null where a node is of no queue in
    particular.
    """
    if not answer.stdout.strip() and any(text in answer.stderr for text in _NO_NODES):
        return ParsedTable(schema.empty(schema.NODES))
    # Without the delimiter, which is another each time.
    command = _ALL_VNODES if dialect is Dialect.OPENPBS else ()
    require_success(answer, command)
    read = read_all(
        answer.stdout, Form.DSV if dialect is Dialect.OPENPBS else Form.TEXT, token=token
    )
    if read is None:
        raise unreadable(answer, "nodes", command)
    records, rejected = read
    if dialect is not Dialect.TORQUE:
        vnodes = [_Vnode(name, native) for name, native in records]
        hosts = {vnode.host for vnode in vnodes if not vnode.is_empty}
        rows = [vnode.row() for vnode in vnodes if not vnode.is_empty or vnode.host not in hosts]
    else:
        rows = [_torque_node(name, native) for name, native in records]
        too_many = [row["name"] for row in rows if (row["cpus_used"] or 0) > MOST]
        rows = [row for row in rows if (row["cpus_used"] or 0) <= MOST]
        rejected += tuple(f"a node whose job count is out of range: {name}" for name in too_many)
    since = (
        instants(pa.array([row["reason_since"] for row in rows], pa.string()))
        .cast(pa.int64())
        .to_pylist()
    )
    rows = [{**row, "reason_since": epoch} for row, epoch in zip(rows, since, strict=True)]
    return ParsedTable(pa.Table.from_pylist(rows, schema=schema.NODES), rejected)


class _Vnode:
    """A vnode as pbsnodes reports it: all of it, what it has, and what its jobs were given."""

    def __init__(self, name: str, reported: Native) -> None:
        self.name = name
        self.reported = reported
        self.available = resources_under(reported, "resources_available")
        self.assigned = resources_under(reported, "resources_assigned")
        self.host = self.available.get("host") or name.partition("[")[0]
        # By which name its GPUs are counted; Crays have accelerators.
        is_cray = "naccelerators" in self.available and "ngpus" not in self.available
        self.gpu_resource = "naccelerators" if is_cray else "ngpus"

    @property
    def is_empty(self) -> bool:
        """Whether it has no processors, GPUs or memory, as what is left of a host that was
        divided.
        """
        counts = (digits(self.available.get(name)) for name in ("ncpus", self.gpu_resource))
        return not any(counts) and not _size(self.available.get("mem"))

    def row(self) -> Row:
        """Return the columns of domain.schema.NODES."""
        reported = self.reported
        available = self.available
        slots = (slot.strip() for slot in reported.get("jobs", "").split(","))
        jobs = {slot.rpartition("/")[0] or slot for slot in slots} - {""}
        native = reported.get("state", "")
        state, flags = node_state(native, has_jobs=bool(jobs))
        cpus = digits(available.get("ncpus"))
        # A resource that is nowhere set has no attribute; a node that never came up has none at
        # all.
        gpus = digits(available.get(self.gpu_resource, "" if cpus is None else "0"))
        gpus_used = self.assigned.get(self.gpu_resource, "" if gpus is None else "0")
        return {
            "name": self.name,
            "state": str(state),
            "native_state": native or None,
            "flags": flags,
            "reason": reported.get("comment") or None,
            "reason_since": reported.get("last_state_change_time") if is_bad(state) else None,
            "queues": _listed(reported.get("queue") or reported.get("queue_list")),
            "cpus": cpus,
            "cpus_used": digits(self.assigned.get("ncpus", "" if cpus is None else "0")),
            "gpus": gpus,
            "gpus_used": digits(gpus_used),
            "gpu_type": next(filter(None, map(available.get, _GPU_TYPES)), None),
            "memory_bytes": _size(available.get("mem")),
            "memory_used_bytes": _size(self.assigned.get("mem")),
            # A site's own resources that name a kind rather than an amount, as one asks for them:
            # bigmem, cputype=milan.
            "features": [
                name if value == "True" else f"{name}={value}"
                for name, value in available.items()
                if name not in _NO_FEATURES and value != "False" and not _AMOUNT.fullmatch(value)
            ],
            "jobs": len(jobs),
        }


def _torque_node(name: str, reported: Native) -> Row:
    used_by = [(slots, job) for slots, job in _SLOTS.findall(reported.get("jobs", "")) if job]
    native = reported.get("state", "")
    state, flags = node_state(native, has_jobs=bool(used_by))
    status = _status(reported.get("status", ""))
    cpus = digits(reported.get("np"))
    gpus = digits(reported.get("gpus", "0" if cpus is not None else ""))
    gpu_status = reported.get("gpu_status", "")
    gpu_states = re.findall(r"gpu_state=([A-Za-z]+)", gpu_status) if gpus != 0 else []
    is_gpu_known = bool(gpu_states) or gpus == 0
    kind = re.search(r"gpu_product_name=([^;,]+)", gpu_status) or re.match(
        r"gpu:([^:,()]*[^:,()0-9][^:,()]*)", status.get("gres", "")
    )
    return {
        "name": name,
        "state": str(state),
        "native_state": native or None,
        "flags": flags,
        "reason": reported.get("note") or None,
        "reason_since": None,
        "cpus": cpus,
        "cpus_used": sum(_slot_count(slots) for slots, _ in used_by),
        "gpus": gpus,
        # GPUs that jobs have, of `gpu[0]=…;gpu_state=Unallocated;…`.
        "gpus_used": sum(word != "Unallocated" for word in gpu_states) if is_gpu_known else None,
        "gpu_type": kind[1] if kind else None,
        "memory_bytes": _size(status.get("physmem")),
        "load": _load(status.get("loadave")),
        "features": re.findall(r"[^,\s]+", reported.get("properties", "")),
        "jobs": len({job for _, job in used_by}),
    }


def _status(text: str) -> dict[str, str]:
    """Return the report of a node's daemon by key; a message may contain commas."""
    pairs = (part.partition("=") for part in text.split(","))
    return {key: value for key, equals, value in pairs if equals}


def _slot_count(slots: str) -> int:
    """Count the slots of `0-3,5`."""
    count = 0
    for part in slots.strip(",-").split(","):
        low, _, high = part.partition("-")
        first = digits(low)
        last = digits(high or low)
        if first is not None and last is not None and last >= first:
            count += last - first + 1
    return count


def _listed(text: str | None) -> list[str] | None:
    return [part.strip() for part in text.split(",") if part.strip()] if text else None


def _size(text: str | None) -> int | None:
    return None if text is None else size_bytes(text)


def _load(text: str | None) -> float | None:
    return float(text) if text and re.fullmatch(r"[0-9]{1,9}(?:\.[0-9]{0,9})?", text) else None
