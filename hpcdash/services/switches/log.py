"""Log of a switch's job: the line that reports on the switch, and whether it grows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hpcdash.domain.states import ACTIVE
from hpcdash.domain.switch_text import best_log_line, format_log
from hpcdash.errors import CommandTimedOut, HpcdashError
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.files import Chunk
from hpcdash.services.logs.locate import fetch_log_files
from hpcdash.services.switches.names import LogMark
from hpcdash.services.switches.scripts import written_query
from hpcdash.services.switches.switches import Switch

Row = Mapping[str, Any]
_LONG_LINE = 16_000


class SwitchLog:
    """The output of the one job that runs, or of the first of an array's tasks that do.

    `mark` has the sizes of the logs when the switch was dropped from here last.
    """

    def __init__(self, store: ClusterStore, switch: Switch, mark: LogMark | None = None) -> None:
        self._store = store
        self._switch = switch
        self._mark = mark
        # The job whose logs are known, their paths, and why there are none.
        self._job_id = ""
        self._paths: tuple[str, ...] = ()
        self._why_none = ""
        # Bytes of each file that were read since the mark, with what was there before.
        self._read: dict[str, int] = {}
        self._marked_job = ""
        self._last_line = ""
        # Size of each at the last check.
        self._sizes: dict[str, int] = {}

    async def read(self, living: Sequence[Row], *, is_dropped: bool) -> tuple[str | None, str]:
        """Read what the log reports of the switch, and whether it shows that the job still checks
        its switches; raises nothing.

        The first value is the line since the mark that reports best, '' for none, None where it is
        unknown; it is read if the switch `is_dropped`. `living` are rows of its jobs.
        """
        active = _active_ids(living)
        message: str | None = None
        text = "pending: checks for the switch after the start" if living else "the job has ended"
        try:
            if is_dropped and self._read:
                message, text_now = await self._read_new_lines()
                if self._marked_job in active:
                    return message, text_now
            if active:
                await self._find(active[0])
                text = self._why_none
                if self._paths:
                    text = self._format_growth(await self._read_logs(dict.fromkeys(self._paths)))
        except CommandTimedOut:
            text = "the disk with the log does not respond: cannot tell whether the job still runs"
        except HpcdashError as error:
            text = f"cannot tell whether the log is growing: {error.message}"
        return message, text

    async def resume(self) -> None:
        """Make `read` cover the output since the given mark, if the logs are the same."""
        if self._mark is None:
            return
        try:
            await self._find(self._mark.job_id)
        except HpcdashError:
            return
        if self._paths and set(self._paths) <= self._mark.sizes.keys():
            self._start({path: self._mark.sizes[path] for path in self._paths})

    async def mark(self, living: Sequence[Row]) -> None:
        """Make `read` cover the output from now on.

        If the end of the logs cannot be found, it reports nothing.
        """
        self._start({})
        self._sizes = {}
        active = _active_ids(living)
        if not active:
            return
        try:
            await self._find(active[0])
            if self._paths:
                await self._read_logs(dict.fromkeys(self._paths))
                self._start(dict(self._sizes))
        except HpcdashError:
            return

    def _start(self, read: dict[str, int]) -> None:
        self._read = read
        self._marked_job = self._job_id
        self._last_line = ""

    @property
    def now(self) -> LogMark | None:
        """Sizes of its files at the last check; None if there was none."""
        return LogMark(self._job_id, dict(self._sizes)) if self._sizes else None

    async def _read_new_lines(self) -> tuple[str, str]:
        """Return the line since the mark that reports best on the switch, '' for none, and text on
        the log's growth; raises nothing.
        """
        try:
            chunks = await self._read_logs(self._read)
        except HpcdashError as error:
            return self._last_line, f"cannot tell whether the log is growing: {error.message}"
        for path, chunk in zip(self._read, chunks, strict=True):
            if not chunk.stat.is_there:
                continue
            text = chunk.content.decode("utf-8", "surrogateescape")
            # An incomplete line is read again, unless it fills all that is read at once.
            end = max(text.rfind("\n"), text.rfind("\r")) + 1
            if not end and len(text) > _LONG_LINE:
                end = len(text)
            self._last_line = best_log_line(self._switch.kind, text[:end], self._last_line)
            read = self._read[path] + len(text[:end].encode("utf-8", "surrogateescape"))
            self._read[path] = read if read <= chunk.stat.size else 0
        return self._last_line, self._format_growth(chunks)

    async def _read_logs(self, read: Mapping[str, int | None]) -> tuple[Chunk, ...]:
        chunks = await self._store.run_query(written_query(read))
        self._sizes = {path: chunk.stat.size for path, chunk in zip(read, chunks, strict=True)}
        return chunks

    def _format_growth(self, chunks: Sequence[Chunk]) -> str:
        ages = [chunk.stat.age_seconds for chunk in chunks if chunk.stat.age_seconds is not None]
        is_there = any(chunk.stat.is_there for chunk in chunks)
        unknown = "the log's last write time is unknown" if is_there else "no log yet"
        return format_log(min(ages, default=None), unknown)

    async def _find(self, job_id: str) -> None:
        if self._job_id == job_id:
            return
        detail = self._switch.detail
        if job_id != detail.job["id"][0].as_py():
            detail = await self._store.fetch_detail(job_id)
        files = await fetch_log_files(self._store, job_id, detail)
        self._job_id = job_id
        self._paths = ()
        if files.host:
            self._why_none = (
                f"the log is on {files.host}'s local disk: cannot tell whether it is growing"
            )
            return
        self._paths = tuple(
            path for path in (files.stdout, files.stderr) if path and "\0" not in path
        )
        self._why_none = format_log(None, files.note)


def _active_ids(living: Sequence[Row]) -> list[str]:
    return [str(row["id"]) for row in living if row["state"] in ACTIVE]
