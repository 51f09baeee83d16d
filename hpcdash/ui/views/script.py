"""A job's batch script."""

from __future__ import annotations

from hpcdash.backends.base import Capability
from hpcdash.ui.session import ClusterSession
from hpcdash.ui.views.base import View, ViewSpec


class ScriptView(View):
    """A job's batch script."""

    def __init__(self, session: ClusterSession, *, job_id: str, diff: bool = False) -> None:
        super().__init__(session)


VIEW = ViewSpec("script", "script", ScriptView, Capability.SCRIPT, root=False)
