"""A login node's connection in the broker: its prompts, and the answers that its clients share."""

from __future__ import annotations

import asyncio
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from msgspec import Struct

from hpcdash.backends.tokens import RECORDED_TOKEN, TOKEN_PATTERN
from hpcdash.errors import RateLimited
from hpcdash.transport.base import CommandResult, HostKeyQuestion, Prompt, Sharing
from hpcdash.transport.broker_frames import Place
from hpcdash.transport.ssh import SshTransport

_MINUTE_SECONDS = 60.0
# Answers are dropped at this age, or the oldest of more bytes than these.
_LONGEST_KEPT_SECONDS = 600.0
_KEPT_BYTES = 64 << 20
_TOKEN = re.compile(TOKEN_PATTERN.encode())
_NORMAL_TOKEN = RECORDED_TOKEN.encode()
# A query without its random separators: argv, variables, PATH, largest answer.
_Key = tuple[tuple[bytes, ...], frozenset[tuple[bytes, bytes]], bytes, int]


class PromptedClient(Protocol):
    """A client that may be prompted."""

    can_prompt: bool
    used_at: float
    name: str

    def show(self, hop: str, text: str | None) -> None: ...

    async def prompt(self, prompt: Prompt | HostKeyQuestion) -> list[str] | None:
        """Raises ConnectionError if the client leaves before it has answered."""
        ...


class _Answer(Struct):
    """An answer, or the command on its way to one; `waiting` clients need it."""

    task: asyncio.Task[CommandResult]
    started: float
    waiting: int = 0


