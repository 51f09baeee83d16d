"""Results as soon as they are written, which is before the scheduler reports the end of a job."""

from __future__ import annotations

import asyncio
import contextlib
import posixpath
import secrets
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping

from msgspec import Struct

from hpcdash.backends.queries import Answer, Query
from hpcdash.client.results import result_names
from hpcdash.client.tracking import JobStates, TrackedJob
from hpcdash.domain.states import WAITING
from hpcdash.errors import HpcdashError
from hpcdash.services.session import ClusterSession
from hpcdash.shell_files import shell_text

# Pause before the next check, as a share of the time since the last event.
_PAUSE_SHARE = 1 / 3
_MIN_PAUSE_SECONDS = 0.3
_MAX_PAUSE_SECONDS = 15.0
# More results often follow a result: checks are then 2 s apart.
_QUIET_AFTER_RESULTS_SECONDS = 6.0
# Pause after a slow check, in multiples of its duration.
_DURATION_FACTOR = 4.0
# For this time after a submission, checks may use a share of the limit on commands at once.
_HURRIED_SECONDS = 5.0
_HURRIED_SHARE = 0.75
# A pending job has no result, but for this time after a submission its state may be outdated.
_YOUNG_SECONDS = 10.0
_CHECK_LIMIT_SECONDS = 60.0
# A shell's arguments are limited to 128 KiB, and the whole command is one.
_COMMAND_BYTES = 48 << 10


class AwaitedResults(Struct, frozen=True, eq=False):
    """The results of a submission, in its launch `folder`; with `may_rerun`, failures may pass."""

    tracked: TrackedJob
    folder: str
    form: str
    may_rerun: bool


class EarlyResults:
    """Lists result folders for all waiters on a cluster at once, less often over time."""

    def __init__(self, session: ClusterSession, states: JobStates) -> None:
        self._store = session.store
        self._states = states
        self._awaited: list[tuple[AwaitedResults, frozenset[int | None]]] = []
        self._polling: asyncio.Task[None] | None = None
        self._hurried = asyncio.Event()
        self._quiet_since = float("-inf")
        self._checked_at = float("-inf")
        self._check_seconds = 0.0

    def submitted(self) -> None:
        """Schedule the next checks soon."""
        self._quiet_since = asyncio.get_running_loop().time()
        self._hurried.set()

    @contextlib.asynccontextmanager
    async def searching(
        self, results: AwaitedResults, indices: frozenset[int | None]
    ) -> AsyncIterator[None]:
        """Search for the results of tasks in this context, and add them to `tracked.written`."""
        waiter = (results, indices)
        if not results.folder.startswith("/"):
            yield
            return
        self._awaited.append(waiter)
        if self._polling is None:
            self._polling = asyncio.create_task(
                self._poll_folders(), name=f"results of {self._store.name}"
            )
        try:
            yield
        finally:
            self._awaited.remove(waiter)
            if not self._awaited and self._polling is not None:
                self._polling.cancel()
                self._polling = None

    async def _poll_folders(self) -> None:
        while True:
            await self._pause()
            if folders := self._folders_due():
                # The poll reports errors of the cluster.
                with contextlib.suppress(HpcdashError):
                    await self._check_folders(folders)
            else:
                await self._states.news.wait()

    async def _pause(self) -> None:
        """Wait until the next check is due; sooner after a submission."""
        now = asyncio.get_running_loop().time
        while True:
            self._hurried.clear()
            quiet_seconds = now() - self._quiet_since
            pause = max(quiet_seconds * _PAUSE_SHARE, _MIN_PAUSE_SECONDS)
            pause = min(pause, _MAX_PAUSE_SECONDS)
            pause = max(pause, self._check_seconds * _DURATION_FACTOR)
            remaining = self._checked_at + pause - now()
            if remaining > 0:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._hurried.wait(), remaining)
                continue
            budget = self._store.budget
            is_busy = budget.per_minute >= budget.ceiling * _HURRIED_SHARE
            if is_busy or quiet_seconds > _HURRIED_SECONDS:
                await asyncio.sleep(budget.reserve_read_seconds())
            return

    def _folders_due(self) -> dict[str, list[AwaitedResults]]:
        """Return the results that may have been written, by folder."""
        is_young = asyncio.get_running_loop().time() - self._quiet_since < _YOUNG_SECONDS
        found: dict[str, list[AwaitedResults]] = {}
        for results, indices in self._awaited:
            tracked = results.tracked
            missing = indices - tracked.ended - tracked.written
            has_started = any(tracked.state(index) not in WAITING for index in missing)
            if missing and (is_young or has_started):
                found.setdefault(results.folder, []).append(results)
        return found

    async def _check_folders(self, folders: Mapping[str, list[AwaitedResults]]) -> None:
        loop = asyncio.get_running_loop()
        has_new = False
        started_at = loop.time()
        self._checked_at = started_at
        try:
            for some in _batches(sorted(folders)):
                for folder, names in (await self._store.run_query(listing_query(some))).items():
                    # Several waiters may have attached to the same job.
                    for results in set(folders[folder]):
                        has_new |= _record_results(results, names)
        finally:
            self._checked_at = loop.time()
            self._check_seconds = self._checked_at - started_at
            if has_new:
                quiet_since = self._checked_at - _QUIET_AFTER_RESULTS_SECONDS
                self._quiet_since = max(self._quiet_since, quiet_since)
                self._states.notify_waiters()


def _record_results(results: AwaitedResults, names: frozenset[str]) -> bool:
    """Record the results that exist; return whether any are new."""
    tracked = results.tracked
    new = set()
    for index in set(tracked.indices) - tracked.ended - tracked.written:
        result, failure = result_names(results.form, index)
        if result in names or (failure in names and not results.may_rerun):
            new.add(index)
    tracked.written |= new
    return bool(new)


def _batches(folders: Iterable[str]) -> Iterator[list[str]]:
    """Split folders into lists that each fit into a command."""
    some: list[str] = []
    size = 0
    for folder in folders:
        if some and size + len(folder) > _COMMAND_BYTES:
            yield some
            some = []
            size = 0
        is_sibling = some and posixpath.dirname(some[-1]) == posixpath.dirname(folder)
        some.append(folder)
        size += len(posixpath.basename(folder) if is_sibling else folder)
    if some:
        yield some


def listing_query(folders: list[str]) -> Query[dict[str, frozenset[str]]]:
    """Build the query of the result names in each folder; unreadable folders have none."""
    token = secrets.token_hex(8)
    arguments: list[str] = []
    base = ""
    for folder in folders:
        parent, _, name = folder.rpartition("/")
        if parent != base:
            base = parent
            arguments.append(parent)
        arguments.append(name)

    def parse(answer: Answer) -> dict[str, frozenset[str]]:
        _, *parts = answer.stdout.decode("utf-8", "replace").split(f"{token}\n")
        names = [frozenset(part.splitlines()) for part in parts]
        return dict(zip(folders, names, strict=False))

    argv = ("sh", "-c", shell_text("client/early_results.sh"), "sh", token, *arguments)
    return Query(argv, parse, _CHECK_LIMIT_SECONDS, ("ls",))
