"""What the log of a job tells of its switches: whether it grows, and what it says since a switch was dropped.

Knows no screen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hpcdash.domain.states import ACTIVE
from hpcdash.domain.switch_looks import log_words
from hpcdash.domain.switch_story import telling_line
from hpcdash.errors import CommandTimedOut, HpcdashError
from hpcdash.stores.cluster import ClusterStore
from hpcdash.stores.logs import files_of
from hpcdash.stores.switch_scripts import log_age_query, written_query

if TYPE_CHECKING:
    from hpcdash.stores.switches import Switch

Row = Mapping[str, Any]
_LONG_LINE = 16_000


class SwitchLog:
    """The output of the one job that runs, or of the first of an array's tasks that do."""

    def __init__(self, store: ClusterStore, switch: Switch) -> None:
        self._store = store
        self._switch = switch
        self._of = ""
        self._paths: tuple[str, ...] = ()
        self._why_none = ""
        self._read: list[int | None] = []
        self._said = ""

    async def words(self, living: Sequence[Row]) -> str:
        """Whether it says that the job still looks for its switches; `living` are its rows. Raises nothing."""
        active = [row for row in living if row["state"] in ACTIVE]
        if not active:
            return "it waits: it looks for the switch once it starts" if living else "it has ended"
        try:
            await self._find(str(active[0]["id"]))
            if not self._paths:
                return self._why_none
            age = await self._store.ask(log_age_query(self._paths))
        except CommandTimedOut:
            return "the disk of its log does not answer: whether the job still looks is not known"
        except HpcdashError as error:
            return f"whether its log grows is not known: {error.message}"
        return log_words(age, "its log is not there yet")

    async def mark(self, living: Sequence[Row]) -> None:
        """What is written from now on is what `said` tells of. Where its end cannot be found, that tells nothing."""
        self._read, self._said = [], ""
        active = [row for row in living if row["state"] in ACTIVE]
        if not active:
            return
        try:
            await self._find(str(active[0]["id"]))
            if self._paths:
                found = await self._store.ask(written_query(self._paths, [None] * len(self._paths)))
                self._read = [one.size if one else 0 for one in found]
        except HpcdashError:
            return

    @property
    def is_marked(self) -> bool:
        return bool(self._read)

    async def said(self) -> tuple[str, str]:
        """(the line since the mark that tells best of the switch, '' where none does; whether the log grows, in words).

        Raises nothing.
        """
        try:
            found = await self._store.ask(written_query(self._paths, self._read))
        except HpcdashError as error:
            return self._said, f"whether its log grows is not known: {error.message}"
        ages = [one.age_seconds for one in found if one is not None and one.age_seconds is not None]
        for at, one in enumerate(found):
            if one is None:
                continue
            text = one.text
            # A line that is being written is read again; one that fills all that is read at once is not.
            whole = text[: max(text.rfind("\n"), text.rfind("\r")) + 1] or (text if len(text) > _LONG_LINE else "")
            self._said = telling_line(self._switch.kind, whole, self._said)
            read = (self._read[at] or 0) + len(whole.encode("utf-8", "surrogateescape"))
            self._read[at] = read if read <= one.size else 0
        return self._said, log_words(min(ages, default=None), "its log is not there yet")

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
