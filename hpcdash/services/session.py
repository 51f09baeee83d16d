"""One cluster as the screen has it: its store, the poller that keeps the store fresh, and what acts
on its jobs.
"""

from __future__ import annotations

from datetime import tzinfo
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from hpcdash.domain.rfc3339 import format_utc
from hpcdash.services.cluster.poller import Poller
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.jobs.actions import Actions
from hpcdash.services.submit.launches import Launches

if TYPE_CHECKING:
    from hpcdash.config.settings import ClusterSettings, PoolSettings
    from hpcdash.services.watch.board import WatchBoard


class ClusterSession(Struct, frozen=True):
    """A configured, found or recorded cluster.

    `origin` says in words where it comes from; times are shown in `zone` (None: this machine's).
    `pools` are those that are shared there, each with the file that its coordinator publishes.
    """

    store: ClusterStore
    poller: Poller
    actions: Actions
    launches: Launches
    origin: str = ""
    zone: tzinfo | None = None
    watching: WatchBoard | None = None
    pools: tuple[PoolSettings, ...] = ()
    settings: ClusterSettings | None = None
    """Its table of the configuration, or the equivalent of command-line options; None: recorded."""

    @property
    def name(self) -> str:
        return self.store.name

    def envelope(self, taken_at: float | None = None) -> dict[str, Any]:
        """The first keys of each JSON object on a cluster; `taken_at` is an epoch second, by
        default the cluster's now.
        """
        return {
            "cluster": self.name,
            "backend": self.store.backend.name,
            "taken_at": format_utc(self.store.clock.now() if taken_at is None else taken_at),
        }
