"""Copies of files of this machine to a job's folder, over the open connection."""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import stat
import time
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

from msgspec import Struct

from hpcdash.backends.actions import ActionCommand, Outcome, Verb
from hpcdash.backends.queries import Answer, refused
from hpcdash.domain.text import counted
from hpcdash.domain.units import format_memory
from hpcdash.errors import (
    CommandTimedOut,
    HpcdashError,
    UnreachableError,
    UsageError,
)
from hpcdash.services.job_files.download import (
    MAX_NAMES_BYTES,
    NEEDS_A_PERSON,
    OnProgress,
    Transfer,
)
from hpcdash.services.job_files.listing import show_path, to_text
from hpcdash.services.session import ClusterSession
from hpcdash.services.state.journal import JournalUnwritable
from hpcdash.shell_files import shell_text

_READ_BYTES = 1 << 20
_FIRST_PIECE_BYTES = 1 << 20
_LAST_PIECE_BYTES = 16 << 20
# A piece should take about this long, so that progress is seen and little is lost with the line.
_PIECE_SECONDS = 2.0
_MAX_FILES = 200
_ATTEMPTS = 4
_MIN_BYTES_A_SECOND = 50_000
_MIN_READ_BYTES_A_SECOND = 20_000_000
_PROBLEMS = {
    "exists": "exists there; --force replaces it",
    "way": "a link or a file of somebody else is in the way there",
    "damaged": "arrived damaged; copy it again",
    "short": "another hpcdash is copying this file, or it was cut short; copy it again",
}
_FULL = "no room there, or no permission to write"


