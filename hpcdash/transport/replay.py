"""A transport that answers from a recorded case, without a cluster and with a fixed clock."""

from __future__ import annotations

import asyncio
import difflib
import os
import re
from collections.abc import AsyncIterator, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from posixpath import normpath
from typing import TYPE_CHECKING

from msgspec.structs import replace

from hpcdash.backends.tokens import RECORDED_TOKEN
from hpcdash.domain.text import clip
from hpcdash.errors import CommandTimedOut, NotRecorded, UsageError, readable_command, without_env
from hpcdash.recorded import RecordedAnswer, find_token, load_case, normalised_argv
from hpcdash.transport.base import (
    DEFAULT_CAP_BYTES,
    DEFAULT_LIMIT_SECONDS,
    CommandResult,
    Health,
    OnOutput,
    Pipe,
    Stream,
)
from hpcdash.transport.local import LocalTransport

if TYPE_CHECKING:
    from hpcdash.transport.terminal import Terminal

# A case's folder for files of the cluster, under their paths on it.
FILES_FOLDER = "files"
_STREAM_CHUNK_BYTES = 1 << 16
_MAX_WORD_CHARACTERS = 60


class ReplayTransport:
    """Implements hpcdash.transport.base.Transport over a folder of fixtures/ (hpcdash.recorded).

    `clock` is the recording's time in epoch seconds, `user` its account, `backend` the scheduler of
    its commands. Answers are immediate, or take as long as they did with `keep_delays`; a command
    that timed out times out again.

    The scripts of `file_readers` must only read files: they run in this machine's sh, on the files
    in FILES_FOLDER.
    """

    def __init__(
        self,
        case_directory: Path | str,
        *,
        name: str = "",
        keep_delays: bool = False,
        file_readers: Collection[str] = (),
    ) -> None:
        self.case = load_case(Path(case_directory))
        self.name = name or self.case.directory.name
        self.health = Health()
        self.clock = self.case.clock_epoch_seconds
        self.user = self.case.user
        self.backend = self.case.backend
        self._keep_delays = keep_delays
        self._answer_counts: dict[tuple[str, ...], int] = {}
        self._file_readers = frozenset(file_readers)
        self._files = self.case.directory.resolve() / FILES_FOLDER

    async def connect(self, *, force: bool = False) -> None:
        about = f"a recording: {self.case.about}" if self.case.about else "a recording"
        self.health.set_state("connected", about)
        self.health.connected_at = self.clock

    async def run(
        self,
        argv: tuple[str, ...],
        *,
        stdin: bytes | None = None,
        limit_seconds: float = DEFAULT_LIMIT_SECONDS,
        cap_bytes: int = DEFAULT_CAP_BYTES,
        on_output: OnOutput | None = None,
        on_stdout: OnOutput | None = None,
    ) -> CommandResult:
        """Return the recorded answer, whatever the stdin; raises NotRecorded or CommandTimedOut."""
        await self.connect()
        parts = without_env(argv)
        is_reader = parts[:2] == ("sh", "-c") and parts[2] in self._file_readers
        is_recorded = normalised_argv(argv) in self.case.answers
        if is_reader and not is_recorded and self._files.is_dir():
            return await self._run_on_files(argv, limit_seconds, cap_bytes)
        answer = self._next_answer(argv)
        if self._keep_delays:
            await asyncio.sleep(min(answer.seconds, limit_seconds))
        if answer.seconds > limit_seconds:
            raise CommandTimedOut(
                f"did not respond within {limit_seconds:g} s",
                "Retrying automatically.",
                argv=argv,
                status=None,
            )
        stdout = _recorded_stdout(answer, argv)
        stderr = answer.stderr_file.read_bytes() if answer.stderr_file else b""
        return CommandResult(
            argv=argv,
            status=answer.status,
            stdout=stdout[:cap_bytes],
            stderr=stderr,
            seconds=answer.seconds,
            truncated=answer.truncated or len(stdout) > cap_bytes,
        )

    @asynccontextmanager
    async def stream(self, argv: tuple[str, ...]) -> AsyncIterator[Stream]:
        """Stream the recorded stdout."""
        await self.connect()
        answer = self._next_answer(argv)
        yield _chunks(_recorded_stdout(answer, argv))

    def open_pipe(self, argv: tuple[str, ...]) -> AbstractAsyncContextManager[Pipe]:
        """Raise UsageError: a recording has no machine."""
        raise UsageError("a recording has no machine to run a command on")

    async def adopt_login_environment(self) -> bool:
        """Return False: a recording has no login shell."""
        return False

    def prepend_path(self, folder: str) -> None:
        """Do nothing, as recorded answers do not depend on a PATH."""

    async def interact(self, argv: tuple[str, ...], terminal: Terminal) -> int | None:
        """Raise UsageError: a recording has no machine."""
        raise UsageError("a recording has no machine to run a shell on")

    async def close(self) -> None:
        self.health.state = "idle"

    async def _run_on_files(
        self, argv: tuple[str, ...], limit_seconds: float, cap_bytes: int
    ) -> CommandResult:
        """Run a script on the recorded files; its output has the recording's time and user."""
        parts = without_env(argv)
        arguments = [
            f"{self._files}{normpath(word)}" if word.startswith("/") else word for word in parts[3:]
        ]
        result = await LocalTransport().run(
            (*parts[:3], *arguments), limit_seconds=limit_seconds, cap_bytes=cap_bytes
        )
        stdout = result.stdout.replace(os.fsencode(self._files), b"")
        # `TOKEN there DEVICE:INODE SIZE MODIFIED BEGIN OWNER`
        file_line = re.escape(os.fsencode(parts[4])) + rb" there [0-9]+:[0-9]+ [0-9]+ "
        recorded = rb"\g<1>%d\g<2>%b" % (self.clock, self.user.encode())
        stdout = re.sub(rb"(" + file_line + rb")[0-9]+( [0-9]+ )[^\n]*", recorded, stdout)
        return replace(result, argv=argv, stdout=stdout)

    def _next_answer(self, argv: tuple[str, ...]) -> RecordedAnswer:
        requested = normalised_argv(argv)
        answers = self.case.answers.get(requested)
        if answers is None:
            next_step = "A recording is read-only and contains only recorded answers."
            if self.case.answers:
                nearest = max(self.case.answers, key=lambda argv: _similarity(argv, requested))
                next_step += f" Nearest recorded command: {_shown(nearest)}"
            raise NotRecorded(
                f"the recording {self.case.directory.name!r} has no answer for: "
                f"{_shown(requested)}",
                next_step,
            )
        count = self._answer_counts.get(requested, 0)
        self._answer_counts[requested] = count + 1
        return answers[min(count, len(answers) - 1)]


async def _chunks(raw: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(raw), _STREAM_CHUNK_BYTES):
        yield raw[start : start + _STREAM_CHUNK_BYTES]


def _recorded_stdout(answer: RecordedAnswer, argv: tuple[str, ...]) -> bytes:
    raw = answer.stdout_file.read_bytes() if answer.stdout_file else b""
    token = find_token(argv)
    return raw if token is None else raw.replace(RECORDED_TOKEN.encode(), token.encode())


def _similarity(argv: tuple[str, ...], requested: tuple[str, ...]) -> tuple[bool, float]:
    """Return the sort key of a command's similarity: the same program first, then its arguments."""
    matcher = difflib.SequenceMatcher(None, requested, argv, autojunk=False)
    return argv[:1] == requested[:1], matcher.ratio()


def _shown(argv: tuple[str, ...]) -> str:
    return readable_command(tuple(clip(word, _MAX_WORD_CHARACTERS) for word in argv))
