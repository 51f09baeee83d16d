"""Queries to one cluster within its command budget, and the search for its scheduler."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from typing import Protocol, TypeVar

from msgspec.structs import replace

from hpcdash.backends.actions import ActionCommand
from hpcdash.backends.base import Backend, Probe
from hpcdash.backends.queries import TEXT_BYTES, Answer, Query
from hpcdash.errors import (
    AuthenticationFailed,
    CommandElsewhere,
    CommandError,
    CommandMissing,
    CommandTimedOut,
    HostKeyChanged,
    HostKeyRefused,
    NoConfiguration,
    NotSent,
    RateLimited,
    UnreadableOutput,
)
from hpcdash.transport.base import (
    CommandResult,
    OnOutput,
    SharedTransport,
    Sharing,
    Transport,
)

T = TypeVar("T")
# The command that raised one of these never left this machine.
NEVER_SENT = (NotSent, AuthenticationFailed, HostKeyChanged, HostKeyRefused)
WINDOW_SECONDS = 60.0
# File reads leave this many commands of the ceiling for queries, and always get at least this
# share.
_LEFT_FOR_QUERIES = 2
_MIN_READS_SHARE = 0.25


# A scheduler's version and configuration change rarely.
_PROBE_AGE_SECONDS = 600.0

# When each command of the present task, and of tasks it starts, was sent; None if they are not
# counted.
_SENT: ContextVar[list[float] | None] = ContextVar("sent", default=None)


def count_sent() -> list[float]:
    """Return a list to which the time of each command that this task sends is added."""
    sent: list[float] = []
    _SENT.set(sent)
    return sent


class QueriedCluster(Protocol):
    """Interface of a cluster for queries: its transport, its budget and its backend."""

    @property
    def transport(self) -> Transport: ...
    @property
    def budget(self) -> CommandBudget: ...
    @property
    def backend(self) -> Backend: ...


class QueryRunner:
    """Runner of queries and actions on one cluster; it stores no answer."""

    def __init__(self, cluster: QueriedCluster) -> None:
        self._cluster = cluster
        self._adopting: asyncio.Lock = asyncio.Lock()
        # Whether a login shell's environment changed anything; None: not queried.
        self._adopted: bool | None = None
        self._searching: asyncio.Lock = asyncio.Lock()
        # Whether the commands are in a folder beside the PATH; None: not searched.
        self._found_elsewhere: bool | None = None
        # The probe's message on a configured scheduler without commands.
        self._why_missing: CommandMissing | None = None

    async def run_query(self, query: Query[T], *, times: int = 1) -> T:
        """Return the answer to a query, parsed in a thread.

        Raises RateLimited at `times` the ceiling on commands per minute.
        """

        async def attempt() -> T:
            try:
                return await self.run_unchanged(query, times=times)
            except CommandMissing:
                if not await self._is_elsewhere(times):
                    raise
            return await self.run_unchanged(query, times=times)

        return await self.with_login_environment(attempt)

    async def _is_elsewhere(self, times: int) -> bool:
        """Whether the probe, run once, finds the commands in a folder beside the PATH.

        Raises the probe's error if the scheduler is configured without commands.
        """
        async with self._searching:
            if self._found_elsewhere is None:
                self._found_elsewhere = False
                try:
                    await self.run_unchanged(self._cluster.backend.probe.query(), times=times)
                except CommandElsewhere as elsewhere:
                    self._cluster.transport.prepend_path(elsewhere.folder)
                    self._found_elsewhere = True
                except CommandMissing as missing:
                    self._why_missing = missing
            if self._why_missing is not None:
                raise self._why_missing
            return self._found_elsewhere

    async def with_login_environment(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Attempt as is; if a command or its cluster is missing, again in a login shell's
        environment.
        """
        was_adopted = self._adopted is not None
        try:
            return await attempt()
        except (CommandMissing, NoConfiguration):
            if was_adopted or not await self._adopt_login_environment():
                raise
        return await attempt()

    def forget_login_environment(self) -> None:
        """Query it again if something is missing."""
        self._adopted = None
        self._found_elsewhere = None
        self._why_missing = None

    async def run_unchanged(self, query: Query[T], *, times: int = 1) -> T:
        """Run a query like `run_query`, without a retry."""
        wait = self._cluster.budget.wait_seconds(times=times)
        if wait > 0:
            raise RateLimited(
                f"hpcdash's limit of {self._cluster.budget.ceiling} commands per minute is reached",
                f"Retrying in {wait:.0f} s. Set the limit with poll.commands_per_minute in the "
                "configuration.",
            )
        self._cluster.budget.spend()
        try:
            completed = await self._send(query, times)
        except (*NEVER_SENT, RateLimited):
            self._cluster.budget.refund()
            raise
        except CommandTimedOut as error:
            if not query.command:
                raise
            title = self._cluster.backend.title
            failure = CommandTimedOut(
                f"{query.command[0]} did not respond within {query.limit_seconds:g} s and was "
                "terminated",
                f"The {title} server or its storage may be hung or busy; running jobs "
                "are not affected.",
                argv=query.command,
                output=error.output,
            )
            failure.answer_seconds = error.answer_seconds
            raise failure from error
        if completed.is_copy:
            self._cluster.budget.refund()
        else:
            self._cluster.budget.answered(completed.seconds)
        if query.command:
            # An error has the command that a person would run, not the shell around it.
            completed = replace(completed, argv=query.command)
        answer = await asyncio.to_thread(query.parse, completed)
        if not completed.is_copy:
            for _ in range(query.commands(answer) - 1):
                self._cluster.budget.spend()
        return answer

    async def _send(self, query: Query[T], times: int) -> CommandResult:
        transport = self._cluster.transport
        limit = query.limit_seconds
        cap = query.cap_bytes
        if not isinstance(transport, SharedTransport):
            return await transport.run(query.argv, limit_seconds=limit, cap_bytes=cap)
        sharing = Sharing(
            query.max_age_seconds, query.outlives_actions, times * self._cluster.budget.ceiling
        )
        return await transport.query(
            query.argv, limit_seconds=limit, cap_bytes=cap, sharing=sharing
        )

    async def act(self, command: ActionCommand, on_output: OnOutput | None = None) -> Answer:
        """Run a command that acts on jobs, once and regardless of the ceiling; raises the
        transport's errors.
        """
        self._cluster.budget.spend()
        try:
            transport = self._cluster.transport
            run = transport.act if isinstance(transport, SharedTransport) else transport.run
            completed = await run(
                command.argv,
                stdin=command.stdin,
                limit_seconds=command.limit_seconds,
                cap_bytes=TEXT_BYTES,
                on_output=on_output,
            )
        except NEVER_SENT:
            self._cluster.budget.refund()
            raise
        self._cluster.budget.answered(completed.seconds)
        return completed

    async def _adopt_login_environment(self) -> bool:
        async with self._adopting:
            if self._adopted is None:
                self._cluster.budget.spend()
                try:
                    self._adopted = await self._cluster.transport.adopt_login_environment()
                except UnreadableOutput:
                    raise
                except CommandError:
                    # A login shell that hangs or fails: the missing command is the error to report.
                    self._adopted = False
            return self._adopted


