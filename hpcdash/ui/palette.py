"""Puts every action of the registry that a person has right now into Textual's command palette."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from textual.command import DiscoveryHit, Hit, Hits, Provider

from hpcdash.ui.actions import Action, key_sign
from hpcdash.ui.screen import DashboardScreen


class ActionProvider(Provider):
    """The registry as palette commands."""

    def _actions(self) -> list[Action]:
        return self.screen.actions() if isinstance(self.screen, DashboardScreen) else []

    def _act(self, name: str) -> Callable[[], Awaitable[None]]:
        assert isinstance(self.screen, DashboardScreen)
        return partial(self.screen.act, name)

    async def discover(self) -> Hits:
        for action in self._actions():
            yield DiscoveryHit(
                action.words, self._act(action.name), help=f"key {key_sign(action.key)}"
            )

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for action in self._actions():
            score = matcher.match(action.words)
            if score > 0:
                yield Hit(
                    score,
                    matcher.highlight(action.words),
                    self._act(action.name),
                    help=f"key {key_sign(action.key)}",
                )
