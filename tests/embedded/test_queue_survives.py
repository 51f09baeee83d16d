"""What becomes of jobs when what looks after them is killed, finds no room, or has to wait.

Real processes, kill -9.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcdash.embedded import database
from hpcdash.embedded.record import Record
from hpcdash.embedded.start import supervisor_pid
from hpcdash.private_files import atomic_write
from tests.embedded.queue_lab import QueueLab, is_alive
from tests.support.waiting import wait_until

_RUN = "echo $SLURM_ARRAY_TASK_ID run >> log"


def supervise(queue: QueueLab, patch: str) -> subprocess.Popen[bytes]:
    """A supervisor with a change to its program."""
    program = (
        "import os, signal, sys, time\n"
        "from pathlib import Path\n"
        "from hpcdash.embedded import database, keeper, record, supervisor\n"
        "def die(*_, **__): os.kill(os.getpid(), signal.SIGKILL)\n"
        f"{patch}\n"
        "supervisor.supervise(Path(sys.argv[1]), [])\n"
    )
    return subprocess.Popen(
        [sys.executable, "-c", program, str(queue.folder)],
        env=queue.environment,
        start_new_session=True,
        cwd="/",
    )


def without_supervisor(queue: QueueLab) -> None:
    """Make the queue, and end the supervisor it got."""
    held = queue.submit("true", "--hold")
    wait_until("a supervisor that listens", lambda: (queue.folder / "wake").exists())
    queue.kill_supervisor()
    queue.store.end(1, "cancelled", now=0.0)
    assert held == "1"


def runs(queue: QueueLab) -> int:
    path = queue.work / "log"
    return len(path.read_text().splitlines()) if path.exists() else 0


def submit_quietly(queue: QueueLab, body: str, *options: str) -> str:
    """Hand in a job without a supervisor being started for it: somebody seems to be there
    already.
    """
    waiting = os.open(queue.folder / "wake", os.O_RDWR | os.O_NONBLOCK)
    try:
        return queue.submit(body, *options)
    finally:
        os.close(waiting)


def test_a_job_whose_supervisor_is_killed_goes_on_and_the_next_one_notes_its_end(
    queue: QueueLab,
) -> None:
    number = queue.submit("while [ ! -e go ]; do sleep 0.02; done; exit 4")
    wait_until("it began", lambda: Record(queue.folder, 1, 1).read()[0])
    queue.kill_supervisor()
    (queue.work / "go").touch()
    wait_until("its end noted by its keeper", lambda: Record(queue.folder, 1, 1).read()[1])
    assert queue.job(number).state == "running"
    queue.run("jobs")
    job = queue.ended(number)
    assert (job.state, job.exit_code) == ("failed", 4)


def test_a_job_that_is_taken_over_is_cancelled_and_its_end_seen_at_once(queue: QueueLab) -> None:
    number = queue.submit("sleep 1000")
    queue.wait(number, "running")
    queue.kill_supervisor()
    assert queue.act("cancel", number)[0]["done"]
    assert queue.ended(number).state == "cancelled"


def test_a_job_that_never_began_but_is_said_to_run_can_be_cancelled(queue: QueueLab) -> None:
    without_supervisor(queue)
    number = submit_quietly(queue, _RUN)
    assert supervise(queue, "supervisor.start_attempt = die").wait() == -signal.SIGKILL
    assert queue.job(number).state == "running"
    queue.set_slots(cpus=0.5, gpus=0, grace_seconds=1)
    assert queue.act("cancel", number)[0]["done"]
    assert queue.ended(number).state == "cancelled"


@pytest.mark.parametrize(
    "patch",
    [
        pytest.param("supervisor.start_attempt = die", id="between the store and the record"),
        pytest.param(
            "supervisor._work = lambda *a, **k: None\nsupervisor.os.fork = die",
            id="between the record and the fork",
        ),
        pytest.param(
            "start = supervisor.start_attempt\nsupervisor.start_attempt = lambda *a, **k: "
            "(start(*a, **k), die())",
            id="after the fork",
        ),
        pytest.param(
            "supervisor.Record.forget = die", id="between the end in the store and the record"
        ),
        pytest.param("supervisor._store_end = die", id="within the store's transaction"),
        pytest.param("keeper.note_begun = die", id="the keeper before the script"),
    ],
)
def test_a_job_runs_once_wherever_the_supervisor_is_killed(queue: QueueLab, patch: str) -> None:
    without_supervisor(queue)
    number = submit_quietly(queue, _RUN)
    first = supervise(queue, patch)
    if "keeper." in patch:
        # Only what it forks dies; this one would start it anew for ever.
        wait_until("another attempt", lambda: queue.job(number).attempt >= 2)
        first.kill()
    assert first.wait() == -signal.SIGKILL
    # Whoever comes next starts another supervisor where there is work.
    queue.ended(queue.submit("true"))
    assert queue.ended(number).state == "completed"
    assert runs(queue) == 1
    wait_until("no record left", lambda: not list((queue.folder / "attempts").iterdir()))


def test_a_script_s_process_that_is_killed_before_it_runs_has_failed(queue: QueueLab) -> None:
    without_supervisor(queue)
    number = submit_quietly(queue, _RUN)
    process = supervise(queue, "keeper._become_script = die")
    job = queue.ended(number)
    assert (job.state, job.exit_signal, runs(queue)) == ("failed", 9, 0)
    process.kill()
    process.wait()


def test_a_script_that_was_begun_but_perhaps_not_run_is_gone_and_not_run_again(
    queue: QueueLab,
) -> None:
    without_supervisor(queue)
    number = submit_quietly(queue, _RUN)
    patch = "note = keeper.note_begun\nkeeper.note_begun = lambda *a: (note(*a), die())"
    process = supervise(queue, patch)
    job = queue.ended(number)
    assert (job.state, job.exit_code, job.reason) == (
        "gone",
        None,
        "end not observed: exit status unknown",
    )
    assert runs(queue) == 0
    process.kill()
    process.wait()


@pytest.mark.journey
@pytest.mark.parametrize("tasks", [20, pytest.param(400, marks=pytest.mark.long)])
def test_no_job_is_lost_or_run_twice_while_supervisors_are_killed_again_and_again(
    queue: QueueLab, tasks: int
) -> None:
    # One at a time, and each once it may: else all might have run before the first kill.
    gate = "until [ $(cat allowed) -ge $SLURM_ARRAY_TASK_ID ]; do sleep 0.02; done"
    allowed = queue.work / "allowed"
    allowed.write_text("0")
    number = queue.submit(f"{gate}; {_RUN}", f"--array=1-{tasks}%1")
    chance = random.Random(7)
    kills = 0
    while runs(queue) < tasks - 5:
        queue.run("jobs")
        before = runs(queue)
        wanted = min(before + 1 + chance.randrange(3), tasks)
        atomic_write(allowed, str(wanted).encode())
        wait_until("some work", lambda wanted=wanted: runs(queue) >= wanted)  # type: ignore[misc]
        if (pid := supervisor_pid(queue.folder)) is not None:
            os.kill(pid, signal.SIGKILL)
            kills += 1
            wait_until("its end", lambda pid=pid: not is_alive(pid))  # type: ignore[misc]
    assert kills > tasks / 12
    atomic_write(allowed, str(tasks).encode())
    queue.run("jobs")
    for task in range(1, tasks + 1):
        assert queue.ended(f"{number}_{task}").state == "completed"
    lines = (queue.work / "log").read_text().splitlines()
    assert sorted(lines) == sorted(f"{task} run" for task in range(1, tasks + 1))


def test_a_submission_is_kept_once_its_number_is_told(queue: QueueLab) -> None:
    number = queue.submit(_RUN)
    for pid in queue.processes():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_until("an end of all", lambda: not queue.processes())
    queue.run("jobs")
    job = queue.ended(number)
    # It may have begun already.
    assert (job.state, runs(queue)) in (("completed", 1), ("gone", 0), ("gone", 1))


def test_who_looks_has_tidied_what_a_supervisor_left_that_was_killed_as_it_noted_the_last_end(
    queue: QueueLab,
) -> None:
    without_supervisor(queue)
    number = submit_quietly(queue, _RUN)
    assert supervise(queue, "supervisor.Record.forget = die").wait() == -signal.SIGKILL
    assert queue.job(number).state == "completed"
    assert list((queue.folder / "attempts").iterdir())
    queue.run("jobs")
    wait_until("no record left", lambda: not list((queue.folder / "attempts").iterdir()))


def test_a_record_whose_lock_a_dying_process_still_has_is_dropped_once_it_is_free(
    queue: QueueLab,
) -> None:
    without_supervisor(queue)
    number = submit_quietly(queue, _RUN)
    assert supervise(queue, "supervisor.Record.forget = die").wait() == -signal.SIGKILL
    (path,) = (queue.folder / "attempts").iterdir()
    with path.open("r+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        queue.run("jobs")
        queue.ended(queue.submit("true"))
        assert path.exists()
    wait_until("no record left", lambda: not path.exists())
    assert (queue.job(number).state, runs(queue)) == ("completed", 1)


def test_supervisors_that_race_start_nothing_twice(queue: QueueLab) -> None:
    without_supervisor(queue)
    number = submit_quietly(queue, _RUN, "--array=1-8")
    racing = [supervise(queue, "supervisor._IDLE_SECONDS = 0.5") for _ in range(5)]
    for task in range(1, 9):
        queue.ended(f"{number}_{task}")
    assert [process.wait() for process in racing] == [0] * 5
    assert runs(queue) == 8
    assert max(job.attempt for job in queue.store.jobs()) == 1


def test_first_submissions_that_race_all_get_numbers_of_their_own(tmp_path: Path) -> None:
    queue = QueueLab(tmp_path / "queue", tmp_path / "work")
    racing = [
        subprocess.Popen(
            [*queue.program, "submit", "--wrap=true"],
            stdout=subprocess.PIPE,
            cwd=queue.work,
            env=queue.environment,
        )
        for _ in range(6)
    ]
    numbers = {json.loads(process.communicate()[0])["id"] for process in racing}
    assert numbers == {str(number) for number in range(1, 7)}
    for number in numbers:
        assert queue.ended(number).attempt == 1
    queue.end()


def test_a_job_whose_keeper_is_killed_is_gone_and_its_processes_are_ended(queue: QueueLab) -> None:
    number = queue.submit("setsid sh -c 'echo $$ > hidden; exec sleep 1000' & sleep 1000")
    hidden = int(
        wait_until(
            "it runs",
            lambda: (queue.work / "hidden").exists() and (queue.work / "hidden").read_text(),
        )
    )
    begun, _ = Record(queue.folder, 1, 1).read()
    assert begun is not None
    os.kill(begun.keeper, signal.SIGKILL)
    job = queue.ended(number)
    assert (job.state, job.exit_code, job.elapsed) == ("gone", None, None)
    assert job.reason == "end not observed: exit status unknown"
    wait_until("an end of its processes", lambda: not is_alive(hidden) and not is_alive(begun.pid))


def test_a_supervisor_that_a_job_started_outlives_it_with_its_jobs(queue: QueueLab) -> None:
    program = shlex.join(
        [
            *queue.program,
            "submit",
            "--wrap=while [ ! -e end ]; do sleep 0.02; done; echo second >> log",
        ]
    )
    first = queue.submit(
        f"echo first >> log; while [ ! -e go ]; do sleep 0.02; done; {program}; sleep 0.3"
    )
    wait_until("it runs", lambda: runs(queue) == 1)
    queue.kill_supervisor()
    (queue.work / "go").touch()
    second = str(int(first) + 1)
    wait_until("it submits another", lambda: queue.store.find(int(second)))
    queue.wait(second, "running")
    supervisor = queue.supervisor
    assert queue.ended(first).state == "completed"
    assert (queue.job(second).state, queue.supervisor) == ("running", supervisor)
    (queue.work / "end").touch()
    assert queue.ended(second).state == "completed"
    assert (queue.work / "log").read_text() == "first\nsecond\n"


def test_without_proc_plain_jobs_run_and_their_group_is_ended(queue: QueueLab) -> None:
    without_supervisor(queue)
    number = submit_quietly(queue, "sleep 1000 & echo $! > child; wait")
    patch = (
        "from hpcdash.embedded import processes\n"
        "processes._PROC = Path('/no/such/folder')\n"
        "keeper.adopt_orphans = lambda: False\n"
    )
    process = supervise(queue, patch)
    child = int(
        wait_until(
            "it runs",
            lambda: (queue.work / "child").exists() and (queue.work / "child").read_text(),
        )
    )
    assert queue.act("suspend", number)[0]["done"]
    assert queue.act("resume", number)[0]["done"]
    assert queue.act("cancel", number)[0]["done"]
    assert queue.ended(number).state == "cancelled"
    assert not is_alive(child)
    ended = queue.submit("sleep 1000 & exit 3")
    assert queue.ended(ended).exit_code == 3
    process.terminate()
    process.wait()


def test_after_a_reboot_a_job_has_its_recorded_exit_or_is_gone(queue: QueueLab) -> None:
    seen = queue.submit("while [ ! -e go ]; do sleep 0.02; done; exit 6")
    unseen = queue.submit("sleep 1000")
    waiting = queue.submit(_RUN, f"--dependency=afterany:{unseen}")
    for number in (seen, unseen):
        queue.wait(number, "running")
        wait_until("it began", lambda number=number: Record(queue.folder, int(number), 1).read()[0])  # type: ignore[misc]
    queue.kill_supervisor()
    (queue.work / "go").touch()
    wait_until("its end", lambda: Record(queue.folder, int(seen), 1).read()[1])
    # The machine goes down with all that runs, and comes up as another start of it.
    for pid in queue.processes():
        os.kill(pid, signal.SIGKILL)
    wait_until("an end of all", lambda: not queue.processes())
    with queue.store.writing():
        queue.store.change(
            "UPDATE jobs SET boot = 'another', started_clock = 1e9 WHERE state = 'running'"
        )
    row = queue.rows("jobs", unseen)[0]
    assert row["state"] == "gone" or row["elapsed_seconds"] is None
    assert queue.ended(seen).exit_code == 6
    assert queue.ended(unseen).state == "gone"
    assert queue.ended(waiting).state == "completed"


def test_a_record_that_somebody_removed_makes_no_job_run_twice(queue: QueueLab) -> None:
    number = queue.submit(f"{_RUN}; sleep 1000")
    wait_until("it runs", lambda: runs(queue) == 1)
    shutil.rmtree(queue.folder / "attempts")
    queue.submit("true", "--hold")
    assert queue.ended(number).state == "gone"
    assert runs(queue) == 1


def test_a_supervisor_whose_folder_is_removed_ends(tmp_path: Path) -> None:
    queue = QueueLab(tmp_path / "queue", tmp_path / "work")
    queue.submit("true", "--begin=now+2")
    pid = queue.supervisor
    shutil.rmtree(queue.folder)
    wait_until("its end", lambda: not is_alive(pid))


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk takes root")
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"no small disk can be mounted here: {mounted.stderr.decode()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def test_a_full_disk_refuses_submissions_and_loses_no_end(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk"):
        queue = QueueLab(tmp_path / "disk" / "queue", tmp_path / "work")
        running = queue.submit("while [ ! -e go ]; do sleep 0.02; done; exit 3")
        waiting = queue.submit(_RUN, "--cpus-per-task=4")
        queue.wait(running, "running")
        fill(tmp_path / "disk" / "filler")
        for _ in range(40):
            # What SQLite has of room in its own files is used up first.
            refused = queue.run("submit", "--hold", stdin=b"#!/bin/sh\n" + b"#" * 50_000 + b"\n")
            if refused.returncode != 0:
                break
            fill(tmp_path / "disk" / "filler")
        assert refused.returncode == 1
        assert b"no space left for" in refused.stderr
        held = len(queue.rows("jobs"))
        (queue.work / "go").touch()
        wait_until("its end noted by its keeper", lambda: Record(queue.folder, 1, 1).read()[1])
        (tmp_path / "disk" / "filler").unlink()
        job = queue.ended(running)
        assert (job.state, job.exit_code) == ("failed", 3)
        assert queue.ended(waiting).state == "completed"
        assert runs(queue) == 1
        assert len(queue.rows("jobs")) >= held - 2
        queue.end()


def fill(path: Path) -> None:
    """Take all the room there is."""
    with contextlib.suppress(OSError), open(path, "ab", buffering=0) as stream:
        while True:
            stream.write(b"\0" * 4096)


@contextlib.contextmanager
def held_by_another(queue: QueueLab) -> Iterator[None]:
    other = sqlite3.connect(queue.folder / "queue.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.execute("ROLLBACK")
        other.close()


def test_a_queue_held_by_another_program_is_waited_for(queue: QueueLab) -> None:
    number = queue.submit("while [ ! -e go ]; do sleep 0.02; done; exit 5")
    queue.wait(number, "running")
    numbers: list[str] = []
    submitting = threading.Thread(target=lambda: numbers.append(queue.submit("true")))
    with held_by_another(queue):
        submitting.start()
        (queue.work / "go").touch()
        wait_until("its end noted by its keeper", lambda: Record(queue.folder, 1, 1).read()[1])
        assert queue.rows("jobs")[0]["state"] == "running", "who only looks need not wait"
    submitting.join()
    assert queue.ended(number).exit_code == 5
    assert queue.ended(numbers[0]).state == "completed"


def test_a_queue_held_for_very_long_is_told_and_its_supervisor_comes_again(
    queue: QueueLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_supervisor(queue)
    number = submit_quietly(queue, _RUN)
    with held_by_another(queue):
        monkeypatch.setattr(database, "_BUSY_SECONDS", 0.05)
        store = database.Database(queue.folder)
        with monkeypatch.context() as nfs:
            nfs.setattr(database, "has_locks", lambda folder: False)
            with (
                pytest.raises(
                    database.StoreUnusable, match="its file system does not support locks"
                ),
                store.writing(),
            ):
                pass
        with (
            pytest.raises(database.StoreUnusable, match="is locked by another program"),
            store.writing(),
        ):
            pass
        store.close()
        process = supervise(queue, "database._BUSY_SECONDS = 0.05\nsupervisor._IDLE_SECONDS = 0.1")
        wait_until("it noticed", lambda: "locked by another" in queue.log())
    assert queue.ended(number).state == "completed"
    assert process.wait() == 0
    assert queue.log().count("locked by another") == 1, "it says so once"


def test_a_clock_that_is_set_back_makes_no_time_negative(queue: QueueLab) -> None:
    without_supervisor(queue)
    number = submit_quietly(queue, "while [ ! -e go ]; do sleep 0.02; done")
    flag = queue.work / "back"
    process = supervise(
        queue,
        f"real = time.time\ntime.time = lambda: real() - (7200 if os.path.exists({str(flag)!r}) "
        "else 0)",
    )
    queue.wait(number, "running")
    flag.touch()
    (queue.work / "go").touch()
    job = queue.ended(number)
    assert job.started_at is not None
    assert job.ended_at is not None
    assert job.ended_at >= job.started_at
    assert 0 <= (job.elapsed or 0) < 1000
    process.terminate()
    process.wait()


def test_a_damaged_or_newer_file_is_refused_in_words(queue: QueueLab) -> None:
    queue.submit("true", "--hold")
    queue.kill_supervisor()
    with sqlite3.connect(queue.folder / "queue.db") as other:
        other.execute("PRAGMA user_version = 99")
    done = queue.run("jobs")
    assert (
        done.returncode,
        b"was written by another version of hpcdash (format 99" in done.stderr,
    ) == (1, True)
    for name in ("queue.db-wal", "queue.db-shm"):
        (queue.folder / name).unlink(missing_ok=True)
    (queue.folder / "queue.db").write_bytes(b"no database" * 1000)
    done = queue.run("jobs")
    assert (done.returncode, b"is damaged" in done.stderr) == (1, True)
    (queue.folder / "queue.db").unlink()


def test_a_script_that_imports_the_former_name_ends_with_the_new_one(queue: QueueLab) -> None:
    """Cron scripts ran `python -m hpcdash.local FOLDER`; a job's scancel imported from it."""
    root = Path(database.__file__).parent.parent.parent
    program = f"import sys; sys.path.insert(0, {str(root)!r}); import hpcdash.local.scancel"
    for words in (
        ("-P", "-m", "hpcdash.local", str(queue.folder), "jobs"),
        ("-I", "-S", "-c", program),
    ):
        done = subprocess.run(
            (sys.executable, *words), env=queue.environment, capture_output=True, check=False
        )
        assert done.returncode == 1
        assert b"hpcdash.local was renamed to hpcdash.embedded" in done.stderr.splitlines()[-1]
