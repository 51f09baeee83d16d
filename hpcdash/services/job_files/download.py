"""Copies of a job's files to this machine, over the open connection.

One way for every transport: a script on the login node streams the files, each with its size before
and its SHA-256 after it. SFTP is a second channel type, which many sites turn off, and which the
ssh program and the local machine do not offer.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import stat
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from hpcdash.domain.text import visible
from hpcdash.errors import (
    AuthenticationFailed,
    HostKeyChanged,
    HostKeyRefused,
    HpcdashError,
    UnreachableError,
    UsageError,
)
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.job_files.listing import (
    Depth,
    Entry,
    JobFolders,
    folder_query,
    show_path,
    to_text,
)
from hpcdash.services.job_files.local_folder import (
    LocalFolder,
    NotWritten,
    PartialFile,
    local_problem,
    split_name,
)
from hpcdash.shell_files import shell_text

# Names of one command: a login node takes 120 000 bytes, and a byte may need five.
MAX_NAMES_BYTES = 60_000
# Each has a file open here.
_MAX_FILES = 200
_ATTEMPTS = 4
NEEDS_A_PERSON = (AuthenticationFailed, HostKeyChanged, HostKeyRefused)
# Output of the script if it cannot enter the folder.
_NO_FOLDER = "no-folder"
_PROBLEMS = {
    "gone": "no longer a file there",
    "closed": "no permission to read it",
    "changed": "another file has its name now; copy it again",
}
_CUT_SHORT = "the copy was cut short; the next one continues"
_CHANGED = "it changed while it was copied; copy it again"
# Receives the name of a copy, how many of its bytes are there, and how many it will have.
OnProgress = Callable[[bytes, int, int], None]


class RemoteFile(Struct, frozen=True):
    """A file below a folder on the cluster, and the name of its copy below a local folder."""

    folder: bytes
    entry: Entry
    to: bytes

    @property
    def path(self) -> bytes:
        return os.path.join(self.folder, self.entry.name)


class Transfer(Struct, frozen=True):
    """Result of one file: copied, resumed, unchanged, skipped, left or failed, and the reason."""

    name: bytes
    result: str
    size: int | None = None
    problem: str = ""
    path: bytes = b""
    to: str = ""

    @property
    def is_failure(self) -> bool:
        return self.result in ("left", "failed")


class Selection(Struct, frozen=True):
    """The files below some paths, and entries that are not copied."""

    files: tuple[RemoteFile, ...]
    skipped: tuple[Transfer, ...] = ()

    @property
    def total(self) -> int:
        return sum(file.entry.size for file in self.files)


async def select_files(
    store: ClusterStore, folders: JobFolders, paths: Sequence[bytes]
) -> Selection:
    """Find the files of the named files and folders of a job.

    A folder's copy has its name. Raises UsageError for two paths with one name, and the errors of
    an unreachable cluster.
    """
    files: list[RemoteFile] = []
    skipped: list[Transfer] = []
    tops: dict[bytes, bytes] = {}
    for path in paths:
        folder = await store.run_query(folder_query(folders.resolve(path), Depth.DEEP))
        top = folder.entries[0].name if folder.is_file and folder.entries else folder.path
        top = os.path.basename(top)
        if tops.setdefault(top, path) != path or top in (b"", b".", b".."):
            raise UsageError(
                f"{show_path(path)} and {show_path(tops[top])} would have the same name here",
                "Copy one of them to another folder with --to.",
            )
        for note in folder.notes:
            skipped.append(Transfer(path, "failed", problem=note))
        for entry in folder.entries:
            to = top if folder.is_file else os.path.join(top, entry.name)
            if entry.kind == "file":
                files.append(RemoteFile(folder.path, entry, to))
            elif entry.kind != "folder":
                problem = f"a link to {show_path(entry.target)}" if entry.target else "not a file"
                problem += ": not copied"
                skipped.append(Transfer(to, "skipped", None, problem, folder.join(entry)))
    return Selection(tuple(files), tuple(skipped))


class Download:
    """Copies files to a local folder; what is there already is left, unless `may_replace`."""

    def __init__(
        self,
        store: ClusterStore,
        to: Path,
        *,
        may_replace: Callable[[RemoteFile, os.stat_result], bool] = lambda file, found: False,
        on_progress: OnProgress = lambda name, done, size: None,
        on_done: Callable[[RemoteFile, str], None] = lambda file, digest: None,
        seeds: bool = False,
    ) -> None:
        """`on_done` receives the SHA-256 of each complete copy.

        With `seeds`, a copy that replaces a shorter one begins with it: of a file that grows, only
        the rest is sent.
        """
        self._store = store
        self._to = to
        self._may_replace = may_replace
        self._on_progress = on_progress
        self._on_done = on_done
        self._seeds = seeds
        self.results: dict[bytes, Transfer] = {}

    async def run(self, files: Sequence[RemoteFile]) -> list[Transfer]:
        """Copy the files, and return what became of each.

        After a lost connection it continues where it was, some times. Raises the errors of an
        unreachable cluster, and NotWritten if the folder cannot be made; parts stay, and the next
        run continues with them.
        """
        folder = LocalFolder(self._to)
        try:
            left = await asyncio.to_thread(self._choose, folder, files)
            attempts = 1
            while left:
                count = len(self.results)
                try:
                    await self._copy(folder, left)
                except NEEDS_A_PERSON:
                    raise
                except UnreachableError:
                    attempts = 1 if len(self.results) > count else attempts + 1
                    if attempts > _ATTEMPTS:
                        raise
                    await self._store.transport.connect(force=True)
                left = [file for file in left if file.to not in self.results]
        finally:
            folder.close()
        return [self.results[file.to] for file in files]

    def _choose(self, folder: LocalFolder, files: Sequence[RemoteFile]) -> list[RemoteFile]:
        return [file for file in files if self._is_due(folder, file)]

    def _is_due(self, folder: LocalFolder, file: RemoteFile) -> bool:
        """Return whether to copy a file; note the reason if not."""
        try:
            split_name(file.to)
            found = folder.find(file.to)
        except NotWritten as error:
            self._note(file, "failed", error.message)
            return False
        if found is None or self._may_replace(file, found):
            return True
        is_same = stat.S_ISREG(found.st_mode) and found.st_size == file.entry.size
        if is_same and int(found.st_mtime) == int(file.entry.modified_at):
            self._note(file, "unchanged")
        else:
            self._note(file, "left", "exists here; --force replaces it")
        return False

    def _note(self, file: RemoteFile, result: str, problem: str = "", size: int = -1) -> None:
        size = file.entry.size if size < 0 else size
        to = str(self._to / os.fsdecode(file.to))
        self.results[file.to] = Transfer(
            file.to, result, size=size, problem=problem, path=file.path, to=to
        )

    async def _copy(self, folder: LocalFolder, files: Sequence[RemoteFile]) -> None:
        for batch in batches(files):
            opened: list[tuple[RemoteFile, PartialFile, str]] = []
            with contextlib.ExitStack() as stack:
                for file in batch:
                    try:
                        part = PartialFile(folder, file.to, file.path)
                        stack.callback(part.close)
                        digest = await asyncio.to_thread(self._read_part, part, file)
                    except OSError as error:
                        self._fail(file, local_problem(error))
                    except NotWritten as error:
                        self._fail(file, error)
                    else:
                        opened.append((file, part, digest))
                if opened:
                    await self._receive(opened)

    def _read_part(self, part: PartialFile, file: RemoteFile) -> str:
        if self._seeds:
            part.seed(file.entry.size)
        return part.read_part()

    async def _receive(self, files: Sequence[tuple[RemoteFile, PartialFile, str]]) -> None:
        """Receive a batch of one folder in one command."""
        token = secrets.token_hex(8)
        parts: list[str] = []
        for file, part, digest in files:
            parts += (to_text(file.entry.name), file.entry.identity, str(part.size), digest)
        script = shell_text("services/job_files/send_files.sh")
        argv = ("sh", "-c", script, "sh", token, to_text(files[0][0].folder), *parts)
        self._store.budget.spend()
        async with self._store.transport.stream(argv) as stream:
            frames = _Frames(aiter(stream), token.encode())
            for file, part, _ in files:
                try:
                    if not await self._receive_file(frames, file, part):
                        for other, _, _ in files:
                            self._note(other, "failed", "its folder is gone")
                        return
                except OSError as error:
                    self._fail(file, local_problem(error))
                    return
                except _Ended:
                    # Raises the error of a lost connection.
                    status = getattr(stream, "status", None)
                    problem = f"{_CUT_SHORT} (status {status})" if status else _CUT_SHORT
                    self._note(file, "failed", problem)
                    return

    async def _receive_file(self, frames: _Frames, file: RemoteFile, part: PartialFile) -> bool:
        """Receive one file; return whether its folder exists."""
        kind, *facts = await frames.header()
        if kind == _NO_FOLDER:
            return False
        if kind != "start" or len(facts) != 3:
            self._note(file, "failed", _PROBLEMS.get(kind, visible(kind)))
            part.remove()
            return True
        size, modified_at, begin = map(int, facts)
        is_resumed = begin > 0
        part.begin_at(begin)
        async for chunk in frames.content(size - begin):
            part.write(chunk)
            self._on_progress(file.to, part.size, size)
        kind, *facts = await frames.header()
        if kind != "sum" or facts != [part.sum]:
            part.remove()
            self._note(file, "failed", _CHANGED)
            return True
        await asyncio.to_thread(self._finish, file, part, modified_at, is_resumed)
        return True

    def _finish(
        self, file: RemoteFile, part: PartialFile, modified_at: float, is_resumed: bool
    ) -> None:
        found = part.folder.find(file.to)
        replaces = found is not None and self._may_replace(file, found)
        try:
            part.finish(modified_at, replaces=replaces)
        except FileExistsError:
            part.remove()
            self._note(file, "left", "exists here; --force replaces it")
        except NotWritten as error:
            self._note(file, "failed", error.message)
        else:
            self._on_done(file, part.sum)
            self._note(file, "resumed" if is_resumed else "copied", size=part.size)

    def _fail(self, file: RemoteFile, error: NotWritten) -> None:
        if not error.is_full:
            self._note(file, "failed", error.message)
            return
        raise HpcdashError(
            f"no room on this machine for {show_path(file.to)}: {error.message}",
            "What arrived stays beside it; make room and run the command again to continue.",
        )


class _Ended(Exception):
    """The output ended too early, or is no longer that of the script."""


class _Frames:
    """Headers and contents in the output of the script."""

    def __init__(self, chunks: AsyncIterator[bytes], token: bytes) -> None:
        self._chunks = chunks
        self._token = token
        self._rest = b""

    async def _more(self) -> None:
        try:
            self._rest += await anext(self._chunks)
        except StopAsyncIteration:
            raise _Ended from None

    async def header(self) -> list[str]:
        while b"\n" not in self._rest:
            if len(self._rest) > 1000:
                raise _Ended
            await self._more()
        line, _, self._rest = self._rest.partition(b"\n")
        token, _, facts = line.partition(b" ")
        if token != self._token:
            raise _Ended
        return facts.decode("ascii", "replace").split(" ")

    async def content(self, length: int) -> AsyncIterator[bytes]:
        while length > 0:
            if not self._rest:
                await self._more()
            chunk = self._rest[:length]
            self._rest = self._rest[length:]
            length -= len(chunk)
            yield chunk


def batches(files: Sequence[RemoteFile]) -> Iterator[list[RemoteFile]]:
    """Yield the files in batches of one folder whose names fit into a command."""
    batch: list[RemoteFile] = []
    size = 0
    for file in files:
        cost = 120 + 5 * len(file.entry.name)
        is_full = size + cost > MAX_NAMES_BYTES or len(batch) >= _MAX_FILES
        if batch and (is_full or file.folder != batch[0].folder):
            yield batch
            batch = []
            size = 0
        batch.append(file)
        size += cost
    if batch:
        yield batch
