"""Choices for the form's fields, from a cluster's offers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from hpcdash.domain.job_text import state_word
from hpcdash.domain.offers import Offers, QosOffer, QueueOffer
from hpcdash.domain.request import Site, SlotType
from hpcdash.domain.states import ACTIVE, WAITING
from hpcdash.domain.tables import Kind
from hpcdash.domain.text import visible
from hpcdash.domain.units import format_memory, format_span
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.submit.form_fields import FIELDS, FieldKind
from hpcdash.ui.dialogs import Choice

_MAX_JOBS = 200
_CHOICE_TEXTS = {
    "cuda": "an NVIDIA GPU",
    "rocm": "an AMD GPU",
    "cpu": "a core",
    "plain": "the command once per node or task",
    "torchrun": "torch.distributed, one process per GPU",
    "accelerate": "Hugging Face accelerate launch",
    "srun": "one task per GPU or core",
    "none": "no container",
    "apptainer": "also called singularity",
    "here": "a file on this machine, sent unchanged",
    "cluster": "a file on the cluster",
}


def format_queue(queue: QueueOffer) -> str:
    """`default, 12 of 40 nodes idle, 96 of 320 GPUs idle (a100), up to 2 d`."""
    parts = ["default"] if queue.is_default else []
    if queue.note or not queue.is_available:
        parts.append(visible(queue.note) or "accepts no jobs now")
    if queue.nodes:
        parts.append(f"{queue.nodes_idle} of {queue.nodes} nodes idle")
    if queue.gpus:
        types = f" ({', '.join(queue.gpu_types)})" if queue.gpu_types else ""
        parts.append(f"{queue.gpus_idle} of {queue.gpus} GPUs idle{types}")
    elif queue.cpus:
        parts.append(f"{queue.cpus_idle} of {queue.cpus} cores idle")
    if queue.limit_seconds:
        parts.append(f"up to {format_span(queue.limit_seconds)}")
    return ", ".join(parts)


def format_node(queue: QueueOffer) -> str:
    """`largest node: 64 cores, 8 GPUs, 512G`; '' if unknown."""
    parts = []
    if queue.cpus_per_node:
        parts.append(f"{queue.cpus_per_node} cores")
    if queue.gpus_per_node:
        parts.append(f"{queue.gpus_per_node} GPUs")
    if queue.memory_per_node_bytes:
        parts.append(format_memory(queue.memory_per_node_bytes))
    return f"largest node: {', '.join(parts)}" if parts else ""


def format_qos(qos: QosOffer) -> str:
    parts = []
    if qos.limit_seconds:
        parts.append(f"up to {format_span(qos.limit_seconds)}")
    limits = {"jobs": qos.most_jobs, "cores": qos.most_cpus, "GPUs": qos.most_gpus}
    for unit, most in limits.items():
        if most is not None:
            parts.append(f"{most} {unit} at once")
    if qos.note:
        parts.append(qos.note)
    return ", ".join(parts)


def slots_label(texts: Mapping[str, str], offers: Offers, queue_taken: str, site: Site) -> str:
    """Return the unit of a request's slots: the request's or the site's, else that of its queue.

    '' if unknown.
    """
    for slot_type in (texts.get("slot_type", "").strip(), site.slot_type):
        if slot_type in tuple(SlotType):
            return "CPUs" if slot_type == SlotType.CPU else "GPUs"
    if texts.get("gpu_type", "").strip():
        return "GPUs"
    queue = offers.queue(texts.get("queue", "").strip() or queue_taken)
    if queue is None:
        return ""
    return "GPUs" if queue.gpus else "CPUs"


def build_choices(
    name: str, texts: Mapping[str, str], offers: Offers, store: ClusterStore, queue_taken: str
) -> list[Choice]:
    """Return the known values for a field; [] where any text is valid.

    `queue_taken` is the queue used where none is named.
    """
    if choices := FIELDS[name].choices:
        return [Choice(value, _CHOICE_TEXTS.get(value, "")) for value in choices]
    queue = offers.queue(texts.get("queue", "").strip() or queue_taken)
    match name:
        case "queue":
            return [Choice(one.name, format_queue(one)) for one in offers.listed]
        case "gpu_type":
            found = []
            for gpu_type in queue.gpu_types if queue and queue.gpu_types else offers.gpu_types:
                names = [one.name for one in offers.listed if gpu_type in one.gpu_types]
                found.append(Choice(gpu_type, f"in {', '.join(names)}" if names else ""))
            return found
        case "account":
            accounts = offers.accounts
            return [Choice(one.name, "default" if one.is_default else "") for one in accounts]
        case "qos":
            return _qos(texts.get("account", "").strip(), offers)
        case "after":
            return living_jobs(store)
    return []


def living_jobs(store: ClusterStore) -> list[Choice]:
    """Return one's own unfinished jobs and arrays, running ones first."""
    table = store.table(Kind.MINE)
    if table is None:
        return []
    table = table.select(["id", "array_id", "name", "state"])
    states = table["state"].cast(pa.string())
    found: dict[str, Choice] = {}
    for requested in (ACTIVE, WAITING):
        is_requested = pc.is_in(states, value_set=pa.array([str(state) for state in requested]))
        for row in table.filter(is_requested).slice(0, _MAX_JOBS).to_pylist():
            job_id = str(row["array_id"] or row["id"])
            found.setdefault(job_id, Choice(job_id, format_job(row)))
    return list(found.values())


def format_job(row: Mapping[str, Any]) -> str:
    """`train, running`"""
    return f"{row['name'] or ''}, {state_word(row['state'])}"


def field_hint(
    name: str, texts: Mapping[str, str], offers: Offers, choices: Sequence[Choice], queue_taken: str
) -> str:
    """Return the purpose of a field, and known facts on its present value."""
    typed = texts.get(name, "").strip()
    chosen = {choice.value: choice.text for choice in choices}
    parts = [FIELDS[name].hint]
    queue = offers.queue(texts.get("queue", "").strip() or queue_taken)
    if name == "queue" and queue is not None:
        if facts := format_queue(queue):
            start = "" if typed else "default: "
            parts = [f"{start}{queue.name}, {facts}"]
    elif name in ("slots", "slots_per_node", "cpus_per_gpu", "memory") and queue is not None:
        parts.append(format_node(queue))
    elif name == "time" and queue is not None and queue.limit_seconds:
        parts.append(f"{queue.name} allows up to {format_span(queue.limit_seconds)}")
    elif chosen.get(typed):
        parts = [chosen[typed]]
    word = texts.get(name, "").rpartition(" ")[2] if FIELDS[name].kind is FieldKind.WORDS else typed
    if word and word not in chosen:
        # The field suggests this value behind the cursor.
        suggestion = next((value for value in chosen if value.startswith(word)), "")
        parts.append(f"→ accepts {suggestion}" if suggestion else "")
    if choices:
        parts.append("enter lists them")
    return "; ".join(filter(None, parts))


def _qos(account: str, offers: Offers) -> list[Choice]:
    """Return the QoS of the account where they are known, else all."""
    known = {qos.name: qos for qos in offers.qos}
    names: Sequence[str] = ()
    for one in offers.accounts:
        if one.name == account or (not account and one.is_default):
            names = one.qos
            break
    found = []
    for name in names or known:
        found.append(Choice(name, format_qos(known[name]) if name in known else ""))
    return found
