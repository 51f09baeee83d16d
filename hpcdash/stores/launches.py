"""Launches on a cluster: where they are, what their scripts say, how they are staged and submitted. Knows no screen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hpcdash.config.settings import LaunchSettings
from hpcdash.launch.batch import BatchScript, Place
from hpcdash.launch.request import Request
from hpcdash.stores.cluster import ClusterStore
from hpcdash.stores.resubmission import Again


@dataclass(frozen=True, slots=True)
class WantedLaunch:
    """What is to be launched: a request, its text as a person wrote it, and files (name → content) to be staged.

    A request's `script` that is among `files`, by its last part, is run from where it is staged.
    """

    request: Request
    text: str = ""
    files: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlannedLaunch:
    """What launching would run: the commands (stage, hand over, submit), the script, and where all of it will be."""

    again: Again
    script: BatchScript
    place: Place


class Launches:
    """Launches of one cluster. `state_folder` is where they are remembered; None: nowhere."""

    def __init__(
        self, store: ClusterStore, settings: LaunchSettings | None = None, state_folder: Path | None = None
    ) -> None:
        self.store = store
        self.settings = settings or LaunchSettings()
        self.state_folder = state_folder

    async def root(self) -> str:
        """The folder there that holds launches, absolute; asked once a connection."""
        raise NotImplementedError

    def render(self, request: Request, *, uid: str, root: str = "", staged: bool = False) -> BatchScript:
        """The script of a request, with what the site and its queue say; asks nothing. Raises UsageError."""
        raise NotImplementedError

    async def plan(self, wanted: WantedLaunch) -> PlannedLaunch:
        """What launching would run; nothing is staged. Raises UsageError, and what keeps the cluster from answering.

        `Actions.run` runs it, `stores.resubmission.settle` finds out what became of one whose answer was lost.
        """
        raise NotImplementedError
