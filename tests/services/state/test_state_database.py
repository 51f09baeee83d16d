"""state.db under what homes do to it: several programs at once, kills, full and read-only disks, no
locks, damage.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcdash.services.state import database
from hpcdash.services.state.database import StateDatabase, StateUnusable
from hpcdash.services.state.recents import Recents
from hpcdash.services.state.records import LaunchRecord
from hpcdash.services.submit.launch_records import LaunchRecords
from hpcdash.services.watch.alerts import Alerts
from hpcdash.services.watch.state import WatchFiles, WatchState
from tests.services.state.test_state_migration import OLD

pytestmark = pytest.mark.system

RECORD = LaunchRecord("/jobs/1", "", "1", "train", "failed", "", 1, 1.0)
# Writes launches 0, 1, 2 … of a cluster and prints each number once it is on the disk.
WRITER = """
import itertools, sys
from pathlib import Path
from hpcdash.services.state.records import LaunchRecord
from hpcdash.services.submit.launch_records import LaunchRecords
folder, cluster, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
records = LaunchRecords(folder, cluster)
for number in itertools.islice(itertools.count(), count or None):
    record = LaunchRecord(f"/jobs/{number}", "", str(number), "train", "failed", "", 1, float(number), "x" * 9000)
    records.launched(record)
    print(number, flush=True)
"""
# Ends in the middle of a transaction that has reached the disk.
HALF_WRITER = """
import os, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA cache_size = 1")
connection.execute("BEGIN IMMEDIATE")
connection.execute("DELETE FROM launches")
connection.executemany("INSERT INTO drafts VALUES (?, ?)", [(str(number), "x" * 3000) for number in range(200)])
os._exit(9)
"""
# Reads the launches of two folders, and writes into the first.
READER = """
import sys
from pathlib import Path
from hpcdash.services.state import database
from hpcdash.services.submit.launch_records import LaunchRecords

database.listen(lambda words: print("NOTICE", words))
migrated, old = LaunchRecords(Path(sys.argv[1]), "juno"), LaunchRecords(Path(sys.argv[2]), "local")
print(len(migrated.all()), len(migrated.all()))
print(len(old.all()))
try:
    migrated.removed(migrated.all()[0])
except database.StateUnusable as error:
    print("ERROR", error)
"""
# Every lock by fcntl(2) fails: as on an NFS without lockd (ENOLCK), or a Lustre without `flock`
# (ENOSYS).
NO_LOCKS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
static int call(const char *name, int file, int command, void *argument) {
    if (command == F_SETLK || command == F_SETLKW || command == F_GETLK) { errno = FAILURE; return -1; }
    return ((int (*)(int, int, ...)) dlsym(RTLD_NEXT, name))(file, command, argument);
}
#define WRAP(name) int name(int file, int command, ...) { \\
    va_list list; va_start(list, command); void *argument = va_arg(list, void *); va_end(list); \\
    return call(#name, file, command, argument); }
WRAP(fcntl)
WRAP(fcntl64)
"""


@pytest.fixture
def notices() -> Iterator[list[str]]:
    heard: list[str] = []
    database.listen(heard.append)
    yield heard
    database.listen(lambda words: None)


def writer(folder: Path, cluster: str, count: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        (sys.executable, "-c", WRITER, folder, cluster, str(count)), stdout=subprocess.PIPE
    )


def is_whole(folder: Path) -> bool:
    with contextlib.closing(sqlite3.connect(folder / "state.db")) as connection:
        return connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def with_no_room(folder: Path) -> None:
    with contextlib.suppress(OSError), (folder / "full").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def test_where_nothing_was_written_reading_makes_no_file(tmp_path: Path) -> None:
    assert LaunchRecords(tmp_path / "state", "juno").all() == ()
    assert not (tmp_path / "state").exists()


