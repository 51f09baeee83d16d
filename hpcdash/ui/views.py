"""Every view there is, by its name. A view is loaded when it is first opened."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import cast

from msgspec import Struct

from hpcdash.backends.base import Capability
from hpcdash.ui.view import View


class ViewSpec(Struct, frozen=True):
    """`place` is MODULE:CLASS below hpcdash.ui; a `root` view has no view below it, and is a
    command after ':'.
    """

    name: str
    place: str
    title: str = ""
    root: bool = False
    # Only where the scheduler has it.
    capability: Capability | None = None

    @property
    def make(self) -> Callable[..., View]:
        """Its class, which takes a session and the arguments of View.Wanted."""
        module, _, name = self.place.partition(":")
        return cast("Callable[..., View]", getattr(import_module(f"hpcdash.ui.{module}"), name))

    def shows(self, view: View) -> bool:
        return (
            self.place
            == f"{type(view).__module__.removeprefix('hpcdash.ui.')}:{type(view).__name__}"
        )


SPECS: dict[str, ViewSpec] = {
    spec.name: spec
    for spec in (
        ViewSpec("jobs", "jobs.table:JobsView", root=True),
        ViewSpec("nodes", "cluster.nodes:NodesView", root=True),
        ViewSpec("queues", "cluster.queues:QueuesView", root=True),
        ViewSpec("history", "jobs.history:HistoryView", root=True),
        ViewSpec("alerts", "watch.view:AlertsView", root=True),
        ViewSpec("clusters", "cluster.clusters:ClustersView", root=True),
        ViewSpec("shares", "usage.shares:SharesView", root=True, capability=Capability.SHARES),
        ViewSpec("limits", "usage.limits:LimitsView", root=True, capability=Capability.LIMITS),
        ViewSpec(
            "reservations",
            "usage.reservations:ReservationsView",
            root=True,
            capability=Capability.RESERVATIONS,
        ),
        ViewSpec("share", "share.view:ShareView", root=True),
        ViewSpec("usage", "usage.view:UsageView", root=True),
        ViewSpec("submit", "submit.view:SubmitView", "new submission", root=True),
        ViewSpec("job", "jobs.job:JobView"),
        ViewSpec("node", "cluster.node:NodeView"),
        ViewSpec("log", "logs.view:LogView"),
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
