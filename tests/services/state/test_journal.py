"""The journal: what is on the disk before and after an action, whoever else writes, and whatever
became of the file.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcdash import private_files
from hpcdash.backends.actions import Outcome
from hpcdash.services.state import journal as appended_lines
from hpcdash.services.state.journal import Journal, JournalUnwritable

HOSTILE = '\x1b[31m"\\\n\r\u2028\u202e\udcff\x00 | {"event":"before"}'
DONE = (Outcome("41", True),)


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "state" / "journal.jsonl")


def begin(journal: Journal, *job_ids: str, verb: str = "cancel", user: str = "alice") -> str:
    argv = ("env", "-u", "SQUEUE_SORT", "LC_ALL=C", "scancel", "-v", *job_ids)
    return journal.before(cluster="juno", user=user, verb=verb, job_ids=job_ids, commands=[argv])


def lines(journal: Journal) -> list[dict[str, object]]:
    return [json.loads(line) for line in journal.path.read_bytes().splitlines()]


def test_what_will_be_done_is_in_the_file_before_it_is(journal: Journal) -> None:
    action_id = begin(journal, "41", "88_[3-5]")
    (line,) = lines(journal)
    assert line["event"] == "before"
    assert line["id"] == action_id
    assert line["commands"] == [["scancel", "-v", "41", "88_[3-5]"]]
    assert (line["schema"], line["host"], line["pid"]) == (1, socket.gethostname(), os.getpid())
    assert str(line["at"]).endswith("Z")
    ([entry], unreadable) = journal.read()
    assert (entry.state, entry.outcomes, entry.ended_at, unreadable) == ("running", (), None, 0)


def test_nobody_else_can_read_it(journal: Journal) -> None:
    begin(journal, "41")
    assert stat.S_IMODE(journal.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(journal.path.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    ("ways", "state"),
    [
        ((True, True), "done"),
        ((False, False), "refused"),
        ((True, False), "partly"),
        ((True, None), "unknown"),
        ((), "unknown"),
    ],
)
def test_how_it_ended_is_told(journal: Journal, ways: tuple[bool | None, ...], state: str) -> None:
    outcomes = tuple(Outcome(str(number), done, "words") for number, done in enumerate(ways))
    journal.after(begin(journal, "0", "1"), outcomes)
    ([entry], _) = journal.read()
    assert (entry.state, entry.outcomes) == (state, outcomes)
    assert entry.ended_at is not None
    assert entry.at <= entry.ended_at


def test_the_newest_come_first(journal: Journal) -> None:
    ids = [begin(journal, str(number)) for number in range(5)]
    journal.after(ids[0], DONE)
    entries, _ = journal.read(3)
    assert [entry.action_id for entry in entries] == ids[:1:-1]
    assert [entry.state for entry in journal.read()[0]] == ["running"] * 4 + ["done"]


def test_hostile_words_come_back_as_they_were(journal: Journal) -> None:
    action_id = begin(journal, HOSTILE, verb=HOSTILE, user=HOSTILE)
    journal.after(action_id, [Outcome("41", False, HOSTILE)])
    assert len(lines(journal)) == 2
    ([entry], unreadable) = journal.read()
    same = HOSTILE.replace("\udcff", "\ufffd")
    assert (entry.verb, entry.user, entry.job_ids, unreadable) == (same, same, (same,), 0)
    assert entry.commands == (("scancel", "-v", same),)
    assert entry.outcomes == (Outcome("41", False, same),)


def test_a_line_cut_by_a_crash_is_counted_and_the_next_one_stands_alone(journal: Journal) -> None:
    first = begin(journal, "1")
    journal.after(first, DONE)
    whole = journal.path.read_bytes()
    journal.path.write_bytes(whole + whole[:50])
    second = begin(journal, "2")
    entries, unreadable = journal.read()
    assert [entry.action_id for entry in entries] == [second, first]
    assert unreadable == 1


KILLED = """
import os, sys
from pathlib import Path
from hpcdash.services.state.journal import Journal
print(Journal(Path(sys.argv[1])).before(cluster="juno", user="alice", verb="cancel", job_ids=["41"], commands=[]))
sys.stdout.flush()
os.kill(os.getpid(), 9)
"""


@pytest.mark.system
def test_an_action_whose_program_was_killed_has_an_unknown_outcome(journal: Journal) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", KILLED, journal.path], stdout=subprocess.PIPE, check=False
    )
    assert ended.returncode == -9
    ([entry], _) = journal.read()
    assert entry.action_id == ended.stdout.decode().strip()
    assert entry.state == "unknown"


@pytest.mark.parametrize(
    "change",
    [
        {"pid_started_ticks": 1},
        {"host": "elsewhere"},
        {"pid": 0},
        {"at": "2020-01-01T00:00:00.000Z"},
    ],
    ids=["another process has its number", "another host", "no process", "long ago"],
)
def test_an_action_without_an_end_runs_only_while_its_writer_does(
    journal: Journal, change: dict[str, object]
) -> None:
    begin(journal, "41")
    (line,) = lines(journal)
    journal.path.write_text(json.dumps({**line, **change}) + "\n")
    assert [entry.state for entry in journal.read()[0]] == ["unknown"]


def test_there_may_be_no_journal_yet(journal: Journal) -> None:
    assert journal.read() == ([], 0)


def test_a_journal_that_cannot_be_written_says_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalUnwritable, match=r"journal\.jsonl"):
        begin(Journal(tmp_path / "file" / "journal.jsonl"), "41")


def test_a_full_disk_is_said(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(journal, "41")

    def no_room(file: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", no_room)
    with pytest.raises(JournalUnwritable, match="No space left"):
        begin(journal, "42")


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks_has_a_journal_too(
    journal: Journal, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def no_locks(file: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    journal.after(begin(journal, "41"), DONE)
    assert [entry.state for entry in journal.read()[0]] == ["done"]


def test_a_lock_that_is_never_given_up_is_waited_for_a_while(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(journal, "41")
    monkeypatch.setattr(private_files, "_LOCK_WAIT_SECONDS", 0.05)
    with journal.path.open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        begin(journal, "42")
    assert len(journal.read()[0]) == 2


MANY = """
import sys
from pathlib import Path
from hpcdash.backends.actions import Outcome
from hpcdash.services.state import journal as journals
from hpcdash.services.state.journal import Journal
journals.ROTATE_BYTES = int(sys.argv[2])
journal = Journal(Path(sys.argv[1]))
for number in range(40):
    job_ids = [str(number)] * 50
    action_id = journal.before(cluster="juno", user="alice", verb="hold", job_ids=job_ids, commands=[])
    journal.after(action_id, [Outcome(str(number), True)])
