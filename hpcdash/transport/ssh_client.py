"""Answers what one host asks during a login, by asking the person. Opens no connection."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import asyncssh

from hpcdash.transport.base import Prompt, Prompter, PromptField
from hpcdash.transport.login_clock import LoginClock
from hpcdash.transport.ssh_config import Hop
from hpcdash.transport.ssh_identity import Identities

_PASSWORD_TRIES = 3


class HopClient(asyncssh.SSHClient):
    """Answers one hop's questions by asking the person; remembers the key it showed and the ways in that were tried."""

    def __init__(
        self, hop: Hop, prompter: Prompter, clock: LoginClock, identities: Identities, lost: Callable[[str], None]
    ) -> None:
        self.hop = hop
        self.shown_key: asyncssh.SSHKey | None = None
        self.tried: list[str] = [f"key {name}" for name in identities.names]
        self.gave_up = False
        self.banner = ""
        self._prompter = prompter
        self._clock = clock
        self._lost = lost
        self._asked = {"keyboard-interactive": 0, "password": 0}

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost(str(exc) if exc else "")

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        # Called for unknown and for changed keys alike: neither is let in here.
        self.shown_key = key
        return False

    def auth_banner_received(self, msg: str, lang: str) -> None:
        self.banner = msg[:2000]

    async def password_auth_requested(self) -> str | None:
        if not self._may_ask("password"):
            return None
        answers = await self.ask("Password", "", (PromptField(f"Password of {self.hop.label}"),))
        return answers[0] if answers else None

    def kbdint_auth_requested(self) -> str | None:
        return "" if self._may_ask("keyboard-interactive") else None

    async def kbdint_challenge_received(
        self, name: str, instructions: str, lang: str, prompts: Sequence[tuple[str, bool]]
    ) -> list[str] | None:
        if not prompts:
            return []
        return await self.ask(name, instructions, tuple(PromptField(label, secret=not echo) for label, echo in prompts))

    async def ask(self, title: str, instructions: str, fields: tuple[PromptField, ...]) -> list[str] | None:
        """The person's answers, one a field, or None once they gave up."""
        if self.gave_up:
            return None
        with self._clock.person():
            answers = await self._prompter.answer(Prompt(self.hop.label, title, instructions, fields))
        if answers is None or len(answers) != len(fields):
            self.gave_up = True
            return None
        return answers

    def _may_ask(self, method: str) -> bool:
        if self.gave_up or self._asked[method] >= _PASSWORD_TRIES:
            return False
        self._asked[method] += 1
        if method not in self.tried:
            self.tried.append(method)
        return True
