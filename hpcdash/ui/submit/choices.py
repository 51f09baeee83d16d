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
_CHOICE_WORDS = {
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
    "cluster": "a file there",
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
    """`a node: 64 cores, 8 GPUs, 512G`; '' where its nodes are not known."""
    parts = []
    if queue.cpus_per_node:
        parts.append(f"{queue.cpus_per_node} cores")
    if queue.gpus_per_node:
        parts.append(f"{queue.gpus_per_node} GPUs")
    if queue.memory_per_node_bytes:
        parts.append(format_memory(queue.memory_per_node_bytes))
    return f"its largest node: {', '.join(parts)}" if parts else ""


def format_qos(qos: QosOffer) -> str:
    parts = []
    if qos.limit_seconds:
        parts.append(f"up to {format_span(qos.limit_seconds)}")
    for most, word in ((qos.most_jobs, "jobs"), (qos.most_cpus, "cores"), (qos.most_gpus, "GPUs")):
        if most is not None:
            parts.append(f"{most} {word} at once")
    return ", ".join([*parts, *([qos.note] if qos.note else [])])


def slots_label(texts: Mapping[str, str], offers: Offers, queue_taken: str, site: Site) -> str:
    """Return what the slots of a request are: as it says or the site, else what its queue has;
    '' if unknown.
    """
    types = (texts.get("slot_type", "").strip(), site.slot_type)
    named = next((one for one in types if one in tuple(SlotType)), "")
    if not named and texts.get("gpu_type", "").strip():
        return "GPUs"
    queue = offers.queue(texts.get("queue", "").strip() or queue_taken)
    if not named and queue is None:
        return ""
    has_gpus = named != SlotType.CPU if named else queue is not None and queue.gpus > 0
    return "GPUs" if has_gpus else "CPUs"


def build_choices(
    name: str, texts: Mapping[str, str], offers: Offers, store: ClusterStore, queue_taken: str
) -> list[Choice]:
    """Return the known values for a field; [] where any text is valid.

    `queue_taken` is the queue used where none is named.
    """
    if choices := FIELDS[name].choices:
        return [Choice(value, _CHOICE_WORDS.get(value, "")) for value in choices]
    queue = offers.queue(texts.get("queue", "").strip() or queue_taken)
    match name:
        case "queue":
            return [Choice(one.name, format_queue(one)) for one in offers.listed]
        case "gpu_type":
            types = queue.gpu_types if queue and queue.gpu_types else offers.gpu_types
            return [Choice(one, _queues_with(one, offers)) for one in types]
        case "account":
            return [
                Choice(one.name, "default" if one.is_default else "") for one in offers.accounts
            ]
        case "qos":
            return _qos(texts.get("account", "").strip(), offers)
        case "after":
            return living_jobs(store)
    return []


def living_jobs(store: ClusterStore) -> list[Choice]:
    """One's own jobs and arrays that have not ended, those that run first."""
    table = store.table(Kind.MINE)
    if table is None:
        return []
    table = table.select(["id", "array_id", "name", "state"])
    states = table["state"].cast(pa.string())
    found: dict[str, Choice] = {}
    for requested in (ACTIVE, WAITING):
        some = table.filter(
            pc.is_in(states, value_set=pa.array([str(state) for state in requested]))
        )
        for row in some.slice(0, _MAX_JOBS).to_pylist():
            job_id = str(row["array_id"] or row["id"])
            found.setdefault(job_id, Choice(job_id, format_job(row)))
    return list(found.values())


def format_job(row: Mapping[str, Any]) -> str:
    """`train, running`"""
    return f"{row['name'] or ''}, {state_word(row['state'])}"


def field_hint(
    name: str, texts: Mapping[str, str], offers: Offers, choices: Sequence[Choice], queue_taken: str
) -> str:
    """Return the purpose of a field, and the known facts on its present value."""
    typed = texts.get(name, "").strip()
    parts = [FIELDS[name].hint]
    queue = offers.queue(texts.get("queue", "").strip() or queue_taken)
    if name == "queue" and queue is not None:
        start = "" if typed else "empty: "
        parts = [f"{start}{queue.name}, {format_queue(queue)}" if format_queue(queue) else parts[0]]
    elif (
        name in ("slots", "slots_per_node", "cpus_per_gpu", "memory")
        and queue is not None
        and format_node(queue)
    ):
        parts.append(format_node(queue))
    elif name == "time" and queue is not None and queue.limit_seconds:
        parts.append(f"{queue.name} allows up to {format_span(queue.limit_seconds)}")
    elif typed and (text := next((one.text for one in choices if one.value == typed), "")):
        parts = [text]
    word = texts.get(name, "").rpartition(" ")[2] if FIELDS[name].kind is FieldKind.WORDS else typed
    # Values that the field itself proposes behind the cursor.
    proposed = (
        one.value for one in choices if word and one.value.startswith(word) and one.value != word
    )
    if (first := next(proposed, "")) and not any(one.value == word for one in choices):
        parts.append(f"→ takes {first}")
    if choices:
        parts.append("enter lists them")
    return "; ".join(parts)


def _qos(account: str, offers: Offers) -> list[Choice]:
    """Return the QoS of the account where they are known, else all."""
    known = {qos.name: qos for qos in offers.qos}
    chosen = [
        one for one in offers.accounts if (one.name == account if account else one.is_default)
    ]
    names = list(chosen[0].qos) if chosen and chosen[0].qos else list(known)
    return [Choice(name, format_qos(known[name]) if name in known else "") for name in names]


def _queues_with(gpu_type: str, offers: Offers) -> str:
    names = [queue.name for queue in offers.listed if gpu_type in queue.gpu_types]
    return f"in {', '.join(names)}" if names else ""
