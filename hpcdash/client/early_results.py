"""Results as soon as they are written: result files show that a function has returned before the
scheduler does.
"""

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

# The next check comes after this share of the time since the last event.
_SHARE_OF_QUIET = 1 / 3
_SHORTEST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.3, 15.0
# Results are followed by others: checks are then 2 s apart.
_QUIET_AFTER_RESULTS_SECONDS = 6.0
# A slow check is followed by one so many times later.
_TIMES_THE_LOOK = 4.0
# So long after a submission checks are not limited, up to a share of the ceiling on commands.
_HURRIED_SECONDS, _HURRIED_SHARE = 5.0, 0.75
# No result of a pending job is searched; whether it is still pending is unknown for so long.
_YOUNG_SECONDS = 10.0
_LOOK_LIMIT_SECONDS = 60.0
# A shell takes no longer word than 128 KiB, and the whole command is one.
_COMMAND_BYTES = 48 << 10


class AwaitedResults(Struct, frozen=True, eq=False):
    """The results of one submission, in its launch `folder`.

    With `may_rerun`, a failure may not be final.
    """

    tracked: TrackedJob
    folder: str
    form: str
    may_rerun: bool


class EarlyResults:
    """One listing of result folders serves everyone who waits on a cluster; it becomes rarer over
    time.
    """

    def __init__(self, session: ClusterSession, states: JobStates) -> None:
        self._store = session.store
        self._states = states
        self._awaited: list[tuple[AwaitedResults, frozenset[int | None]]] = []
        self._looking: asyncio.Task[None] | None = None
        self._hurried = asyncio.Event()
        self._quiet_since = float("-inf")
        self._looked_at = float("-inf")
        self._took_seconds = 0.0

    def submitted(self) -> None:
        """Schedule the next checks soon."""
        self._quiet_since = asyncio.get_running_loop().time()
        self._hurried.set()

    @contextlib.asynccontextmanager
    async def looking(
        self, results: AwaitedResults, indices: frozenset[int | None]
    ) -> AsyncIterator[None]:
        """Search results of these tasks in this context.

        Found ones are in `results.tracked.written`.
        """
        waiter = (results, indices)
        if not results.folder.startswith("/"):
            yield
            return
        self._awaited.append(waiter)
        if self._looking is None:
            self._looking = asyncio.create_task(
                self._poll_folders(), name=f"results of {self._store.name}"
            )
        try:
            yield
        finally:
            self._awaited.remove(waiter)
            if not self._awaited and self._looking is not None:
                self._looking.cancel()
                self._looking = None

    async def _poll_folders(self) -> None:
        while True:
            await self._pause()
            if folders := self._folders_due():
                # The poll reports why the cluster does not answer.
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
            pause = min(
                max(quiet_seconds * _SHARE_OF_QUIET, _SHORTEST_PAUSE_SECONDS),
                _LONGEST_PAUSE_SECONDS,
            )
            left = self._looked_at + max(pause, self._took_seconds * _TIMES_THE_LOOK) - now()
            if left > 0:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._hurried.wait(), left)
                continue
            budget = self._store.budget
            if (
                quiet_seconds > _HURRIED_SECONDS
                or budget.per_minute >= budget.ceiling * _HURRIED_SHARE
            ):
                await asyncio.sleep(budget.reserve_read_seconds())
            return

    def _folders_due(self) -> dict[str, list[AwaitedResults]]:
        """By folder, the results of which some may be there by now."""
        is_young = asyncio.get_running_loop().time() - self._quiet_since < _YOUNG_SECONDS
        found: dict[str, list[AwaitedResults]] = {}
        for results, indices in self._awaited:
            tracked = results.tracked
            left = indices - tracked.ended - tracked.written
            if left and (is_young or any(tracked.state(index) not in WAITING for index in left)):
                found.setdefault(results.folder, []).append(results)
        return found

    async def _check_folders(self, folders: Mapping[str, list[AwaitedResults]]) -> None:
        loop = asyncio.get_running_loop()
        new = 0
        began = self._looked_at = loop.time()
        try:
            for some in _fitting(sorted(folders)):
                for folder, names in (await self._store.run_query(listing_query(some))).items():
                    # Two may have attached to the same job.
                    new += sum(_note(results, names) for results in set(folders[folder]))
        finally:
            self._looked_at = loop.time()
            self._took_seconds = self._looked_at - began
            if new:
                self._quiet_since = max(
                    self._quiet_since, self._looked_at - _QUIET_AFTER_RESULTS_SECONDS
                )
                self._states.tell()


def _note(results: AwaitedResults, names: frozenset[str]) -> int:
    """Record the results that exist, and return how many are new."""
    tracked = results.tracked
    new = set()
    for index in tracked.indices:
        if index not in tracked.ended and index not in tracked.written:
            result, failure = result_names(results.form, index)
            if result in names or (failure in names and not results.may_rerun):
                new.add(index)
    tracked.written |= new
    return len(new)


def _fitting(folders: Iterable[str]) -> Iterator[list[str]]:
    """Split folders into lists that each fit into one command."""
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
    """The names of results in each folder; none of one that is not there or is closed."""
    token = secrets.token_hex(8)
    arguments: list[str] = []
    base = ""
    for folder in folders:
        above, _, name = folder.rpartition("/")
        if above != base:
            arguments.append(base := above)
        arguments.append(name)

    def parse(answer: Answer) -> dict[str, frozenset[str]]:
        _, *parts = answer.stdout.decode("utf-8", "replace").split(f"{token}\n")
        return {
            folder: frozenset(part.splitlines())
            for folder, part in zip(folders, parts, strict=False)
        }

    return Query(
        ("sh", "-c", shell_text("client/early_results.sh"), "sh", token, *arguments),
        parse,
        _LOOK_LIMIT_SECONDS,
        ("ls",),
    )
