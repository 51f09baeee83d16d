"""An array's ended tasks, by how they ended."""

from __future__ import annotations

from hpcdash.backends.base import Capability
from hpcdash.ui.session import ClusterSession
from hpcdash.ui.views.base import View, ViewSpec


class TriageView(View):
    """An array's ended tasks, by how they ended."""

    def __init__(self, session: ClusterSession, *, job_id: str) -> None:
        super().__init__(session)


VIEW = ViewSpec("triage", "triage", TriageView, Capability.HISTORY, root=False)