def test_the_file_and_its_folder_are_closed_to_others_and_a_looser_one_is_closed(
    tmp_path: Path,
) -> None:
    old_mask = os.umask(0)
    try:
        LaunchRecords(tmp_path / "state", "juno").launched(RECORD)
    finally:
        os.umask(old_mask)
    file = tmp_path / "state" / "state.db"
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.chmod(0o644)
    assert LaunchRecords(tmp_path / "state", "juno").all() == (RECORD,)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


# -- several programs at once


def test_many_programs_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    shutil.copytree(OLD, tmp_path / "state")
    writers = [writer(tmp_path / "state", f"cluster{number}", 25) for number in range(4)]
    for one in writers:
        one.communicate()
    assert [one.returncode for one in writers] == [0] * 4
    for number in range(4):
        records = LaunchRecords(tmp_path / "state", f"cluster{number}")
        assert [one.job_id for one in records.all()] == [str(job) for job in range(25)]
    # Whoever came first took the old files in, once.
    assert [one.job_id for one in LaunchRecords(tmp_path / "state", "local").all()] == [
        "1", "2", "3", "4", "", "6[].pbs01", "7",
    ]  # fmt: skip
    assert is_whole(tmp_path / "state")


def test_a_program_that_is_killed_as_it_writes_leaves_what_it_said_was_written_and_stops_nobody(
    tmp_path: Path,
) -> None:
    for round_number in range(3):
        program = writer(tmp_path, f"cluster{round_number}", 0)
        assert program.stdout is not None
        written = [int(program.stdout.readline()) for _ in range(20)]
        program.send_signal(signal.SIGKILL)
        written += [int(line) for line in program.stdout]
        program.wait()
        program.stdout.close()
        found = [int(one.job_id) for one in LaunchRecords(tmp_path, f"cluster{round_number}").all()]
        assert found[: len(written)] == written
        assert len(found) - len(written) in (0, 1)
        LaunchRecords(tmp_path, "other").launched(RECORD)
    assert is_whole(tmp_path)


def test_half_a_transaction_is_taken_back(tmp_path: Path) -> None:
    records = LaunchRecords(tmp_path, "juno")
    records.launched(RECORD)
    subprocess.run((sys.executable, "-c", HALF_WRITER, tmp_path / "state.db"), check=False)
    assert (tmp_path / "state.db-journal").exists()
    assert records.all() == (RECORD,)
    assert is_whole(tmp_path)


