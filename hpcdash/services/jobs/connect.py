"""A shell in a running job on a person's terminal: which one, what it needs, and how it ended."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from hpcdash.backends.base import Capability
from hpcdash.backends.shell import ShellRequest
from hpcdash.domain.nodelist import compress, expand
from hpcdash.domain.request import Runtime
from hpcdash.domain.states import ACTIVE
from hpcdash.domain.text import visible
from hpcdash.errors import HpcdashError, UsageError
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.inside.run import fetch_inside_row
from hpcdash.services.submit.launched_job import find_launch_record, launch_request
from hpcdash.transport.base import Transport
from hpcdash.transport.node import ThroughNode

_MAX_NODES_NAMED = 8


class ShellPlan(Struct, frozen=True):
    """Plan of a shell over `transport`; `title` is its place, `notes` describe what it lacks."""

    job_id: str
    transport: Transport
    argv: tuple[str, ...]
    title: str
    notes: tuple[str, ...] = ()


async def plan_shell(
    store: ClusterStore,
    job_id: str,
    node: str = "",
    command: tuple[str, ...] = (),
    *,
    state_folder: Path | None = None,
    is_outside: bool = False,
    has_terminal: bool = True,
) -> ShellPlan:
    """A shell, or a command, on a node of a job, by its name or its number in the job's list from
    0.

    It is inside of the container where the launch, as `state_folder` remembers it, has one, unless
    it `is_outside`. Runs nothing in the job. Raises UsageError for another's job, one that does not
    run, and a node it does not have.
    """
    await store.open()
    row = await fetch_inside_row(store, job_id, needs=Capability.CONNECT)
    chosen = _node(row, node)
    in_container = not is_outside and await asyncio.to_thread(
        _has_container, state_folder, store.name, row
    )
    made = store.backend.detail.shell(
        row, ShellRequest(chosen, command, in_container, has_terminal)
    )
    if made is None:
        raise UsageError(
            f"{store.backend.title} does not report where job {visible(job_id)} runs, or gives no "
            "access to its nodes",
            "If the site allows it: ssh NODE",
        )
    transport = store.transport if not made.host else ThroughNode(store.transport, made.host)
    where = f" on {visible(chosen)}" if chosen else ""
    return ShellPlan(
        str(row["id"]), transport, made.argv, f"job {visible(str(row['id']))}{where}", made.notes
    )


def _has_container(folder: Path | None, cluster: str, row: Mapping[str, Any]) -> bool:
    record = find_launch_record(folder, cluster, row)
    request = None if record is None else launch_request(record)
    container = None if request is None else request.container
    return container is not None and container.runtime is not Runtime.NONE


def _node(row: Mapping[str, Any], requested: str) -> str:
    """The name of the node that is meant; the first where none is, '' where the job's are not
    known.
    """
    nodes = expand(str(row["node_list"] or "")) if row["node_list"] else []
    if not requested or requested in nodes:
        return requested or (nodes[0] if nodes else "")
    if requested.isascii() and requested.isdigit() and int(requested) < len(nodes):
        return nodes[int(requested)]
    if len(nodes) <= _MAX_NODES_NAMED:
        named = ", ".join(f"{at} {visible(name)}" for at, name in enumerate(nodes))
    else:
        named = f"0 to {len(nodes) - 1}: {visible(compress(nodes))}"
    raise UsageError(
        f"job {visible(str(row['id']))} has no node {visible(requested)}",
        f"Its nodes: {named}." if nodes else "Its nodes are unknown.",
    )


async def explain_end(store: ClusterStore, plan: ShellPlan, status: int | None) -> str:
    """Explain a shell's end with `status` by the end of its job; '' if it lives, or is unknown."""
    if status == 0 or status is None:
        return ""
    try:
        row = (await store.fetch_detail(plan.job_id)).job.to_pylist()[0]
    except HpcdashError:
        return ""
    if row["state"] == "completing" or row["state"] not in ACTIVE:
        return f"{plan.title}: the job has ended ({row['state']}), and the shell with it"
    return ""
