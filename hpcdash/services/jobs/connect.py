"""Shell in a running job on the user's terminal: its plan and its end."""

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
    """Plan of a shell, or of `command`, over `transport`; `title` is its place, `notes` are its
    limitations. `node` is '' if the job's nodes are unknown.
    """

    job_id: str
    transport: Transport
    argv: tuple[str, ...]
    title: str
    notes: tuple[str, ...] = ()
    node: str = ""
    command: tuple[str, ...] = ()

    def argv_with(self, command: tuple[str, ...]) -> tuple[str, ...]:
        """Return the arguments that run another command there."""
        return (*self.argv[: len(self.argv) - len(self.command)], *command)


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
    """Plan a shell, or a command, on a node of a job. Runs nothing in the job.

    `node` is a name, or a number in the job's node list from 0. The shell is in the container of
    the launch in `state_folder`, unless it `is_outside`. Raises UsageError if the job is another
    user's, is not running or does not have the node.
    """
    await store.open()
    row = await fetch_inside_row(store, job_id, needs=Capability.CONNECT)
    chosen = _choose_node(row, node)
    has_container = not is_outside and await asyncio.to_thread(
        _has_container, state_folder, store.name, row
    )
    request = ShellRequest(chosen, command, has_container, has_terminal)
    shell = store.backend.detail.shell(row, request)
    if shell is None:
        raise UsageError(
            f"{store.backend.title} does not report the nodes of job {visible(job_id)}, or gives "
            "no access to them",
            "If the site allows it: ssh NODE",
        )
    transport = ThroughNode(store.transport, shell.host) if shell.host else store.transport
    title = f"job {visible(str(row['id']))}"
    if chosen:
        title = f"{title} on {visible(chosen)}"
    return ShellPlan(
        str(row["id"]), transport, shell.argv, title, shell.notes, chosen, request.command
    )


def _has_container(folder: Path | None, cluster: str, row: Mapping[str, Any]) -> bool:
    record = find_launch_record(folder, cluster, row)
    request = None if record is None else launch_request(record)
    container = None if request is None else request.container
    return container is not None and container.runtime is not Runtime.NONE


def _choose_node(row: Mapping[str, Any], requested: str) -> str:
    """Return the requested node, by default the first; '' if the job's nodes are unknown."""
    nodes = expand(str(row["node_list"])) if row["node_list"] else []
    if not requested:
        return nodes[0] if nodes else ""
    if requested in nodes:
        return requested
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
    """Explain a shell's exit `status` by the end of its job; '' if the job did not end."""
    if status == 0 or status is None:
        return ""
    try:
        row = (await store.fetch_detail(plan.job_id)).job.to_pylist()[0]
    except HpcdashError:
        return ""
    if row["state"] == "completing" or row["state"] not in ACTIVE:
        return f"{plan.title}: the job has ended ({row['state']}), and the shell with it"
    return ""