def test_one_that_is_locked_for_long_is_not_waited_for_forever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_LONGEST_WAIT_SECONDS", 0.1)
    records = LaunchRecords(tmp_path, "juno")
    records.launched(RECORD)
    with contextlib.closing(sqlite3.connect(tmp_path / "state.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(
            StateUnusable, match=r"state\.db cannot be read: another program has locked it"
        ):
            records.all()
        with pytest.raises(
            StateUnusable, match=r"state\.db cannot be written: another program has locked it"
        ):
            records.removed(RECORD)
    assert records.unsettled() == (RECORD,)


# -- disks


def test_on_a_full_disk_what_was_written_is_read_and_nothing_more_is_written(
    small_disk: Path,
) -> None:
    records = LaunchRecords(small_disk, "juno")
    records.launched(RECORD)
    with_no_room(small_disk)
    with pytest.raises(StateUnusable, match="cannot be written: No space left on device"):
        Recents(small_disk).remember("juno", "a", "x" * 50_000, "script", 1.0)
    assert records.all() == (RECORD,)
    (small_disk / "full").unlink()
    Recents(small_disk).remember("juno", "a", "x" * 50_000, "script", 1.0)
    assert len(Recents(small_disk).recent("juno")) == 1
    assert is_whole(small_disk)


def test_on_a_full_disk_old_files_are_read_and_taken_in_once_there_is_room(
    small_disk: Path,
) -> None:
    shutil.copytree(OLD, small_disk / "state")
    with_no_room(small_disk)
    records = LaunchRecords(small_disk / "state", "local")
    assert len(records.all()) == 7
    with pytest.raises(StateUnusable, match="No space left on device"):
        records.launched(RECORD)
    assert (small_disk / "state" / "launches.jsonl").exists()
    (small_disk / "full").unlink()
    records.launched(RECORD)
    assert len(records.all()) == 8
    assert not (small_disk / "state" / "launches.jsonl").exists()


@pytest.mark.parametrize("is_migrated", [False, True])
def test_in_a_read_only_home_all_is_read_and_writing_is_refused(
    small_disk: Path, is_migrated: bool
) -> None:
    state = Path(shutil.copytree(OLD, small_disk / "state"))
    records = LaunchRecords(state, "local")
    if is_migrated:
        assert len(records.all()) == 7
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    before = sorted(os.listdir(state))
    assert len(records.all()) == 7
    assert len(Recents(state).recent("local")) == 2
    assert WatchFiles(state, "local").read()[0].read_alerts().states
    with pytest.raises(StateUnusable, match=r"state\.db cannot be written: .*[Rr]ead-only"):
        records.launched(RECORD)
    assert sorted(os.listdir(state)) == before


# -- a file system without locks


@pytest.mark.parametrize("failure", ["ENOLCK", "ENOSYS"])
def test_without_locks_it_is_read_and_that_is_said_and_not_written(
    tmp_path: Path, failure: str
) -> None:
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("no gcc to make a file system look as if it had no locks")
    (tmp_path / "no_locks.c").write_text(NO_LOCKS)
    built = (
        compiler,
        f"-DFAILURE={failure}",
        "-shared",
        "-fPIC",
        "-o",
        "no_locks.so",
        "no_locks.c",
        "-ldl",
    )
    subprocess.run(built, cwd=tmp_path, check=True)
    state = tmp_path / "state"
    LaunchRecords(state, "juno").launched(RECORD)
    old = shutil.copytree(OLD, tmp_path / "old")
    done = subprocess.run(
        (sys.executable, "-c", READER, state, old),
        env={**os.environ, "LD_PRELOAD": str(tmp_path / "no_locks.so")},
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    step = "HPCDASH_STATE names a folder on another one, such as a local disk."
    words = f"{state}/state.db is read-only: its file system has no locks"
    assert done.stdout.splitlines() == [
        f"NOTICE {words}, so it is read-only. {step}",
        "1 1",
        f"NOTICE {words.replace(str(state), str(old))}, so it is read-only. {step}",
        "7",
        f"ERROR {words}",
        step,
    ]
    assert LaunchRecords(state, "juno").unsettled() == (RECORD,)


# -- damage


@pytest.mark.parametrize("damage", ["random", "header", "cut"])
def test_a_damaged_file_is_renamed_said_once_and_begun_anew(
    tmp_path: Path, notices: list[str], damage: str
) -> None:
    records = LaunchRecords(tmp_path, "juno")
    for number in range(50):
        records.launched(
            LaunchRecord(f"/jobs/{number}", "", str(number), "t", "failed", "", 1, 1.0, "x" * 2000)
        )
    file = tmp_path / "state.db"
    whole = file.read_bytes()
    noise = random.Random(1).randbytes(len(whole))
    spoiled = {"random": noise, "header": whole[:100] + noise[100:], "cut": whole[:9000]}
    file.write_bytes(spoiled[damage])
    (tmp_path / "state.db-journal").write_bytes(b"of the damaged one")
    assert records.all() == ()
    (aside,) = tmp_path.glob("state.db.damaged-*T*[0-9]")
    assert aside.read_bytes() == spoiled[damage]
    records.launched(RECORD)
    assert records.all() == (RECORD,)
    (words,) = notices
    assert words.startswith(
        f"{file} was damaged: it was renamed to {aside.name}, and a new one starts"
    )
    assert is_whole(tmp_path)


def test_a_write_into_a_damaged_file_is_in_the_new_one(tmp_path: Path, notices: list[str]) -> None:
    (tmp_path / "state.db").write_bytes(b"SQLite format 3\0" + bytes(range(256)) * 64)
    WatchFiles(tmp_path, "juno").write(WatchState(unreachable_rounds=3), Alerts())
    assert WatchFiles(tmp_path, "juno").read()[0].unreachable_rounds == 3
    assert len(notices) == 1


def test_of_a_damaged_file_that_a_link_leads_to_the_file_is_renamed(
    tmp_path: Path, notices: list[str]
) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "mine").write_bytes(
        b"no database, and longer than its header would be " * 40
    )
    (tmp_path / "state.db").symlink_to("there/mine")
    LaunchRecords(tmp_path, "juno").launched(RECORD)
    assert (tmp_path / "state.db").is_symlink()
    assert len(list((tmp_path / "there").glob("mine.damaged-*"))) == 1
    assert LaunchRecords(tmp_path, "juno").all() == (RECORD,)
    assert len(notices) == 1


def test_an_empty_file_is_a_new_one(tmp_path: Path, notices: list[str]) -> None:
    (tmp_path / "state.db").touch()
    LaunchRecords(tmp_path, "juno").launched(RECORD)
    assert LaunchRecords(tmp_path, "juno").all() == (RECORD,)
    assert notices == []


# -- other versions


def test_one_of_a_newer_version_is_read_and_not_written(tmp_path: Path, notices: list[str]) -> None:
    records = LaunchRecords(tmp_path, "juno")
    records.launched(RECORD)
    with contextlib.closing(sqlite3.connect(tmp_path / "state.db")) as newer:
        newer.execute("PRAGMA user_version = 2")
    assert records.all() == (RECORD,)
    assert [words.partition("state.db ")[2] for words in notices] == [
        "belongs to a newer hpcdash (schema 2, this one writes 1): opened read-only"
    ]
    with pytest.raises(StateUnusable, match="belongs to a newer hpcdash"):
        records.removed(RECORD)
    assert records.unsettled() == (RECORD,)


def test_what_an_older_version_writes_beside_is_taken_in_too(tmp_path: Path) -> None:
    state = Path(shutil.copytree(OLD, tmp_path / "state"))
    records = LaunchRecords(state, "local")
    before = records.all()
    assert sorted(path.name for path in state.iterdir()) == [
        "drafts.json.migrated", "launches.jsonl.1.migrated", "launches.jsonl.migrated", "state.db",
        "submitted.migrated", "switches.jsonl.1.migrated", "switches.jsonl.migrated", "watch",
    ]  # fmt: skip
    shutil.copy(OLD / "launches.jsonl", state)
    shutil.copy(OLD / "watch" / "local.json", state / "watch")
    os.utime(state / "watch" / "local.json", (1.0, 1.0))
    with (state / "launches.jsonl").open("a") as file:
        line = (OLD / "launches.jsonl.1").read_text().splitlines()[0]
        file.write(
            "\n"
            + line.replace("00000001", "00000009").replace('"job_id":"1"', '"job_id":"9"')
            + "\n"
        )
    WatchFiles(state, "local").write(WatchState(unreachable_rounds=3), Alerts())
    found = records.all()
    assert found[: len(before)] == before
    assert [one.job_id for one in found[len(before) :]] == ["9"]
    # What is older than what is kept changes nothing, and nothing is overwritten.
    assert WatchFiles(state, "local").read()[0].unreachable_rounds == 3
    assert (state / "launches.jsonl.migrated").read_bytes() == (OLD / "launches.jsonl").read_bytes()
    assert (state / "launches.jsonl.migrated-2").exists()


def test_files_that_were_taken_in_but_not_renamed_are_taken_in_once(tmp_path: Path) -> None:
    state = Path(shutil.copytree(OLD, tmp_path / "state"))
    records, recents = LaunchRecords(state, "local"), Recents(state)
    before = (
        records.all(),
        records.unsettled(),
        recents.recent("local"),
        WatchFiles(state, "local").read(),
    )
    for path in state.rglob("*.migrated"):
        path.rename(path.with_suffix(""))
    again = (
        records.all(),
        records.unsettled(),
        recents.recent("local"),
        WatchFiles(state, "local").read(),
    )
    assert again == before
    assert list(StateDatabase(state).read("SELECT count(*) FROM switches")) == [(5,)]
