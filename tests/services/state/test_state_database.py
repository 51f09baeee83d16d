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
from hpcdash.services.state.database import StateUnusable
from hpcdash.services.state.recents import Recents
from hpcdash.services.submit.launch_records import LaunchRecord, LaunchRecords
from hpcdash.services.watch.alerts import Alerts
from hpcdash.services.watch.state import WatchFiles, WatchState

pytestmark = pytest.mark.system

RECORD = LaunchRecord("/jobs/1", "", "1", "train", "failed", "", 1, 1.0)
# Writes launches 0, 1, 2 … of a cluster and prints each number once it is on the disk.
WRITER = """
import itertools, sys
from pathlib import Path
from hpcdash.services.submit.launch_records import LaunchRecord
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
# Reads the launches of a folder, and writes there.
READER = """
import sys
from pathlib import Path
from hpcdash.services.state import database
from hpcdash.services.submit.launch_records import LaunchRecords

database.listen(lambda words: print("NOTICE", words))
records = LaunchRecords(Path(sys.argv[1]), "juno")
print(len(records.all()), len(records.all()))
try:
    records.removed(records.all()[0])
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
    writers = [writer(tmp_path / "state", f"cluster{number}", 25) for number in range(4)]
    for one in writers:
        one.communicate()
    assert [one.returncode for one in writers] == [0] * 4
    for number in range(4):
        records = LaunchRecords(tmp_path / "state", f"cluster{number}")
        assert [one.job_id for one in records.all()] == [str(job) for job in range(25)]
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
            StateUnusable, match=r"state\.db cannot be read: locked by another program"
        ):
            records.all()
        with pytest.raises(
            StateUnusable, match=r"state\.db cannot be written: locked by another program"
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


def test_in_a_read_only_home_all_is_read_and_writing_is_refused(small_disk: Path) -> None:
    records = LaunchRecords(small_disk, "juno")
    records.launched(RECORD)
    Recents(small_disk).remember("juno", "a", "x", "script", 1.0)
    WatchFiles(small_disk, "juno").write(WatchState(unreachable_rounds=3), Alerts())
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    before = sorted(os.listdir(small_disk))
    assert records.all() == (RECORD,)
    assert len(Recents(small_disk).recent("juno")) == 1
    assert WatchFiles(small_disk, "juno").read()[0].unreachable_rounds == 3
    with pytest.raises(StateUnusable, match=r"state\.db cannot be written: .*[Rr]ead-only"):
        records.launched(RECORD)
    assert sorted(os.listdir(small_disk)) == before


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
    done = subprocess.run(
        (sys.executable, "-c", READER, state),
        env={**os.environ, "LD_PRELOAD": str(tmp_path / "no_locks.so")},
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    step = "Set HPCDASH_STATE to a folder on another one, such as a local disk."
    words = f"{state}/state.db is read-only: the file system does not support locks"
    assert done.stdout.splitlines() == [
        f"NOTICE {words}. {step}",
        "1 1",
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
        newer.execute("PRAGMA user_version = 3")
    assert records.all() == (RECORD,)
    assert [words.partition("state.db ")[2] for words in notices] == [
        "was written by a newer version of hpcdash (schema 3, this one writes 2): opened read-only"
    ]
    with pytest.raises(StateUnusable, match="was written by a newer version of hpcdash"):
        records.removed(RECORD)
    assert records.unsettled() == (RECORD,)


@pytest.mark.parametrize("version", [0, 1])
def test_one_of_an_earlier_version_is_renamed_announced_once_and_started_again(
    tmp_path: Path, notices: list[str], version: int
) -> None:
    file = tmp_path / "state.db"
    with contextlib.closing(sqlite3.connect(file)) as earlier:
        earlier.execute("CREATE TABLE launches (folder TEXT)")
        earlier.execute(f"PRAGMA user_version = {version}")
    content = file.read_bytes()
    records = LaunchRecords(tmp_path, "juno")
    assert records.all() == ()
    records.launched(RECORD)
    assert records.all() == (RECORD,)
    assert notices == [
        f"{file} was written by an earlier version of hpcdash: it was renamed to state.db.schema-{version}, and "
        "a "
        "new one starts without earlier launches, recent submissions, named switches and alerts"
    ]
    assert (tmp_path / f"state.db.schema-{version}").read_bytes() == content


def test_many_programs_that_find_one_of_an_earlier_version_lose_nothing(tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "state.db")) as earlier:
        earlier.execute("CREATE TABLE launches (folder TEXT)")
        earlier.execute("PRAGMA user_version = 1")
    writers = [writer(tmp_path, f"cluster{number}", 5) for number in range(4)]
    for one in writers:
        one.communicate()
    assert [one.returncode for one in writers] == [0] * 4
    for number in range(4):
        records = LaunchRecords(tmp_path, f"cluster{number}")
        assert [one.job_id for one in records.all()] == [str(job) for job in range(5)]
    assert [path.name for path in tmp_path.glob("state.db.*")] == ["state.db.schema-1"]


def test_one_of_an_earlier_version_that_cannot_be_renamed_is_not_read(small_disk: Path) -> None:
    with contextlib.closing(sqlite3.connect(small_disk / "state.db")) as earlier:
        earlier.execute("CREATE TABLE launches (folder TEXT)")
        earlier.execute("PRAGMA user_version = 1")
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    expected = (
        "was written by an earlier version of hpcdash, and cannot be renamed: Read-only file system"
    )
    with pytest.raises(StateUnusable, match=expected):
        LaunchRecords(small_disk, "juno").all()


def test_files_of_a_version_that_had_no_database_are_renamed_and_announced_once(
    tmp_path: Path, notices: list[str]
) -> None:
    for name in ("launches.jsonl", "switches.jsonl", "journal.jsonl", "metrics.jsonl"):
        (tmp_path / name).write_text(f"{name}\n")
    LaunchRecords(tmp_path, "juno").launched(RECORD)
    assert LaunchRecords(tmp_path, "juno").all() == (RECORD,)
    assert notices == [
        f"{tmp_path}/{name} was written by an earlier version of hpcdash: it was renamed to {name}.schema-0, and "
        "state.db starts without its content"
        for name in ("launches.jsonl", "switches.jsonl")
    ]
    assert (tmp_path / "launches.jsonl.schema-0").read_text() == "launches.jsonl\n"
    assert {"journal.jsonl", "metrics.jsonl"} <= set(os.listdir(tmp_path))
