"""What was done to jobs from here, and how it ended: JSON lines, written before each action and after it."""

from __future__ import annotations

import os
import re
import socket
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal

import msgspec

from hpcdash.backends.actions import Outcome
from hpcdash.errors import HpcdashError, program_words
from hpcdash.stores.appended_lines import append_line, older_file
from hpcdash.stores.processes import is_alive, started_ticks

JOURNAL_SCHEMA = 1
# An action without an end is taken for running no longer than this: its writer may be unable to note the end.
_LONGEST_ACTION_SECONDS = 3600.0
_SURROGATE = re.compile("[\ud800-\udfff]")


class JournalUnwritable(HpcdashError):
    """The journal's file cannot be written: no room, no permission."""


class JournalUnreadable(HpcdashError):
    """The journal's file is there and cannot be read."""


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One action. `state` is done, refused, partly, unknown (it was begun, and nobody saw its end) or running.

    Times are epoch seconds; `outcomes` is empty until it ended. `names` are those of the jobs that it submits, by what
    `job_ids` calls them.
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


class _Ended(msgspec.Struct):
    job_id: str
    done: bool | None
    words: str = ""


class _Line(msgspec.Struct, omit_defaults=True):
    """A line of the file. What an `after` does not say was said by its `before`."""

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


class Journal:
    """One file, 0600, that several programs may write at a time. Past 5 MB it becomes FILE.1, which is read as well."""

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
    ) -> str:
        """Note what is about to be done, on the disk when it returns its action id; raises JournalUnwritable.

        `commands` are noted as people read them, without the `env` before the program; `names` as in JournalEntry.
        """
        action_id = uuid.uuid4().hex
        self._write(
            _Line(
                JOURNAL_SCHEMA,
                "before",
                action_id,
                self._time(),
                cluster=_encodable(cluster),
                user=_encodable(user),
                verb=_encodable(verb),
                job_ids=tuple(map(_encodable, job_ids)),
                commands=tuple(tuple(map(_encodable, program_words(argv))) for argv in commands),
                host=_encodable(socket.gethostname()),
                pid=os.getpid(),
                pid_started_ticks=started_ticks(os.getpid()),
                names={_encodable(job_id): _encodable(name) for job_id, name in names.items()},
            )
        )
        return action_id

    def after(self, action_id: str, outcomes: Sequence[Outcome]) -> None:
        """Note how it ended; raises JournalUnwritable."""
        ended = tuple(_Ended(_encodable(one.job_id), one.done, _encodable(one.words)) for one in outcomes)
        self._write(_Line(JOURNAL_SCHEMA, "after", action_id, self._time(), outcomes=ended))

    def age_seconds(self, entry: JournalEntry) -> float:
        """How long ago an action was begun, by the clock that its time was noted with."""
        return self._now() - entry.at

    def read(self, newest: int = 500) -> tuple[list[JournalEntry], int]:
        """The newest entries, newest first, and how many lines could not be read; raises JournalUnreadable."""
        begun: dict[str, _Line] = {}
        ended: dict[str, _Line] = {}
        unreadable = 0
        for text in self._lines():
            line = _read_line(text)
            if line is None:
                unreadable += 1
            elif line.event == "before":
                begun.setdefault(line.id, line)
            else:
                ended[line.id] = line
        wanted = list(begun.values())[::-1][:newest]
        return [self._entry(line, ended.get(line.id)) for line in wanted], unreadable

    def _time(self) -> str:
        return datetime.fromtimestamp(self._now(), UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def _write(self, line: _Line) -> None:
        try:
            append_line(self.path, msgspec.json.encode(line))
        except OSError as error:
            raise JournalUnwritable(
                f"the journal {self.path} cannot be written: {error.strerror or error}",
                "HPCDASH_STATE=DIR puts it elsewhere.",
            ) from error

    def _lines(self) -> list[bytes]:
        current, number = _content(self.path)
        older, older_number = _content(older_file(self.path))
        # Moved aside in between, it is the same file.
        content = current if number == older_number else older + b"\n" + current
        return [line for line in content.split(b"\n") if line.strip()]

    def _entry(self, begun: _Line, ended: _Line | None) -> JournalEntry:
        at = _epoch(begun.at)
        return JournalEntry(
            begun.id,
            at,
            _epoch(ended.at) if ended else None,
            begun.cluster,
            begun.user,
            begun.verb,
            begun.job_ids,
            begun.commands,
            _state(ended.outcomes) if ended else self._state_without_end(begun, at),
            tuple(Outcome(one.job_id, one.done, one.words) for one in ended.outcomes) if ended else (),
            begun.names,
        )

    def _state_without_end(self, begun: _Line, at: float) -> str:
        is_young = abs(self._now() - at) < _LONGEST_ACTION_SECONDS
        is_here = begun.host == _encodable(socket.gethostname())
        return "running" if is_young and is_here and is_alive(begun.pid, begun.pid_started_ticks) else "unknown"


def _content(path: Path) -> tuple[bytes, int | None]:
    """All that is in a file, and the file's number; nothing where there is none."""
    try:
        with path.open("rb") as stream:
            return stream.read(), os.fstat(stream.fileno()).st_ino
    except FileNotFoundError:
        return b"", None
    except OSError as error:
        raise JournalUnreadable(
            f"the journal {path} cannot be read: {error.strerror or error}", "Whose file is it?"
        ) from error


def _state(outcomes: Sequence[_Ended]) -> str:
    ways = {one.done for one in outcomes}
    if None in ways or not ways:
        return "unknown"
    return "partly" if len(ways) > 1 else "done" if True in ways else "refused"


def _read_line(text: bytes) -> _Line | None:
    """A line's content; None where it is none of ours, or was cut."""
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


def _encodable(text: str) -> str:
    # Arguments that are not UTF-8 reach Python as lone surrogates, which JSON cannot hold.
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)
