"""A transport that answers from a recorded case: no cluster, and a clock that stands still."""

from __future__ import annotations

import asyncio
import difflib
import os
import re
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from posixpath import normpath
from typing import TYPE_CHECKING

from msgspec.structs import replace

from hpcdash.backends.tokens import RECORDED_TOKEN
from hpcdash.errors import CommandTimedOut, NotRecorded, UsageError, readable_command, without_env
from hpcdash.recorded import RecordedAnswer, find_token, load_case, normalised_argv
from hpcdash.transport.base import (
    DEFAULT_CAP_BYTES,
    DEFAULT_LIMIT_SECONDS,
    CommandResult,
    Health,
    OnOutput,
    Stream,
)
from hpcdash.transport.local import LocalTransport

if TYPE_CHECKING:
    from hpcdash.transport.terminal import Terminal

# Below it a case has files of the cluster, under the paths they had there.
FILES_FOLDER = "files"
_STREAM_CHUNK_BYTES = 1 << 16
_LONGEST_SHOWN_WORD = 60


class ReplayTransport:
    """Implements hpcdash.transport.base.Transport over a folder of fixtures/; see hpcdash.recorded
    for its format.

    `clock` is the recording's moment in epoch seconds, `user` who made it, `backend` whose commands
    it holds. Answers come at once; with `keep_delays` they take as long as they did. A command
    given up on in its time is given up on here as well. `asked` lists every command that was run,
    from the program on.

    A script of `file_readers`, which must only read files, runs in this machine's sh, on the files
    below FILES_FOLDER.
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
        self.asked: list[tuple[str, ...]] = []
        self._keep_delays = keep_delays
        self._given: dict[tuple[str, ...], int] = {}
        self._file_readers = frozenset(file_readers)
        self._files = self.case.directory.resolve() / FILES_FOLDER

    async def connect(self, *, force: bool = False) -> None:
        self.health.state = "connected"
        self.health.detail = f"a recording: {self.case.about}" if self.case.about else "a recording"
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
        """The recorded answer; `stdin` takes no part in finding it.

        Raises NotRecorded, or CommandTimedOut.
        """
        await self.connect()
        if self._reads_files(argv):
            return await self._run_on_files(argv, limit_seconds, cap_bytes)
        answer = self._next_answer(argv)
        self.asked.append(without_env(argv))
        if self._keep_delays:
            await asyncio.sleep(min(answer.seconds, limit_seconds))
        if answer.seconds > limit_seconds:
            raise CommandTimedOut(
                f"did not answer within {limit_seconds:g} s",
                "Retrying automatically.",
                argv=argv,
                status=None,
            )
        stdout = _recorded_stdout(answer, argv)
        stderr = answer.stderr_file.read_bytes() if answer.stderr_file else b""
        self.health.last_seconds = answer.seconds
        truncated = answer.truncated or len(stdout) > cap_bytes
        return CommandResult(
            argv, answer.status, stdout[:cap_bytes], stderr, answer.seconds, truncated
        )

    @asynccontextmanager
    async def stream(self, argv: tuple[str, ...]) -> AsyncIterator[Stream]:
        """The recorded stdout, after which the stream ends."""
        await self.connect()
        answer = self._next_answer(argv)
        self.asked.append(without_env(argv))
        yield _chunks(_recorded_stdout(answer, argv))

    async def adopt_login_environment(self) -> bool:
        """False: a recording has none."""
        return False

    def prepend_path(self, folder: str) -> None:
        """A recording answers whatever the PATH."""

    async def interact(self, argv: tuple[str, ...], terminal: Terminal) -> int | None:
        """A recording has no machine."""
        raise UsageError("a recording has no machine that a shell could run on")

    async def close(self) -> None:
        self.health.state = "idle"

    def _reads_files(self, argv: tuple[str, ...]) -> bool:
        parts = without_env(argv)
        is_reader = parts[:2] == ("sh", "-c") and parts[2] in self._file_readers
        return is_reader and normalised_argv(argv) not in self.case.answers and self._files.is_dir()

    async def _run_on_files(
        self, argv: tuple[str, ...], limit_seconds: float, cap_bytes: int
    ) -> CommandResult:
        """Run a script on the recorded files, which have the recording's time and user."""
        parts = without_env(argv)
        self.asked.append(parts)
        there = tuple(
            f"{self._files}{normpath(word)}" if word.startswith("/") else word for word in parts[3:]
        )
        done = await LocalTransport().run(
            (*parts[:3], *there), limit_seconds=limit_seconds, cap_bytes=cap_bytes
        )
        stdout = done.stdout.replace(os.fsencode(self._files), b"")
        # `TOKEN there DEVICE:INODE SIZE MODIFIED BEGIN OWNER`
        found = re.escape(os.fsencode(parts[4])) + rb" there [0-9]+:[0-9]+ [0-9]+ "
        written = rb"\g<1>%d\g<2>%b" % (self.clock, self.user.encode())
        stdout = re.sub(rb"(" + found + rb")[0-9]+( [0-9]+ )[^\n]*", written, stdout)
        return replace(done, argv=argv, stdout=stdout)

    def _next_answer(self, argv: tuple[str, ...]) -> RecordedAnswer:
        requested = normalised_argv(argv)
        answers = self.case.answers.get(requested)
        if answers is None:
            raise self._not_recorded(requested)
        given = self._given.get(requested, 0)
        self._given[requested] = given + 1
        return answers[min(given, len(answers) - 1)]

    def _not_recorded(self, requested: tuple[str, ...]) -> NotRecorded:
        nearest = _nearest(requested, list(self.case.answers))
        return NotRecorded(
            f"the recording {self.case.directory.name!r} has no answer to: {_shown(requested)}",
            "A recording is read-only, and has only the answers recorded then."
            + (f" Nearest recorded command: {_shown(nearest)}" if nearest else ""),
        )


async def _chunks(raw: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(raw), _STREAM_CHUNK_BYTES):
        yield raw[start : start + _STREAM_CHUNK_BYTES]


def _recorded_stdout(answer: RecordedAnswer, argv: tuple[str, ...]) -> bytes:
    raw = answer.stdout_file.read_bytes() if answer.stdout_file else b""
    token = find_token(argv)
    return raw if token is None else raw.replace(RECORDED_TOKEN.encode(), token.encode())


def _nearest(requested: tuple[str, ...], held: list[tuple[str, ...]]) -> tuple[str, ...] | None:
    def likeness(argv: tuple[str, ...]) -> tuple[bool, float]:
        return argv[:1] == requested[:1], difflib.SequenceMatcher(
            None, requested, argv, autojunk=False
        ).ratio()

    return max(held, key=likeness, default=None)


def _shown(argv: tuple[str, ...]) -> str:
    return readable_command(
        tuple(
            word if len(word) <= _LONGEST_SHOWN_WORD else word[: _LONGEST_SHOWN_WORD - 1] + "…"
            for word in argv
        )
    )