class BrokerConnection:
    """One ssh connection, which all clients with the same way to the login node use."""

    def __init__(self, logins: Sequence[str], newcomer: Callable[[], Awaitable[object]]) -> None:
        """`newcomer` returns once another client has come, or has taken its first step."""
        first, *others = logins
        self.transport = SshTransport(first, self, other_logins=others)
        self.clients: list[PromptedClient] = []
        # Clients that wait for the login.
        self._logging_in: list[PromptedClient] = []
        # The hop whose prompt is open, and the client that shows it.
        self._prompted: tuple[str, PromptedClient] | None = None
        self._newcomer = newcomer
        self._answers: dict[_Key, _Answer] = {}
        self._acted_at = float("-inf")
        self._last_minute: deque[float] = deque()
        self.sent = 0
        self.shared = 0
        # Nobody could have answered the last login's prompt.
        self._was_unattended = False

    # -- logins and prompts

    async def connect(self, client: PromptedClient, *, force: bool) -> None:
        """Log in for a client unless that is done; a client that can be prompted tries again what
        failed without one.
        """
        with self.logging_in(client):
            force = force or (self._was_unattended and client.can_prompt)
            await self.transport.connect(force=force)

    @contextmanager
    def logging_in(self, client: PromptedClient) -> Iterator[None]:
        """A client that needs the connection, in this context."""
        self._logging_in.append(client)
        self._report_prompt(client)
        try:
            yield
        finally:
            self._logging_in.remove(client)

    def can_prompt(self) -> bool:
        """Whether one of those who wait for the login has a terminal; else nobody is prompted."""
        found = any(client.can_prompt for client in self._logging_in or self.clients)
        self._was_unattended = not found
        return found

    def show(self, hop: str, text: str) -> None:
        for client in self._logging_in or self.clients:
            client.show(hop, text)

    def waiting(self, hop: str) -> None:
        for client in self._logging_in or self.clients:
            client.show(hop, None)

    async def answer(self, prompt: Prompt) -> list[str] | None:
        return await self._prompt(prompt) if prompt.fields else []

    async def accept_host_key(self, question: HostKeyQuestion) -> bool:
        if not self.can_prompt():
            return False
        return bool(await self._prompt(question))

    async def _prompt(self, prompt: Prompt | HostKeyQuestion) -> list[str] | None:
        """Prompt in the window that a person used last, or in the next one that comes."""
        while True:
            windows = [client for client in self.clients if client.can_prompt]
            if not windows:
                await self._newcomer()
                continue
            window = max(windows, key=lambda client: client.used_at)
            self._prompted = (prompt.hop, window)
            for client in self._logging_in:
                self._report_prompt(client)
            try:
                return await window.prompt(prompt)
            except ConnectionError:
                continue
            finally:
                self._prompted = None

    def _report_prompt(self, client: PromptedClient) -> None:
        """Show a client that waits for the login where its prompt is, if it is elsewhere."""
        if self._prompted is not None and self._prompted[1] is not client:
            hop, window = self._prompted
            client.show("", f"waiting for you to log in: {hop} asks in {window.name}")

    @property
    def requester(self) -> str:
        """The program that a login is for."""
        return self._logging_in[0].name if self._logging_in else "an earlier command"

    # -- shared answers

    def is_recent(self, started: float, sharing: Sharing) -> bool:
        return time.monotonic() - started <= sharing.max_age_seconds and (
            sharing.outlives_actions or started > self._acted_at
        )

    async def query(
        self,
        argv: tuple[bytes, ...],
        place: Place,
        cap_bytes: int,
        sharing: Sharing,
        run: Callable[[], Awaitable[CommandResult]],
    ) -> tuple[CommandResult, float | None]:
        """Return the answer to a query, and its age in seconds if it is another client's."""
        normal_argv = tuple(_TOKEN.sub(_NORMAL_TOKEN, word) for word in argv)
        key = (normal_argv, frozenset(place.variables.items()), place.path, cap_bytes)
        known = self._answers.get(key)
        is_shared = known is not None and self.is_recent(known.started, sharing)
        if known is None or not is_shared:
            self._spend(sharing.commands_per_minute)
            known = _Answer(asyncio.ensure_future(run()), time.monotonic())
            self._answers[key] = known
            self._drop_old()
        known.waiting += 1
        try:
            result = await asyncio.shield(known.task)
        finally:
            known.waiting -= 1
            if not known.waiting and not known.task.done():
                known.task.cancel()
            self._forget_useless(key, known)
        self.shared += is_shared
        return result, time.monotonic() - known.started if is_shared else None

    def _forget_useless(self, key: _Key, answer: _Answer) -> None:
        """Forget what no other client may have: failures, and what was given up."""
        task = answer.task
        is_useful = (
            task.done()
            and not task.cancelled()
            and task.exception() is None
            and not task.result().truncated
            and task.result().status == 0
        )
        is_running = not task.done() and answer.waiting
        if not is_useful and not is_running and self._answers.get(key) is answer:
            del self._answers[key]

    def _drop_old(self) -> None:
        oldest = time.monotonic() - _LONGEST_KEPT_SECONDS
        left = _KEPT_BYTES
        for key, answer in sorted(
            self._answers.items(), key=lambda item: item[1].started, reverse=True
        ):
            if not answer.task.done():
                continue
            left -= len(answer.task.result().stdout)
            if left < 0 or answer.started < oldest:
                del self._answers[key]

    def _spend(self, ceiling: int | None) -> None:
        """Count a command; raises RateLimited at the ceiling on those of the last minute."""
        now = time.monotonic()
        while self._last_minute and self._last_minute[0] <= now - _MINUTE_SECONDS:
            self._last_minute.popleft()
        if ceiling is not None and len(self._last_minute) >= ceiling:
            wait = self._last_minute[-ceiling] + _MINUTE_SECONDS - now
            raise RateLimited(
                f"hpcdash's limit of {ceiling} commands per minute is reached by all your windows",
                f"Retrying in {wait:.0f} s. Set the limit with poll.commands_per_minute in the "
                "configuration.",
            )
        self._last_minute.append(now)
        self.sent += 1

    @contextmanager
    def acting(self) -> Iterator[None]:
        """A command, in this context, that may change what queries return."""
        self._spend(None)
        self._acted_at = time.monotonic()
        try:
            yield
        finally:
            self._acted_at = time.monotonic()
