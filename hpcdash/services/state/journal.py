"""Journal of actions from this machine: JSON lines written before and after each action."""

from __future__ import annotations

import contextlib
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from hpcdash.backends.actions import Outcome
from hpcdash.domain.text import without_surrogates
from hpcdash.errors import HpcdashError, without_env
from hpcdash.private_files import close_to_others, make_folder, wait_for_lock

JOURNAL_SCHEMA = 1
# An action without an end counts as running no longer than this: its writer may be unable to
# write the end.
_LONGEST_ACTION_SECONDS = 3600.0
ROTATE_BYTES = 5_000_000


class JournalUnwritable(HpcdashError):
    """The journal's file cannot be written: no room, no permission."""


class JournalUnreadable(HpcdashError):
    """The journal's file exists and cannot be read."""


class MoveNote(Struct, frozen=True):
    """Facts of a move by a copy, from which a later run settles it.

    `cluster` is where the copy is submitted, `mark` is in its comment. `is_held`: the job was held
    before the move.
    """

    cluster: str
    mark: str
    is_held: bool = False


class JournalEntry(Struct, frozen=True):
    """One action.

    `state` is done, refused, partly, unknown (it started, and nobody saw its end) or running.

    Times are epoch seconds; `outcomes` is empty until it ends. `names` are those of the jobs that
    it submits, by their `job_ids`. `parts` are the `job_ids` of all actions that together submit
    more than one action can. `move` is that of a move by a copy; its steps have entries of their
    own.
    """

    action_id: str
    at: float
    ended_at: float | None
    cluster: str
    user: str
    verb: str
    job_ids: tuple[str, ...]
    commands: tuple[tuple[str, ...], ...]
    state: str
    outcomes: tuple[Outcome, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    parts: tuple[str, ...] = ()
    move: MoveNote | None = None


class _Ended(msgspec.Struct, rename={"text": "words"}):
    job_id: str
    done: bool | None
    text: str = ""


class _Line(msgspec.Struct, omit_defaults=True):
    """A line of the file; an `after` has only what its `before` does not."""

    schema: int
    event: Literal["before", "after"]
    id: str
    at: str
    cluster: str = ""
    user: str = ""
    verb: str = ""
    job_ids: tuple[str, ...] = ()
    commands: tuple[tuple[str, ...], ...] = ()
    host: str = ""
    # Linux gives no number above 2**22.
    pid: Annotated[int, msgspec.Meta(ge=0, le=2**22)] = 0
    pid_started_ticks: int | None = None
    outcomes: tuple[_Ended, ...] = ()
    names: dict[str, str] = {}
    parts: tuple[str, ...] = ()
    move: MoveNote | None = None


class Journal:
    """File, 0600, that several programs may write at a time.

    Past 5 MB it becomes FILE.1, which is read as well.
    """

    def __init__(self, path: Path, *, now: Callable[[], float] = time.time) -> None:
        self.path = path
        self._now = now

    def before(
        self,
        *,
        cluster: str,
        user: str,
        verb: str,
        job_ids: Sequence[str],
        commands: Sequence[tuple[str, ...]],
        names: Mapping[str, str] = MappingProxyType({}),
        parts: Sequence[str] = (),
        move: MoveNote | None = None,
    ) -> str:
        """Write an action before it runs; return its ID once that is on the disk.

        `commands` are written as people read them, without the `env` before the program; `names`,
        `parts` and `move` as in JournalEntry. Raises JournalUnwritable.
        """
        action_id = uuid.uuid4().hex
        self._write(
            _Line(
                JOURNAL_SCHEMA,
                "before",
                action_id,
                self._time(),
                cluster=without_surrogates(cluster),
                user=without_surrogates(user),
                verb=without_surrogates(verb),
                job_ids=tuple(map(without_surrogates, job_ids)),
                commands=tuple(
                    tuple(map(without_surrogates, without_env(argv))) for argv in commands
                ),
                host=without_surrogates(socket.gethostname()),
                pid=os.getpid(),
                pid_started_ticks=started_ticks(os.getpid()),
                names={
                    without_surrogates(job_id): without_surrogates(name)
                    for job_id, name in names.items()
                },
                parts=tuple(map(without_surrogates, parts)),
                move=move,
            )
        )
        return action_id

    def after(self, action_id: str, outcomes: Sequence[Outcome]) -> None:
        """Write the outcome of an action; raises JournalUnwritable."""
        ended = tuple(
            _Ended(
                without_surrogates(outcome.job_id), outcome.done, without_surrogates(outcome.text)
            )
            for outcome in outcomes
        )
        self._write(_Line(JOURNAL_SCHEMA, "after", action_id, self._time(), outcomes=ended))

    def age_seconds(self, entry: JournalEntry) -> float:
        """Return the age of an action by the clock of its time."""
        return self._now() - entry.at

    def read(self, newest: int = 500) -> tuple[list[JournalEntry], int]:
        """Return the newest entries, newest first, and the number of unreadable lines.

        Raises JournalUnreadable.
        """
        started: dict[str, _Line] = {}
        ended: dict[str, _Line] = {}
        unreadable = 0
        for text in self._lines():
            line = _read_line(text)
            if line is None:
                unreadable += 1
            elif line.event == "before":
                started.setdefault(line.id, line)
            else:
                ended[line.id] = line
        latest = list(started.values())[::-1][:newest]
        return [self._entry(line, ended.get(line.id)) for line in latest], unreadable

    def _time(self) -> str:
        return (
            datetime.fromtimestamp(self._now(), UTC)
            .isoformat(timespec="milliseconds")
            .replace("+00:00", "Z")
        )

    def _write(self, line: _Line) -> None:
        try:
            append_line(self.path, msgspec.json.encode(line))
        except OSError as error:
            raise JournalUnwritable(
                f"cannot write the journal {self.path}: {error.strerror or error}",
                "Set HPCDASH_STATE to another folder.",
            ) from error

    def _lines(self) -> list[bytes]:
        current, number = _content(self.path)
        older, older_number = _content(older_file(self.path))
        # A file that was renamed between the reads is read once.
        content = current if number == older_number else older + b"\n" + current
        return [line for line in content.split(b"\n") if line.strip()]

    def _entry(self, before: _Line, after: _Line | None) -> JournalEntry:
        at = _epoch(before.at)
        entry = JournalEntry(
            action_id=before.id,
            at=at,
            ended_at=None,
            cluster=before.cluster,
            user=before.user,
            verb=before.verb,
            job_ids=before.job_ids,
            commands=before.commands,
            state="unknown",
            names=before.names,
            parts=before.parts,
            move=before.move,
        )
        if after is not None:
            return replace(
                entry,
                ended_at=_epoch(after.at),
                state=_state(after.outcomes),
                outcomes=tuple(
                    Outcome(ended.job_id, ended.done, ended.text) for ended in after.outcomes
                ),
            )
        is_recent = abs(self._now() - at) < _LONGEST_ACTION_SECONDS
        is_here = before.host == without_surrogates(socket.gethostname())
        if is_recent and is_here and is_alive(before.pid, before.pid_started_ticks):
            return replace(entry, state="running")
        return entry


def _content(path: Path) -> tuple[bytes, int | None]:
    """Read a file and its inode number; empty and None if there is no file."""
    try:
        with path.open("rb") as stream:
            return stream.read(), os.fstat(stream.fileno()).st_ino
    except FileNotFoundError:
        return b"", None
    except OSError as error:
        raise JournalUnreadable(
            f"cannot read the journal {path}: {error.strerror or error}",
            "Check its owner and permissions.",
        ) from error


def _state(outcomes: Sequence[_Ended]) -> str:
    results = {outcome.done for outcome in outcomes}
    if None in results or not results:
        return "unknown"
    if len(results) > 1:
        return "partly"
    return "done" if True in results else "refused"


def _read_line(text: bytes) -> _Line | None:
    """Parse a line; None if it is not an entry or was cut off."""
    try:
        line = msgspec.json.decode(text, type=_Line)
        _epoch(line.at)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    return line if line.schema == JOURNAL_SCHEMA and line.id else None


def _epoch(text: str) -> float:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    return moment.timestamp()


def older_file(path: Path) -> Path:
    """Return the path to which a large file is moved."""
    return path.with_name(path.name + ".1")


def append_line(path: Path, line: bytes) -> None:
    """Append one line, which holds no newline, and wait until it is on the disk. Raises OSError.

    The file is created 0600 and its folder 0700; looser modes of the file and of the older file are
    tightened. A last line that a crash cut off stays a line of its own. If other programs hold the
    lock for long, or the file system has no locks, the line is written all the same.
    """
    make_folder(path.parent)
    for file_path in (path, older_file(path)):
        close_to_others(file_path)
    with _opened(path) as (file, is_new):
        size = os.fstat(file).st_size
        is_cut = size > 0 and os.pread(file, 1, size - 1) != b"\n"
        _write(file, (b"\n" if is_cut else b"") + line + b"\n")
        os.fsync(file)
    if is_new:
        _sync_folder(path.parent)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tuple[int, bool]]:
    """Open the file, locked if possible, and report if it is new; a large file is renamed first."""
    while True:
        is_new = not path.exists()
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            wait_for_lock(file)
            status = os.fstat(file)
            try:
                is_same = os.path.samestat(status, os.stat(path))
            except FileNotFoundError:
                is_same = False
            if not is_same:
                # Another program renamed the file while this one waited.
                continue
            if status.st_size >= ROTATE_BYTES:
                # A file that cannot be renamed grows on.
                with contextlib.suppress(OSError):
                    os.replace(path, older_file(path))
                    continue
            yield file, is_new
            return
        finally:
            os.close(file)


def _write(file: int, content: bytes) -> None:
    while content:
        content = content[os.write(file, content) :]


def _sync_folder(folder: Path) -> None:
    # Some file systems cannot: the file itself is on the disk.
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def started_ticks(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None without /proc, or if it ended.

    proc_pid_stat(5): the 22nd field; the 2nd, in parentheses, may hold anything.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = stat.rpartition(b")")[2].split()
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def is_alive(pid: int, started: int | None) -> bool:
    """Whether the process with this number and start (in ticks; None if unknown) still runs."""
    if pid <= 0:
        return False
    if started is not None:
        return started_ticks(pid) == started
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        # It is another user's.
        pass
    return True
