"""Prompts of a login node in the app, one at a time."""

from __future__ import annotations

import asyncio
import contextvars
from typing import TYPE_CHECKING, Any, TypeVar

from hpcdash.transport.base import HostKeyQuestion, Prompt

if TYPE_CHECKING:
    from textual.app import App
    from textual.screen import Screen

T = TypeVar("T")


class UiPrompter:
    """Prompter of the dashboard, built before the app; prompts wait until the app is attached."""

    def __init__(self) -> None:
        self._app: asyncio.Future[App[Any]] | None = None
        self._one_at_a_time = asyncio.Lock()
        self._attached: App[Any] | None = None
        # Context of the app; that of a caller may be older.
        self._context: contextvars.Context | None = None

    def attach(self, app: App[Any]) -> None:
        """Called by the app, in its own context."""
        self._attached = app
        self._context = contextvars.copy_context()
        if self._app is not None and not self._app.done():
            self._app.set_result(app)

    async def _prompt(self, dialog: Screen[T]) -> T | None:
        if self._attached is None:
            if self._app is None:
                self._app = asyncio.get_running_loop().create_future()
            await self._app
        app = self._attached
        assert app is not None
        async with self._one_at_a_time:
            answered: asyncio.Future[T | None] = asyncio.get_running_loop().create_future()

            def settle(result: T | None) -> None:
                if not answered.done():
                    answered.set_result(result)

            async def push() -> None:
                await app.push_screen(dialog, settle)

            try:
                await asyncio.create_task(push(), context=self._context)
                return await answered
            except asyncio.CancelledError:
                if dialog.is_current:
                    dialog.dismiss(None)
                raise

    def can_prompt(self) -> bool:
        return True

    def show(self, hop: str, text: str) -> None:
        """Do nothing: the connection's status on the screen and the next dialog show the text."""

    def waiting(self, hop: str) -> None:
        """Do nothing: the connection's status on the screen shows it."""

    async def answer(self, prompt: Prompt) -> list[str] | None:
        """Return an answer for each field; None if the dialog was cancelled."""
        from hpcdash.ui.dialogs import PromptDialog

        if not prompt.fields:
            return []
        return await self._prompt(PromptDialog(prompt))

    async def accept_host_key(self, question: HostKeyQuestion) -> bool:
        from hpcdash.ui.dialogs import HostKeyDialog

        accepted: bool | None = await self._prompt(HostKeyDialog(question))
        return accepted is True