class LocalFile(Struct):
    """A file of this machine, and the name of its copy below the folder there."""

    path: bytes
    name: bytes
    size: int
    modified_ns: int
    # How much of it is there, and the SHA-256 of that.
    sent: int = 0
    sum: Any = None
    is_resumed: bool = False

    @property
    def part(self) -> str:
        """Name that it has there until it is complete."""
        digest = hashlib.sha256(os.path.abspath(self.path) + b"\0" + self.name)
        return f"{digest.hexdigest()[:16]}.part"

    def open(self) -> BinaryIO:
        """Open it, though a link or a pipe may have replaced it. Raises OSError."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        return os.fdopen(os.open(self.path, flags), "rb")


def find_local_files(paths: Sequence[bytes]) -> tuple[list[LocalFile], list[Transfer]]:
    """Find the regular files of some paths, and what is not copied; no link is followed.

    Raises UsageError for a missing path, and for two with the same name.
    """
    files: list[LocalFile] = []
    skipped: list[Transfer] = []
    tops: dict[bytes, bytes] = {}
    for path in paths:
        absolute = os.path.abspath(path)
        top = os.path.basename(absolute)
        if not os.path.lexists(path):
            raise UsageError(f"{show_path(path)} does not exist on this machine")
        if not top or tops.setdefault(top, absolute) != absolute:
            raise UsageError(f"{show_path(path)} has the same name as another file")
        for file in _walk(absolute):
            name = os.path.join(top, os.path.relpath(file, absolute)) if file != absolute else top
            found = os.lstat(file)
            if stat.S_ISREG(found.st_mode):
                files.append(LocalFile(file, name, found.st_size, found.st_mtime_ns))
            else:
                kind = "a link" if stat.S_ISLNK(found.st_mode) else "not a regular file"
                skipped.append(Transfer(name, "skipped", None, f"{kind}: not copied", file))
    return files, skipped


def _walk(path: bytes) -> Iterator[bytes]:
    """Yield a file, or everything below a folder but folders."""
    if os.path.islink(path) or not os.path.isdir(path):
        yield path
        return
    with os.scandir(path) as entries:
        for entry in sorted(entries, key=lambda one: one.name):
            yield from _walk(entry.path)


class Upload:
    """Copies files to a folder of a job; what is there already is left, unless `force`."""

    def __init__(
        self,
        session: ClusterSession,
        job_id: str,
        folder: bytes,
        *,
        force: bool = False,
        on_progress: OnProgress = lambda name, done, size: None,
    ) -> None:
        """`folder` is a real path; `on_progress` receives a file's name, bytes there, and size."""
        self._session = session
        self._store = session.store
        self._job_id = job_id
        self._folder = folder
        self._force = force
        self._on_progress = on_progress
        self._piece_bytes = _FIRST_PIECE_BYTES
        self._results: dict[bytes, Transfer] = {}

    async def run(self, files: Sequence[LocalFile]) -> list[Transfer]:
        """Copy the files, write that to the journal, and return what became of each.

        After a lost connection it continues where it was, some times. Raises the errors of an
        unreachable cluster; what arrived stays there, and the next run continues.
        """
        journal = self._session.actions.journal
        total = format_memory(sum(file.size for file in files))
        shown = ("put", counted(len(files), "file"), f"({total})", show_path(self._folder))
        try:
            action_id = await asyncio.to_thread(
                journal.before,
                cluster=self._session.name,
                user=self._store.user,
                verb=Verb.PUT_FILES,
                job_ids=(self._job_id,),
                commands=(shown,),
            )
        except JournalUnwritable as error:
            raise HpcdashError(f"not copied: {error.message}", error.next_step) from error
        try:
            await self._run(files)
        finally:
            failed = sum(one.is_failure for one in self._results.values())
            done = not failed and len(self._results) == len(files)
            text = f"{len(self._results) - failed} of {counted(len(files), 'file')} copied"
            after = asyncio.to_thread(journal.after, action_id, [Outcome(self._job_id, done, text)])
            await asyncio.shield(asyncio.ensure_future(after))
        return [self._results[file.name] for file in files]

    async def _run(self, files: Sequence[LocalFile]) -> None:
        left = list(files)
        attempts = 1
        while left:
            before = (len(self._results), sum(file.sent for file in files))
            try:
                for batch in _batches(left):
                    await self._check(batch)
                    await self._send_all([one for one in batch if one.name not in self._results])
            except NEEDS_A_PERSON:
                raise
            except (UnreachableError, CommandTimedOut):
                now = (len(self._results), sum(file.sent for file in files))
                attempts = 1 if now > before else attempts + 1
                if attempts > _ATTEMPTS:
                    raise
                await self._store.transport.connect(force=True)
            left = [file for file in left if file.name not in self._results]

    async def _check(self, files: Sequence[LocalFile]) -> None:
        """Find what is there: complete files, and parts to continue with."""
        token = secrets.token_hex(8)
        parts = [word for one in files for word in (to_text(one.name), one.part, str(one.size))]
        script = shell_text(
            "services/job_files/private_part.sh", "services/job_files/check_received.sh"
        )
        limit = 60 + sum(one.size for one in files) / _MIN_READ_BYTES_A_SECOND
        argv = ("sh", "-c", script, "sh", token, to_text(self._folder), *parts)
        answer = await self._act(argv, b"", limit)
        for file, line in zip(files, _answers(answer, token, len(files)), strict=True):
            there, target, size, digest = (line.split(" ") + [""] * 4)[:4]
            try:
                if there == "same" and target == await asyncio.to_thread(_sum, file, file.size):
                    self._note(file, "unchanged")
                elif there in ("exists", "same") and not self._force:
                    self._note(file, "left", _PROBLEMS["exists"])
                else:
                    await asyncio.to_thread(_continue, file, int(size or 0), digest)
            except OSError as error:
                self._note(file, "failed", error.strerror or "cannot be read")

    async def _send_all(self, files: Sequence[LocalFile]) -> None:
        """Send files: several small ones in one command, a large one in pieces."""
        left = list(files)
        while left:
            pieces: list[tuple[LocalFile, bytes, str]] = []
            room = self._piece_bytes
            for file in left:
                if room <= 0 and pieces:
                    break
                try:
                    content, digest = await asyncio.to_thread(_read_piece, file, max(room, 1))
                except OSError as error:
                    self._note(file, "failed", error.strerror or "cannot be read")
                    continue
                pieces.append((file, content, digest))
                room -= len(content)
            if pieces:
                await self._send(pieces)
            left = [file for file in left if file.name not in self._results]

    async def _send(self, pieces: Sequence[tuple[LocalFile, bytes, str]]) -> None:
        token = secrets.token_hex(8)
        parts: list[str] = []
        for file, content, digest in pieces:
            parts += (to_text(file.name), file.part, str(file.sent), str(len(content)), digest)
        script = shell_text(
            "services/job_files/private_part.sh", "services/job_files/receive_files.sh"
        )
        force = "force" if self._force else ""
        argv = ("sh", "-c", script, "sh", token, to_text(self._folder), force, *parts)
        stdin = b"".join(content for _, content, _ in pieces)
        started = time.monotonic()
        whole = sum(file.size for file, _, digest in pieces if digest)
        limit = 60 + len(stdin) / _MIN_BYTES_A_SECOND + whole / _MIN_READ_BYTES_A_SECOND
        answer = await self._act(argv, stdin, limit)
        seconds = time.monotonic() - started
        if seconds < _PIECE_SECONDS:
            self._piece_bytes = min(2 * self._piece_bytes, _LAST_PIECE_BYTES)
        elif seconds > 2 * _PIECE_SECONDS:
            self._piece_bytes = max(self._piece_bytes // 2, _FIRST_PIECE_BYTES)
        results = _answers(answer, token, len(pieces))
        for (file, content, _), result in zip(pieces, results, strict=True):
            if result in ("part", "whole"):
                file.sent += len(content)
                self._on_progress(file.name, file.sent, file.size)
                if result == "whole":
                    self._note(file, "resumed" if file.is_resumed else "copied")
            elif result == "full":
                raise HpcdashError(
                    f"{show_path(file.name)}: {_FULL}: {show_path(self._folder)}",
                    "Its part was removed there. Make room and run the command again.",
                )
            else:
                self._note(
                    file, "left" if result == "exists" else "failed", _PROBLEMS.get(result, result)
                )

    async def _act(self, argv: tuple[str, ...], stdin: bytes, limit: float) -> Answer:
        command = ActionCommand(
            argv, (self._job_id,), lambda answer: (), stdin=stdin, limit_seconds=limit
        )
        return await self._store.act(command)

    def _note(self, file: LocalFile, result: str, problem: str = "") -> None:
        to = to_text(os.path.join(self._folder, file.name))
        self._results[file.name] = Transfer(
            file.name, result, size=file.size, problem=problem, path=file.path, to=to
        )


def _answers(answer: Answer, token: str, count: int) -> list[str]:
    lines = answer.stdout.decode("ascii", "replace").splitlines()
    found = [line.removeprefix(f"{token} ") for line in lines if line.startswith(f"{token} ")]
    if len(found) != count:
        raise refused(answer, "the login node did not receive the files")
    return found


def _batches(files: Sequence[LocalFile]) -> Iterator[list[LocalFile]]:
    batch: list[LocalFile] = []
    size = 0
    for file in files:
        cost = 200 + 5 * len(file.name)
        if batch and (size + cost > MAX_NAMES_BYTES or len(batch) >= _MAX_FILES):
            yield batch
            batch = []
            size = 0
        batch.append(file)
        size += cost
    if batch:
        yield batch


def _sum(file: LocalFile, length: int) -> str:
    return str(_begin_sum(file, length).hexdigest())


def _begin_sum(file: LocalFile, length: int) -> Any:
    found = hashlib.sha256()
    with file.open() as stream:
        while length > 0 and (chunk := stream.read(min(_READ_BYTES, length))):
            found.update(chunk)
            length -= len(chunk)
    return found


def _continue(file: LocalFile, size: int, digest: str) -> None:
    """Continue after the part that is there, if the file begins with it."""
    file.sent = 0
    file.sum = hashlib.sha256()
    if 0 < size <= file.size:
        found = _begin_sum(file, size)
        if found.hexdigest() == digest:
            file.sum = found
            file.sent = size
            file.is_resumed = True


def _read_piece(file: LocalFile, length: int) -> tuple[bytes, str]:
    """Read the next piece; of the last one, also the SHA-256 of the whole file."""
    assert file.sum is not None
    with file.open() as stream:
        found = os.fstat(stream.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_mtime_ns != file.modified_ns:
            raise OSError(0, "it changed while it was copied; copy it again")
        stream.seek(file.sent)
        content = stream.read(min(length, file.size - file.sent))
    file.sum.update(content)
    is_last = file.sent + len(content) == file.size
    return content, file.sum.hexdigest() if is_last else ""