class CommandBudget:
    """Counts commands over the last minute; `per_minute` is the ceiling."""

    def __init__(self, per_minute: int, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.ceiling = per_minute
        self.last_seconds: float | None = None
        # Commands sent since the program started.
        self.sent = 0
        self._monotonic = monotonic
        self._sent: deque[float] = deque()
        self._next_read_at = float("-inf")

    def _forget_old(self) -> None:
        oldest = self._monotonic() - WINDOW_SECONDS
        while self._sent and self._sent[0] <= oldest:
            self._sent.popleft()

    @property
    def per_minute(self) -> int:
        """Commands sent in the last minute."""
        self._forget_old()
        return len(self._sent)

    def wait_seconds(self, commands: int = 1, *, times: int = 1) -> float:
        """Return the seconds until `commands` more fit under `times` the ceiling; 0 if they fit."""
        self._forget_old()
        excess = len(self._sent) + commands - times * self.ceiling
        if excess <= 0:
            return 0.0
        now = self._monotonic()
        sent_at = self._sent[min(excess, len(self._sent)) - 1] if self._sent else now
        return max(0.0, sent_at + WINDOW_SECONDS - now)

    def spend(self) -> None:
        """Note that a command is sent now."""
        self.sent += 1
        self._sent.append(self._monotonic())
        if (counted := _SENT.get()) is not None:
            counted.append(self._sent[-1])

    def refund(self) -> None:
        """Take the newest command back: it was not sent."""
        if self._sent:
            self._sent.pop()
            self.sent -= 1

    def reserve_read_seconds(self) -> float:
        """Return the seconds to wait before a followed file is read: each call gets the next turn.

        Reads are not scheduler queries, but commands nevertheless: at even intervals, they take
        what the last minute's queries leave of the ceiling.
        """
        left = self.ceiling - self.per_minute - _LEFT_FOR_QUERIES
        now = self._monotonic()
        turn = max(now, self._next_read_at)
        self._next_read_at = turn + WINDOW_SECONDS / max(left, _MIN_READS_SHARE * self.ceiling)
        return turn - now

    def answered(self, seconds: float) -> None:
        """Note how long a command took to answer."""
        self.last_seconds = seconds


def _shared_probe(backend: Backend) -> Query[Probe]:
    """The probe, which other programs of the same person may have run a while ago."""
    query = backend.probe.query()

    def parse(answer: Answer) -> Probe:
        probe = query.parse(answer)
        clock = probe.clock_epoch_seconds
        return (
            probe
            if clock is None
            else replace(probe, clock_epoch_seconds=clock + answer.age_seconds)
        )

    return replace(query, parse=parse, max_age_seconds=_PROBE_AGE_SECONDS, outlives_actions=True)


async def find_scheduler(
    backends: Sequence[Backend],
    fetch: Callable[[Query[Probe]], Awaitable[Probe]],
    prepend_path: Callable[[str], None],
) -> tuple[Backend, Probe]:
    """Return the first backend that finds its scheduler, and its probe; raises why none does.

    `prepend_path` is called with the folder of commands that are not on the PATH.
    """
    missing: list[CommandMissing] = []
    unconfigured: NoConfiguration | None = None
    for backend in backends:
        try:
            try:
                probe = await fetch(_shared_probe(backend))
            except CommandElsewhere as elsewhere:
                prepend_path(elsewhere.folder)
                probe = await fetch(_shared_probe(backend))
        except CommandMissing as error:
            missing.append(error)
            continue
        except NoConfiguration as error:
            unconfigured = unconfigured or error
            continue
        # The commands of a scheduler may be installed where another is used; if neither answers,
        # the first error counts.
        if unconfigured is None or probe.controller_answers is not False:
            return backend.for_probe(probe), probe
    if unconfigured is not None:
        raise unconfigured
    if len(missing) == 1:
        raise missing[0]
    raise CommandMissing(
        "; ".join(error.message for error in missing),
        missing[0].next_step,
        status=missing[0].status,
        output="\n".join(error.output for error in missing if error.output),
    )
