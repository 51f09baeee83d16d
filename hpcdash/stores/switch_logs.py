"""What the log of a job tells of its switches: whether it grows, and what it says since a switch was dropped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hpcdash.domain.states import ACTIVE
from hpcdash.domain.switch_looks import log_words
from hpcdash.domain.switch_story import telling_line
from hpcdash.errors import CommandTimedOut, HpcdashError
from hpcdash.stores.cluster import ClusterStore
from hpcdash.stores.logs import files_of
from hpcdash.stores.switch_memory import LogMark
from hpcdash.stores.switch_scripts import Written, written_query

if TYPE_CHECKING:
    from hpcdash.stores.switches import Switch

Row = Mapping[str, Any]
_LONG_LINE = 16_000


class SwitchLog:
    """The output of the one job that runs, or of the first of an array's tasks that do."""

    def __init__(self, store: ClusterStore, switch: Switch, mark: LogMark | None = None) -> None:
        self._store = store
        self._switch = switch
        self._of = ""
        self._paths: tuple[str, ...] = ()
        self._why_none = ""
        self._read: list[int | None] = []
        self._said = ""
        self._mark = mark
        # How long each was the last time it was looked at.
        self._sizes: dict[str, int] = {}

    async def words(self, living: Sequence[Row]) -> str:
        """Whether it says that the job still looks for its switches; `living` are its rows. Raises nothing."""
        active = [row for row in living if row["state"] in ACTIVE]
        if not active:
            return "it waits: it looks for the switch once it starts" if living else "it has ended"
        try:
            await self._find(str(active[0]["id"]))
            if not self._paths:
                return self._why_none
            return self._grows(await self._ask([None] * len(self._paths)))
        except CommandTimedOut:
            return "the disk of its log does not answer: whether the job still looks is not known"
        except HpcdashError as error:
            return f"whether its log grows is not known: {error.message}"

    async def told(self, living: Sequence[Row]) -> tuple[str | None, str]:
        """(as `said`, None where it is not known from where on to read; as `words`) since the mark it was made with.

        Asks no more than `words` does. Raises nothing.
        """
        active = {str(row["id"]) for row in living if row["state"] in ACTIVE}
        if self._mark is not None and self._mark.job_id in active:
            await self.resume()
            if self._read:
                return await self.said()
        return None, await self.words(living)

    async def resume(self) -> None:
        """What was written since the mark it was made with is what `said` tells of, where the logs are the same."""
        if self._mark is None:
            return
        try:
            await self._find(self._mark.job_id)
        except HpcdashError:
            return
        if self._paths and set(self._paths) <= self._mark.sizes.keys():
            self._read, self._said = [self._mark.sizes[path] for path in self._paths], ""

    async def mark(self, living: Sequence[Row]) -> None:
        """What is written from now on is what `said` tells of. Where its end cannot be found, that tells nothing."""
        self._read, self._said, self._sizes = [], "", {}
        active = [row for row in living if row["state"] in ACTIVE]
        if not active:
            return
        try:
            await self._find(str(active[0]["id"]))
            if self._paths:
                await self._ask([None] * len(self._paths))
                self._read = [self._sizes[path] for path in self._paths]
        except HpcdashError:
            return

    @property
    def now(self) -> LogMark | None:
        """How long its files were when they were looked at last; None where they were not."""
        return LogMark(self._of, dict(self._sizes)) if self._sizes else None

    @property
    def is_marked(self) -> bool:
        return bool(self._read)

    async def said(self) -> tuple[str, str]:
        """(the line since the mark that tells best of the switch, '' where none does; whether the log grows, in words).

        Raises nothing.
        """
        try:
            found = await self._ask(self._read)
        except HpcdashError as error:
            return self._said, f"whether its log grows is not known: {error.message}"
        for at, one in enumerate(found):
            if one is None:
                continue
            text = one.text
            # A line that is being written is read again; one that fills all that is read at once is not.
            whole = text[: max(text.rfind("\n"), text.rfind("\r")) + 1] or (text if len(text) > _LONG_LINE else "")
            self._said = telling_line(self._switch.kind, whole, self._said)
            read = (self._read[at] or 0) + len(whole.encode("utf-8", "surrogateescape"))
            self._read[at] = read if read <= one.size else 0
        return self._said, self._grows(found)

    async def _ask(self, read: Sequence[int | None]) -> tuple[Written | None, ...]:
        found = await self._store.ask(written_query(self._paths, read))
        self._sizes = {path: one.size if one else 0 for path, one in zip(self._paths, found, strict=True)}
        return found

    def _grows(self, found: Sequence[Written | None]) -> str:
        ages = [one.age_seconds for one in found if one is not None and one.age_seconds is not None]
        return log_words(min(ages, default=None), "its log is not there yet")

    async def _find(self, job_id: str) -> None:
        if self._of == job_id:
            return
        detail = self._switch.detail
        if job_id != detail.job["id"][0].as_py():
            detail = await self._store.fetch_detail(job_id)
        files = await files_of(self._store, job_id, detail)
        self._of, self._paths = job_id, ()
        if files.host:
            self._why_none = f"its log is on {files.host}'s own disk: whether it grows is not known"
            return
        self._paths = tuple(path for path in (files.stdout, files.stderr) if path and "\0" not in path)
        self._why_none = log_words(None, files.note)
