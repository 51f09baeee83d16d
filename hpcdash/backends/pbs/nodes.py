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
from hpcdash.backends.pbs.values import instants, size_bytes
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


_AVAILABLE = "resources_available."
_ASSIGNED = "resources_assigned."
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
        for name, reported in records
        if node_state(reported.get("state", ""), has_jobs=True)[0] is NodeState.DOWN
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
    if dialect in (Dialect.OPENPBS, Dialect.PBS_TEXT):
        with_resources = {
            _host(name, reported) for name, reported in records if not _is_empty(reported)
        }
        rows = [
            _vnode(name, reported)
            for name, reported in records
            if not _is_empty(reported) or _host(name, reported) not in with_resources
        ]
    else:
        rows = [_torque_node(name, message) for name, message in records]
        too_many = [row["name"] for row in rows if (row["cpus_used"] or 0) > MOST]
        rows = [row for row in rows if (row["cpus_used"] or 0) <= MOST]
        rejected += tuple(f"a node with more jobs than can be counted: {name}" for name in too_many)
    since = (
        instants(pa.array([row["reason_since"] for row in rows], pa.string()))
        .cast(pa.int64())
        .to_pylist()
    )
    rows = [{**row, "reason_since": epoch} for row, epoch in zip(rows, since, strict=True)]
    return ParsedTable(pa.Table.from_pylist(rows, schema=schema.NODES), rejected)


def _host(name: str, reported: Native) -> str:
    return reported.get(_AVAILABLE + "host") or name.partition("[")[0]


def _is_empty(reported: Native) -> bool:
    """Whether it has no processors, GPUs or memory, as what is left of a host that was divided."""
    counts = (
        digits(reported.get(_AVAILABLE + "ncpus")),
        digits(reported.get(_AVAILABLE + _gpu_resource(reported))),
    )
    return not any(counts) and not _size(reported.get(_AVAILABLE + "mem"))


def _vnode(name: str, reported: Native) -> Row:
    jobs = {
        place.strip().rpartition("/")[0] or place.strip()
        for place in reported.get("jobs", "").split(",")
    } - {""}
    native = reported.get("state", "")
    state, flags = node_state(native, has_jobs=bool(jobs))
    cpus = digits(reported.get(_AVAILABLE + "ncpus"))
    # A resource that is nowhere set has no attribute; a node that never came up has none at all.
    gpu_resource = _gpu_resource(reported)
    gpus = digits(reported.get(_AVAILABLE + gpu_resource, "" if cpus is None else "0"))
    return {
        "name": name,
        "state": str(state),
        "native_state": native or None,
        "flags": flags,
        "reason": reported.get("comment") or None,
        "reason_by": None,
        "reason_since": reported.get("last_state_change_time") if is_bad(state) else None,
        "queues": _listed(reported.get("queue") or reported.get("queue_list")),
        "cpus": cpus,
        "cpus_used": digits(reported.get(_ASSIGNED + "ncpus", "" if cpus is None else "0")),
        "gpus": gpus,
        "gpus_used": digits(reported.get(_ASSIGNED + gpu_resource, "" if gpus is None else "0")),
        "gpu_type": next(
            (reported[_AVAILABLE + key] for key in _GPU_TYPES if reported.get(_AVAILABLE + key)),
            None,
        ),
        "memory_bytes": _size(reported.get(_AVAILABLE + "mem")),
        "memory_used_bytes": _size(reported.get(_ASSIGNED + "mem")),
        "load": None,
        "features": _features(reported),
        "jobs": len(jobs),
    }


def _gpu_resource(reported: Native) -> str:
    """By which name its GPUs are counted; Crays have accelerators."""
    has_accelerators = (
        _AVAILABLE + "naccelerators" in reported and _AVAILABLE + "ngpus" not in reported
    )
    return "naccelerators" if has_accelerators else "ngpus"


def _features(reported: Native) -> list[str]:
    """A site's own resources that name a kind rather than an amount, as one asks for them: bigmem,
    cputype=milan.
    """
    features = []
    for key, value in reported.items():
        name = key.removeprefix(_AVAILABLE)
        if name == key or name in _NO_FEATURES or value == "False" or _AMOUNT.fullmatch(value):
            continue
        features.append(name if value == "True" else f"{name}={value}")
    return features


def _torque_node(name: str, reported: Native) -> Row:
    used_by = [(slots, job) for slots, job in _SLOTS.findall(reported.get("jobs", "")) if job]
    native = reported.get("state", "")
    state, flags = node_state(native, has_jobs=bool(used_by))
    status = _status(reported.get("status", ""))
    cpus = digits(reported.get("np"))
    gpus = digits(reported.get("gpus", "0" if cpus is not None else ""))
    return {
        "name": name,
        "state": str(state),
        "native_state": native or None,
        "flags": flags,
        "reason": reported.get("note") or None,
        "reason_by": None,
        "reason_since": None,
        "queues": None,
        "cpus": cpus,
        "cpus_used": sum(_slot_count(slots) for slots, _ in used_by),
        "gpus": gpus,
        "gpus_used": 0 if gpus == 0 else _gpus_used(reported.get("gpu_status")),
        "gpu_type": _gpu_type(reported.get("gpu_status", "")) or _gres_type(status.get("gres", "")),
        "memory_bytes": _size(status.get("physmem")),
        "memory_used_bytes": None,
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


def _gpus_used(status: str | None) -> int | None:
    """GPUs that jobs have, of Torque's `gpu[0]=…;gpu_state=Unallocated;…`; None where it says
    nothing of them.
    """
    states = re.findall(r"gpu_state=([A-Za-z]+)", status or "")
    return sum(word != "Unallocated" for word in states) if states else None


def _gpu_type(status: str) -> str | None:
    found = re.search(r"gpu_product_name=([^;,]+)", status)
    return found[1] if found else None


def _gres_type(gres: str) -> str | None:
    found = re.match(r"gpu:([^:,()]*[^:,()0-9][^:,()]*)", gres)
    return found[1] if found else None


def _listed(text: str | None) -> list[str] | None:
    return [part.strip() for part in text.split(",") if part.strip()] if text else None


def _size(text: str | None) -> int | None:
    return None if text is None else size_bytes(text)


def _load(text: str | None) -> float | None:
    return float(text) if text and re.fullmatch(r"[0-9]{1,9}(?:\.[0-9]{0,9})?", text) else None
