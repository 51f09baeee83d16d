"""What keys do to the jobs one points at: their logs and scripts are opened, and they are acted on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hpcdash.ui.views.base import View

if TYPE_CHECKING:
    from textual.screen import Screen

    _Screen = Screen[None]
else:
    _Screen = object


class JobActions(_Screen):
    """The handlers of the registry's actions on jobs, for MainScreen."""

    if TYPE_CHECKING:

        @property
        def view(self) -> View: ...

        async def push(self, name: str, /, **arguments: object) -> None: ...

    async def _open(self, view: str, **arguments: Any) -> None:
        job_id = self.view.pointed_job()
        if job_id is not None:
            await self.push(view, job_id=job_id, **arguments)

    async def do_log(self) -> None:
        await self._open("log", stream="stdout")

    async def do_error_log(self) -> None:
        await self._open("log", stream="stderr")

    async def do_script(self) -> None:
        await self._open("script")

    async def do_diff(self) -> None:
        await self._open("script", diff=True)

    async def do_triage(self) -> None:
        await self._open("triage")

    async def do_journal(self) -> None:
        await self.push("journal")