"""


@pytest.mark.system
@pytest.mark.parametrize("rotate_bytes", [5_000_000, 60_000])
def test_several_programs_write_at_once_and_no_line_is_lost_or_torn(
    journal: Journal, rotate_bytes: int
) -> None:
    call: list[str | Path] = [sys.executable, "-c", MANY, journal.path, str(rotate_bytes)]
    with ThreadPoolExecutor(3) as pool:
        ended = list(pool.map(lambda _: subprocess.run(call, check=False).returncode, range(3)))
    assert ended == [0, 0, 0]
    entries, unreadable = journal.read(1000)
    assert unreadable == 0
    assert {entry.state for entry in entries} == {"done"}
    assert len(entries) == 120
    older = appended_lines.older_file(journal.path)
    assert older.exists() is (rotate_bytes < 100_000)


def test_the_journal_does_not_grow_without_bound(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(appended_lines, "ROTATE_BYTES", 5_000)
    for number in range(100):
        journal.after(begin(journal, str(number)), DONE)
    files = list(journal.path.parent.iterdir())
    assert len(files) == 2
    assert all(file.stat().st_size < 6_000 for file in files)
    assert journal.read(1)[0][0].job_ids == ("99",)


def written() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(Path(folder) / "journal.jsonl")
        journal.after(begin(journal, "1"), DONE)
        begin(journal, "2")
        return journal.path.read_bytes()


WRITTEN = written()


@given(
    st.lists(
        st.tuples(st.integers(0, len(WRITTEN) - 1), st.binary(max_size=4), st.integers(0, 30)),
        max_size=4,
    ),
    st.binary(max_size=60),
)
def test_whatever_became_of_the_file_it_is_read(
    changes: list[tuple[int, bytes, int]], after: bytes
) -> None:
    content = WRITTEN
    for position, inserted, dropped in changes:
        content = content[:position] + inserted + content[position + dropped :]
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(Path(folder) / "journal.jsonl")
        journal.path.write_bytes(content + after)
        before, unreadable = journal.read()
        assert len(before) <= 2
        assert unreadable <= (content + after).count(b"\n") + 1
        added = begin(journal, "3")
        entries, still_unreadable = journal.read()
        assert entries[0].action_id == added
        assert (entries[1:], still_unreadable) == (before, unreadable)
