"""One node: its state and resources above, the jobs on it below."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from rich.text import Text
from textual.app import ComposeResult
from textual.content import Content

from hpcdash.domain.tables import Kind
from hpcdash.domain.text import visible
from hpcdash.domain.units import format_age, format_memory
from hpcdash.errors import HpcdashError
from hpcdash.services.cluster.occupancy import VNODE, active_jobs, on_node
from hpcdash.services.cluster.store import Changed
from hpcdash.services.jobs.page import activity_entries
from hpcdash.services.session import ClusterSession
from hpcdash.ui.jobs.table import JobsView
from hpcdash.ui.view import FRAMED_LINES
from hpcdash.ui.widgets.lines import PlainStatic
from hpcdash.ui.workers import start_worker


class NodeView(JobsView):
    """Everyone's jobs on one node, below the scheduler's facts on it."""

    DEFAULT_CSS = """
    NodeView > #about { height: auto; max-height: 12; padding: 0 1; }
    """

    def __init__(self, session: ClusterSession, *, name: str) -> None:
        self.node_name = name
        self._activity: tuple[tuple[str, str], ...] = ()
        super().__init__(session, everyone=True, fold=False)

    @property
    def kinds(self) -> frozenset[Kind]:
        return frozenset({Kind.NODES, Kind.EVERYONE})

    def compose(self) -> ComposeResult:
        about = PlainStatic(id="about")
        about.border_title = Content(f"Node {visible(self.node_name)}")
        yield about
        yield from super().compose()

    def on_mount(self) -> None:
        self._start_activity()

    def _start_activity(self) -> None:
        start_worker(self, self._fetch_activity, exclusive=True, group="activity")

    async def _fetch_activity(self) -> None:
        """Fetch what programs let the scheduler run here; the page is complete without it."""
        store = self.session.store
        if (query := store.backend.queue.node_activity(self.node_name)) is None:
            return
        try:
            activity = await store.run_query(query)
        except HpcdashError as error:
            self._activity = (("activity", error.message),)
        else:
            self._activity = tuple((one.label, one.text) for one in activity_entries(activity))
        self.reload()

    def on_resize(self) -> None:
        self.query_one("#about").set_class(self.app.size.height >= FRAMED_LINES, "panel")

    def source(self) -> pa.Table | None:
        table = super().source()
        return None if table is None else on_node(table, self.node_name)

    def reload(self) -> None:
        if self.is_live:
            self.query_one("#about", PlainStatic).update(self._about())
        super().reload()

    def _about(self) -> Text:
        nodes = self.session.store.table(Kind.NODES)
        rows: list[dict[str, Any]] = []
        if nodes is not None:
            rows = nodes.filter(pc.equal(nodes["name"], self.node_name)).to_pylist()
        if not rows:
            return Text("not in the latest list of nodes")
        row = rows[0]
        now = self.now().timestamp()
        load = "unknown" if row["load"] is None else f"{row['load']:.1f}"
        gpus = f"{row['gpus_used']} of {row['gpus']} {row['gpu_type'] or ''} in use"
        memory_used = format_memory(row["memory_used_bytes"] or 0)
        memory = format_memory(row["memory_bytes"] or 0)
        pairs = [
            ("state", row["native_state"]),
            ("CPUs", f"{row['cpus_used']} of {row['cpus']} in use, load {load}"),
            ("GPUs", gpus if row["gpus"] else ""),
            ("memory", f"{memory_used} of {memory} in use"),
            ("queues", ", ".join(row["queues"] or [])),
            ("features", ", ".join(row["features"] or [])),
        ]
        if row["reason"]:
            since = ""
            if row["reason_since"] is not None:
                since = f", {format_age(now - row['reason_since'].timestamp())} ago"
            pairs.append(("reason", f"{row['reason']} (by {row['reason_by'] or 'unknown'}{since})"))
        pairs.append(("jobs", self._format_job_gaps(row["jobs"] or 0)))
        pairs += self._activity
        text = Text()
        for label, value in pairs:
            if value:
                text.append(f"{visible(label):<9} ", "dim")
                text.append(f"{visible(str(value))}\n")
        text.rstrip()
        return text

    def _format_job_gaps(self, count: int) -> str:
        """Return why the jobs below may be more or fewer than the node's `count`; '' otherwise."""
        table = super().source()
        if table is None:
            return ""
        host, is_vnode = VNODE.subn("", self.node_name)
        shown = on_node(table, self.node_name).num_rows
        parts = []
        if is_vnode and shown:
            parts.append(f"all jobs on {host}: the scheduler does not report them per part")
        if is_vnode or shown < count:
            is_unplaced = pc.and_(pc.is_valid(table["array_id"]), pc.is_null(table["node_list"]))
            if active_jobs(table.filter(is_unplaced)).num_rows:
                parts.append(
                    "arrays listed as one row are omitted: the nodes of their tasks are unknown"
                )
        return "; ".join(parts)

    def way_crumb(self) -> str:
        return f"node {self.node_name}"

    def placeholder(self) -> str:
        return "No running jobs on this node. q goes back"

    def scope_crumbs(self) -> Sequence[str]:
        return ("node", self.node_name)

    def store_changed(self, changed: Changed) -> None:
        if changed.kind in (None, Kind.NODES, Kind.EVERYONE):
            self.reload()
        if changed.kind is Kind.NODES and self.display:
            self._start_activity()
