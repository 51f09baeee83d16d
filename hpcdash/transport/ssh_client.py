"""Answers one host's prompts during a login, with a person's input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import asyncssh

from hpcdash.transport.base import Health, Prompt, Prompter, PromptField
from hpcdash.transport.login_clock import LoginClock
from hpcdash.transport.ssh_config import Hop

_PASSWORD_TRIES = 3
_MAX_MESSAGE_CHARACTERS = 4000


class HopClient(asyncssh.SSHClient):
    """Client of one hop that answers its prompts with the person's input.

    Stores the host's key, the methods tried, the methods that the host offers, and its output.
    `lost` is called when the connection ends, once `is_logged_in` is set.
    """

    def __init__(
        self,
        hop: Hop,
        prompter: Prompter,
        clock: LoginClock,
        health: Health,
        lost: Callable[[str], None],
    ) -> None:
        self.hop = hop
        self.clock = clock
        self.shown_key: asyncssh.SSHKey | None = None
        self.tried: list[str] = []
        self.offered: set[str] = set()
        self.gave_up = False
        self.found_nobody = False
        self.is_logged_in = False
        self.text = ""
        self._prompter = prompter
        self._health = health
        self._lost = lost
        self._connection: asyncssh.SSHClientConnection | None = None
        self._had_person = False
        self._prompts = {"keyboard-interactive": 0, "password": 0}
        self._had_fields = False
        # The host's output since its last prompt.
        self._message = ""

    @property
    def awaited_approval(self) -> bool:
        """Whether the host waited for the person without a prompt."""
        return self._prompts["keyboard-interactive"] == 1 and not self._had_fields

    @property
    def attended(self) -> bool:
        """Whether this login took a person, or may have: a prompt, a key's touch, an approval."""
        return self._had_person or self.clock.outlasted_network

    def connection_made(self, conn: asyncssh.SSHClientConnection) -> None:
        self._connection = conn

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection = None
        if self.is_logged_in:
            self._lost(str(exc) if exc else "")

    def validate_host_public_key(
        self, host: str, addr: str, port: int, key: asyncssh.SSHKey
    ) -> bool:
        # asyncssh calls this for unknown and for changed keys: HostKeys.verify decides.
        self.shown_key = key
        return False

    def auth_banner_received(self, msg: str, lang: str) -> None:
        if not self.hop.is_quiet:
            self.show(msg)

    def public_key_auth_requested(self) -> None:
        self._note_offered()

    async def password_auth_requested(self) -> str | None:
        if not self._can_prompt("password"):
            return None
        answers = await self.prompt(
            "Password", "", (PromptField(f"Password for {self.hop.label}"),)
        )
        return answers[0] if answers else None

    async def password_change_requested(self, prompt: str, lang: str) -> tuple[str, str]:
        labels = ("Current password", "New password", "Repeat the new password")
        instructions = prompt or "The password has expired."
        for _ in range(_PASSWORD_TRIES):
            answers = await self.prompt(
                "Change the password", instructions, tuple(map(PromptField, labels))
            )
            if answers is None:
                break
            current, new, again = answers
            if new == again:
                return current, new
            instructions = "The new passwords do not match."
        return NotImplemented  # type: ignore[no-any-return]

    def password_changed(self) -> None:
        self.show("The password was changed.")

    def kbdint_auth_requested(self) -> str | None:
        return "" if self._can_prompt("keyboard-interactive") else None

    async def kbdint_challenge_received(
        self, name: str, instructions: str, lang: str, prompts: Sequence[tuple[str, bool]]
    ) -> list[str] | None:
        if not prompts:
            self.clock.wait_for_person()
            self.show(f"{name}\n{instructions}")
            return []
        self._had_fields = True
        # PAM puts its messages before a prompt into the prompt.
        messages = [instructions]
        fields = []
        for label, echo in prompts:
            *before, last = label.strip().splitlines() or [""]
            messages += before
            fields.append(PromptField(last if before else label, secret=not echo))
        return await self.prompt(name, "\n".join(filter(None, messages)), tuple(fields))

    async def passphrase(self, path: Path, is_wrong: bool) -> str | None:
        """Prompt for the passphrase of a key file; None once the person gives up.

        `is_wrong`: the previous one was wrong.
        """
        instructions = "Wrong passphrase." if is_wrong else ""
        answers = await self.prompt(
            "Passphrase", instructions, (PromptField(f"Passphrase for {path}"),)
        )
        return answers[0] if answers else None

    def signing(self, needs_touch: bool) -> None:
        """Wait for the person, as a key is about to sign.

        An agent may prompt for it, and a hardware key needs a touch.
        """
        self.clock.wait_for_person()
        self._had_person |= needs_touch

    async def prompt(
        self, title: str, instructions: str, fields: tuple[PromptField, ...]
    ) -> list[str] | None:
        """Return the person's answers, one per field, or None once they give up."""
        if self.gave_up:
            return None
        self._had_person = True
        prompt = Prompt(
            hop=self.hop.label,
            title=title,
            instructions=instructions,
            fields=fields,
            message=self._message,
        )
        self._message = ""
        with self.clock.prompt():
            answers = await self._prompter.answer(prompt)
        if answers is None or len(answers) != len(fields):
            self.gave_up = True
            return None
        return answers

    def show(self, text: str) -> None:
        """Show and store the host's output."""
        text = text.strip()[:_MAX_MESSAGE_CHARACTERS]
        if not text:
            return
        self.text = text
        self._message = f"{self._message}\n{text}".strip()
        lines = [f"{self.hop.label}: {line}" for line in text.splitlines() if line.strip()]
        self._health.text = "\n".join((self._health.text, *lines)).strip()
        self._prompter.show(self.hop.label, text)

    def silent(self) -> None:
        """Notify the person that the host may wait for them."""
        self._prompter.waiting(self.hop.label)

    def _note_offered(self) -> None:
        if self._connection is not None:
            self.offered.update(self._connection.get_server_auth_methods())

    def _can_prompt(self, method: str) -> bool:
        self._note_offered()
        if self.gave_up or self._prompts[method] >= _PASSWORD_TRIES:
            return False
        # A phone request that was declined or missed is not sent again.
        if method == "keyboard-interactive" and self._prompts[method] and not self._had_fields:
            return False
        if not self._prompter.can_prompt():
            self.found_nobody = True
            self._note_tried(f"{method} (not tried: no one is present to answer)")
            return False
        self._prompts[method] += 1
        if method == "keyboard-interactive":
            self._had_fields = False
        self._had_person = True
        self._note_tried(method)
        self.clock.wait_for_person()
        return True

    def _note_tried(self, method: str) -> None:
        if method not in self.tried:
            self.tried.append(method)
