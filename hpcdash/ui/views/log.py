"""A job's log, live."""

from __future__ import annotations

from hpcdash.backends.base import Capability
from hpcdash.ui.session import ClusterSession
from hpcdash.ui.views.base import View, ViewSpec


class LogView(View):
    """A job's log, live."""

    def __init__(self, session: ClusterSession, *, job_id: str, stream: str = "stdout") -> None:
        super().__init__(session)


VIEW = ViewSpec("log", "log", LogView, Capability.LOGS, root=False)
