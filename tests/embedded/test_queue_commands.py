"""The embedded queue's command line: tokens, ids, its start, and what it says of the machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from hpcdash.embedded.start import supervisor_pid
from tests.embedded.queue_lab import QueueLab, is_alive
from tests.support.waiting import wait_until


def test_a_token_that_comes_twice_gives_the_same_number(queue: QueueLab) -> None:
    script = b"#!/bin/sh\necho run >> log\n"
    first = queue.run("submit", "--token", "abc", stdin=script)
    again = queue.run("submit", "--token", "abc", stdin=script)
    assert first.stdout == again.stdout == b'{"id":"1","ignored":[]}\n'
    assert queue.ask("find", "abc") == {"id": "1"}
    assert queue.ask("find", "other") == {"id": None}
    queue.ended("1")
    assert len(queue.store.jobs()) == 1
    assert (queue.work / "log").read_text() == "run\n"


def test_tokens_that_race_make_one_submission(queue: QueueLab) -> None:
    racing = [
        subprocess.Popen(
            [*queue.program, "submit", "--token", "same", "--hold", "--wrap=true"],
            stdout=subprocess.PIPE,
            cwd=queue.work,
            env=queue.environment,
        )
        for _ in range(4)
    ]
    assert {process.communicate()[0] for process in racing} == {b'{"id":"1","ignored":[]}\n'}


def test_jobs_are_named_by_number_task_or_tasks(queue: QueueLab) -> None:
    array = queue.submit("true", "--array=0-9", "--hold")
    plain = queue.submit("true", "--hold")
    assert (array, plain) == ("1", "11")
    assert len(queue.rows("jobs", "1")) == 10
    assert [row["id"] for row in queue.rows("jobs", "1_[2-3,9]")] == ["1_2", "1_3", "1_9"]
    assert [row["id"] for row in queue.rows("jobs", "3", "11")] == ["1_2", "11"], (
        "a task has a number of its own"
    )
    for words, status in (
        (["jobs", "12"], 1),
        (["jobs", "1_77"], 1),
        (["show", "x;y"], 2),
        (["jobs", "²"], 2),
    ):
        done = queue.run(*words)
        assert (done.returncode, done.stdout) == (status, b"")
        assert b"no such job" in done.stderr if status == 1 else b"is not a job" in done.stderr
    assert queue.act("cancel", "12", "11") == [
        {"job_id": "12", "done": False, "words": "no such job in this queue"},
        {"job_id": "11", "done": True, "words": ""},
    ]


def test_commands_called_in_a_wrong_way_say_how(queue: QueueLab) -> None:
    for words in (
        ["nonsense"],
        ["find"],
        ["alter", "time=3"],
        ["signal", "USR1"],
        ["history", "--since"],
        ["history", "--since", "x"],
    ):
        done = queue.run(*words)
        assert done.returncode == 2, words
        assert done.stderr
        assert b"Traceback" not in done.stderr


def test_a_command_starts_at_once_without_the_table_library(queue: QueueLab) -> None:
    queue.rows("jobs")
    loaded = subprocess.run(
        [sys.executable, "-X", "importtime", *queue.program[1:], "jobs"],
        capture_output=True,
        env=queue.environment,
        check=True,
    ).stderr.decode()
    names = {line.rpartition("|")[2].strip() for line in loaded.splitlines()}
    assert "hpcdash.embedded.store" in names
    slow = {
        "pyarrow",
        "textual",
        "rich",
        "msgspec",
        "asyncio",
        "asyncssh",
        "subprocess",
        "ctypes",
        "click",
        "socket",
    }
    assert not names & slow
    assert "hpcdash.embedded.supervisor" not in names


def test_gpus_are_asked_for_once(queue: QueueLab, tmp_path: Path) -> None:
    queue.set_slots(cpus=4)
    programs = tmp_path / "programs"
    programs.mkdir()
    fake = programs / "nvidia-smi"
    fake.write_text(
        f"#!/bin/sh\necho asked >> {tmp_path}/asked\nprintf '0, Tesla T4\\n1, Tesla T4\\n'\n"
    )
    fake.chmod(0o755)
    queue.environment["PATH"] = f"{programs}:{os.environ['PATH']}"
    columns = queue.ask("nodes")["columns"]
    assert (columns["gpus"], columns["gpu_type"], columns["cpus"]) == ([2], ["tesla_t4"], [4])
    number = queue.submit("echo $CUDA_VISIBLE_DEVICES", "--gpus=2")
    queue.ended(number)
    assert queue.output(number) == "0,1\n"
    assert (tmp_path / "asked").read_text() == "asked\n"


def test_nodes_and_queues_count_what_runs(queue: QueueLab) -> None:
    queue.set_slots(cpus=3, gpus=2)
    number = queue.submit("sleep 1000", "-c2", "-G1")
    queue.submit("true", "-c3")
    queue.wait(number, "running")
    node = {name: values[0] for name, values in queue.ask("nodes")["columns"].items()}
    assert (node["state"], node["cpus"], node["cpus_used"], node["gpus_used"], node["jobs"]) == (
        "mixed",
        3,
        2,
        1,
        1,
    )
    line = {name: values[0] for name, values in queue.ask("queues")["columns"].items()}
    assert (line["jobs_running"], line["jobs_pending"], line["cpus_used"]) == (1, 1, 2)


def test_a_supervisor_ends_when_it_is_idle_and_comes_back_when_needed(queue: QueueLab) -> None:
    short = (
        "import sys; from pathlib import Path; from hpcdash.embedded import supervisor;"
        " supervisor._IDLE_SECONDS = 0.2; supervisor.supervise(Path(sys.argv[1]), [])"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", short, str(queue.folder)], env=queue.environment
    )
    assert process.wait() == 0
    assert supervisor_pid(queue.folder) is None
    assert queue.ended(queue.submit("true")).state == "completed"
    assert supervisor_pid(queue.folder) is not None


def test_an_idle_supervisor_uses_no_time(queue: QueueLab) -> None:
    number = queue.submit("sleep 1000")
    queue.wait(number, "running")
    wait_until("it listens", lambda: (queue.folder / "wake").exists())
    path = Path(f"/proc/{queue.supervisor}/stat")

    def ticks() -> int:
        return sum(map(int, path.read_text().rpartition(")")[2].split()[11:13]))

    before = ticks()
    over = time.monotonic() + 1.0
    wait_until("a second", lambda: time.monotonic() > over)
    assert ticks() - before <= 1


def test_nothing_secret_is_in_a_command_line(queue: QueueLab) -> None:
    number = queue.submit("sleep 1000", env={"API_KEY": "hunter2"})
    queue.wait(number, "running")
    lines = queue.processes()
    assert any("supervise" in line for line in lines.values())
    assert not any("hunter2" in line for line in lines.values())


def test_a_supervisor_survives_the_end_of_its_terminal_and_of_who_started_it(
    queue: QueueLab,
) -> None:
    queue.submit("true", "--hold")
    pid = queue.supervisor
    wait_until("it listens", lambda: (queue.folder / "wake").exists())
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    assert os.getsid(pid) != os.getsid(0)
    assert fields[1] != str(os.getpid())
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    descriptors = {os.readlink(f"/proc/{pid}/fd/{number}") for number in (0, 1)}
    assert descriptors == {os.devnull}
    assert is_alive(pid)
