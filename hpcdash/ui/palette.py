"""Puts every action of the registry that a person has right now into Textual's command palette."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from textual.command import DiscoveryHit, Hit, Hits, Provider

from hpcdash.ui.actions import key_sign

if TYPE_CHECKING:
    from hpcdash.ui.app import HpcdashApp


class ActionProvider(Provider):
    """The registry as palette commands."""

    @property
    def _dashboard(self) -> HpcdashApp:
        return self.app  # type: ignore[return-value]

    async def discover(self) -> Hits:
        for action in self._dashboard.main.actions():
            yield DiscoveryHit(
                action.words, partial(self._dashboard.main.act, action.name), help=f"key {key_sign(action.key)}"
            )

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for action in self._dashboard.main.actions():
            score = matcher.match(action.words)
            if score > 0:
                yield Hit(
                    score,
                    matcher.highlight(action.words),
                    partial(self._dashboard.main.act, action.name),
                    help=f"key {key_sign(action.key)}",
                )
