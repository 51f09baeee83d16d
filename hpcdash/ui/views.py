"""All views by name; the module of a view is imported when it is first opened."""

from __future__ import annotations

from importlib import import_module
from typing import Any, cast

from msgspec import Struct

from hpcdash.backends.base import Capability
from hpcdash.domain.tables import SITE_TABLES, TABLES
from hpcdash.services.session import ClusterSession
from hpcdash.ui.view import View


class ViewSpec(Struct, frozen=True):
    """View whose `place` is MODULE:CLASS below hpcdash.ui; a `root` view is a command after ':'."""

    name: str
    place: str
    title: str = ""
    root: bool = False
    # Capability of the scheduler that the view needs.
    capability: Capability | None = None

    @property
    def view_class(self) -> type[View]:
        module, _, name = self.place.partition(":")
        return cast("type[View]", getattr(import_module(f"hpcdash.ui.{module}"), name))

    def make(self, session: ClusterSession, **arguments: Any) -> View:
        """Build the view of a cluster, with the arguments of View.Requested."""
        if self.place == _PLAIN_TABLE:
            arguments["spec"] = TABLES[self.name]
        view = self.view_class(session, **arguments)
        view.view_name = self.name
        return view


_PLAIN_TABLE = "table_view:TableView"
_SITE_VIEWS = {
    "shares": "usage.site_tables:SharesView",
    "limits": "usage.site_tables:LimitsView",
    "reservations": "usage.site_tables:ReservationsView",
}
SPECS: dict[str, ViewSpec] = {
    spec.name: spec
    for spec in (
        ViewSpec("jobs", "jobs.table:JobsView", root=True),
        ViewSpec("nodes", "cluster.nodes:NodesView", root=True),
        ViewSpec("timeline", "jobs.timeline:TimelineView", root=True),
        ViewSpec("queues", "cluster.queues:QueuesView", root=True),
        ViewSpec("history", "jobs.history:HistoryView", root=True),
        ViewSpec("alerts", "watch.view:AlertsView", root=True),
        ViewSpec("all", "jobs.everywhere:AllJobsView", root=True),
        ViewSpec("clusters", "cluster.clusters:ClustersView", root=True),
        *(
            ViewSpec(
                table.name,
                _SITE_VIEWS.get(table.name, _PLAIN_TABLE),
                root=True,
                capability=Capability(table.name),
            )
            for table in SITE_TABLES
        ),
        ViewSpec("share", "share.view:ShareView", root=True),
        ViewSpec("usage", "usage.view:UsageView", root=True),
        ViewSpec("storage", "usage.storage:StorageView", root=True),
        ViewSpec("submit", "submit.view:SubmitView", "new submission", root=True),
        ViewSpec("where", "submit.places:PlacesView", root=True, capability=Capability.QUEUES),
        ViewSpec("job", "jobs.job:JobView"),
        ViewSpec("node", "cluster.node:NodeView"),
        ViewSpec("log", "logs.view:LogView"),
        ViewSpec("files", "jobs.files:FilesView"),
        ViewSpec("data", "jobs.files:DataView"),
        ViewSpec("chart", "metrics.view:ChartView"),
        ViewSpec("script", "jobs.script:ScriptView"),
        ViewSpec("triage", "jobs.triage:TriageView"),
        ViewSpec("chain", "chains.view:ChainView"),
        ViewSpec("journal", "jobs.journal:JournalView"),
        ViewSpec("output", "plugins.view:OutputView"),
        ViewSpec("inside", "inside.view:InsideView"),
        ViewSpec("stacks", "inside.view:StacksView"),
        ViewSpec("leftovers", "inside.view:LeftoversView"),
        ViewSpec("use", "usage.live:LiveUseView"),
    )
}
