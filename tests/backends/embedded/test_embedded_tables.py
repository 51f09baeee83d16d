"""The embedded queue's backend on its real command line: what is parsed is what was submitted."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import pytest

from hpcdash.backends.base import Capability
from hpcdash.backends.embedded.backend import embedded_backend
from hpcdash.backends.job_detail import JobDetail
from hpcdash.backends.queries import JobScope, Query
from hpcdash.domain.schema import JOBS, NODES, QUEUES
from hpcdash.errors import (
    CommandMissing,
    ControllerDown,
    NoSuchJob,
    SchedulerRefused,
    UnreadableOutput,
    UsageError,
)
from tests.embedded.queue_lab import QueueLab

pytestmark = pytest.mark.system
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Answered:
    argv: tuple[str, ...]
    status: int
    stdout: bytes
    stderr: bytes
    truncated: bool = False


def run(argv: tuple[str, ...], queue: QueueLab) -> Answered:
    done = subprocess.run(
        argv, capture_output=True, env=queue.environment, cwd=queue.work, check=False
    )
    return Answered(argv, done.returncode, done.stdout, done.stderr)


class Asked:
    """A queue with its backend."""

    def __init__(self, queue: QueueLab) -> None:
        self.queue = queue
        self.backend = embedded_backend(queue.program)

    def run_query(self, query: Query[T]) -> T:
        return query.parse(run(query.argv, self.queue))

    def rows(self, scope: JobScope) -> list[dict[str, Any]]:
        parsed = self.run_query(self.backend.queue.jobs(scope))
        assert parsed.rejected == ()
        assert parsed.table.schema.equals(JOBS)
        return parsed.table.to_pylist()  # type: ignore[no-any-return]


@pytest.fixture
def asked(tmp_path: Path) -> Iterator[Asked]:
    queue = QueueLab(tmp_path / "queue", tmp_path / "work", gpus=2)
    yield Asked(queue)
    queue.end()


def test_a_probe_names_who_and_what_is_there(asked: Asked) -> None:
    probe = asked.run_query(asked.backend.probe.query())
    assert probe.version.startswith("hpcdash ")
    assert probe.controller_answers
    assert probe.has_accounting
    assert abs((probe.clock_epoch_seconds or 0) - datetime.now(UTC).timestamp()) < 1000


def test_an_empty_queue_is_an_empty_table_of_the_same_schema(asked: Asked) -> None:
    assert asked.rows(JobScope()) == []
    history = asked.run_query(asked.backend.history.jobs(None, 3600))
    assert (history.table.num_rows, history.table.schema.equals(JOBS)) == (0, True)


def test_a_waiting_job_s_row_holds_all_that_was_asked_for(asked: Asked) -> None:
    queue = asked.queue
    number = queue.submit(
        "true",
        "--job-name=\x1b[31mred",
        "--hold",
        "--account=proj",
        "-n2",
        "-c2",
        "-G1",
        "--mem=3G",
        "--time=1-0",
        '--comment=why, "so"',
        "--output=%x.%j",
    )
    (row,) = asked.rows(JobScope())
    submitted = row.pop("submitted_at")
    assert abs((submitted - datetime.now(UTC)).total_seconds()) < 1000
    assert row.pop("eligible_at") == submitted
    assert row.pop("user")
    assert row == {
        "id": number,
        "array_id": None,
        "array_task": None,
        "name": "\x1b[31mred",
        "account": "proj",
        "queue": "local",
        "qos": None,
        "state": "held",
        "native_state": "PENDING",
        "reason": "JobHeldUser",
        "priority": None,
        "nodes": 1,
        "cpus": 4,
        "gpus": 1,
        "memory_bytes": 3 << 30,
        "elapsed_seconds": 0,
        "limit_seconds": 86400,
        "started_at": None,
        "ends_at": None,
        "node_list": None,
        "work_dir": str(queue.work),
        "stdout_path": f"{queue.work}/\x1b[31mred.{number}",
        "stderr_path": f"{queue.work}/\x1b[31mred.{number}",
        "dependency": None,
        "comment": 'why, "so"',
        "exit_code": None,
        "exit_signal": None,
        "_number": 1,
        "_task": None,
        "_tasks": 1,
        "_expected_start_at": None,
        "_other_id": None,
    }


def test_an_array_s_tasks_are_rows_in_order(asked: Asked) -> None:
    number = asked.queue.submit("true", "--array=8-12:2", "--hold")
    rows = asked.rows(JobScope(job_ids=(number,)))
    assert [
        (row["id"], row["array_id"], row["array_task"], row["_number"], row["_task"])
        for row in rows
    ] == [(f"{number}_{task}", number, str(task), 1, task) for task in (8, 10, 12)]
    assert [row["id"] for row in asked.rows(JobScope(job_ids=(f"{number}_[10-12]",)))] == [
        "1_10",
        "1_12",
    ]


def test_running_and_ended_jobs_tell_their_times_and_exit(asked: Asked) -> None:
    queue = asked.queue
    runs = queue.submit("sleep 1000", "--time=10")
    ended = queue.submit("kill -9 $$", "--error=err")
    queue.wait(runs, "running")
    queue.ended(ended)
    rows = {row["id"]: row for row in asked.rows(JobScope(ended=True))}
    assert list(rows) == [runs, ended]
    row = rows[runs]
    assert (row["state"], row["native_state"], row["exit_code"]) == ("running", "RUNNING", None)
    assert (row["ends_at"] - row["started_at"]).total_seconds() == 600
    assert row["node_list"]
    row = rows[ended]
    assert (row["state"], row["exit_code"], row["exit_signal"]) == ("failed", 0, 9)
    assert row["stderr_path"] == str(queue.work / "err")
    assert row["ends_at"] >= row["started_at"]
    assert [row["id"] for row in asked.rows(JobScope())] == [runs]
    history = asked.run_query(asked.backend.history.jobs("", 3600)).table
    assert history.column("id").to_pylist() == [ended]
    both = asked.run_query(asked.backend.history.jobs("", 1, (runs, ended))).table
    assert both.column("id").to_pylist() == [runs, ended]


def test_nodes_and_queues_have_their_schemas(asked: Asked) -> None:
    nodes = asked.run_query(asked.backend.queue.nodes()).table
    assert nodes.schema.equals(NODES)
    (node,) = nodes.to_pylist()
    assert (node["state"], node["cpus"], node["gpus"], node["queues"]) == ("idle", 4, 2, ["local"])
    queues = asked.run_query(asked.backend.queue.queues()).table
    assert queues.schema.equals(QUEUES)
    (line,) = queues.to_pylist()
    assert (line["name"], line["cpus"], line["jobs_pending"], line["default"]) == (
        "local",
        4,
        0,
        True,
    )


def test_one_job_s_words_script_usage_and_logs_are_there(asked: Asked) -> None:
    queue, backend = asked.queue, asked.backend
    number = queue.submit(
        "echo caf\u00e9", "--error=%j.err", "--signal=B:USR1@30", "--time=5", "--partition=x"
    )
    queue.ended(number)
    native = asked.run_query(backend.detail.native(number))
    assert native["JobState"] == "COMPLETED"
    assert native["EarlySignal"] == "B:10@30"
    assert native["Ignored"] == "--partition=x"
    row = asked.run_query(backend.queue.jobs(JobScope(job_ids=(number,)))).table
    files = backend.logs.files(JobDetail(row, native), None)
    assert (files.stdout, files.stderr) == (
        f"{queue.work}/slurm-{number}.out",
        f"{queue.work}/{number}.err",
    )
    assert asked.run_query(backend.scripts.query(number)).text == "#!/bin/sh\necho caf\u00e9\n"
    query = backend.detail.usage(row.to_pylist()[0])
    assert query is not None
    usage = asked.run_query(query)
    assert usage.cpus == 1
    assert usage.cpu_seconds is not None
    assert backend.scripts.explain("#SBATCH --time=10") != ""
    assert backend.reasons.hint("pending", "Resources") != ""
    assert Capability.EXPECTED_START not in backend.capabilities


def test_a_script_that_is_no_utf8_comes_back_byte_for_byte(asked: Asked) -> None:
    script = b"#!/bin/sh\n# \xff\n"
    asked.queue.run("submit", "--hold", stdin=script)
    text = asked.run_query(asked.backend.scripts.query("1")).text
    assert text.encode("utf-8", "surrogateescape") == script


def test_a_job_that_is_not_there_is_no_such_job(asked: Asked) -> None:
    backend = asked.backend
    for query in (
        backend.detail.native("7"),
        backend.scripts.query("7"),
        backend.queue.jobs(JobScope(job_ids=("7",))),
        backend.history.jobs("", 60, ("7_3",)),
    ):
        with pytest.raises(NoSuchJob, match="no such job in this queue: 7") as refused:
            asked.run_query(query)
        # Nobody types the queue's own program.
        assert refused.value.evidence == ""


def test_what_can_be_no_job_is_refused_before_it_is_asked_for(asked: Asked) -> None:
    backend = asked.backend
    for build_query in (
        backend.detail.native,
        backend.scripts.query,
        lambda text: backend.history.jobs("", 60, (text,)),
        lambda text: backend.queue.jobs(JobScope(job_ids=("7", text))),
    ):
        for text in ("train.log", "--help", "_3", "./17"):
            with pytest.raises(UsageError, match="is not a job\nUse 17, 17_3"):
                build_query(text)


@pytest.mark.parametrize("damage", ["UPDATE submissions SET request = '{'", "DROP TABLE jobs"])
def test_a_queue_whose_content_cannot_be_read_is_damaged(asked: Asked, damage: str) -> None:
    asked.queue.submit("true", "--hold")
    asked.queue.kill_supervisor()
    with sqlite3.connect(asked.queue.folder / "queue.db") as connection:
        connection.execute(damage)
    connection.close()
    with pytest.raises(ControllerDown, match=r"queue\.db is damaged") as damaged:
        asked.run_query(asked.backend.queue.jobs(JobScope()))
    assert "Traceback" not in str(damaged.value)
    for path in asked.queue.folder.glob("queue.db*"):
        path.unlink()


def test_a_fault_of_the_queues_program_is_told_as_one(asked: Asked) -> None:
    broken = embedded_backend((sys.executable, "-c", "raise RuntimeError('of the test')"))
    with pytest.raises(SchedulerRefused, match="program failed") as failed:
        asked.run_query(broken.queue.jobs(JobScope()))
    assert "RuntimeError: of the test" in failed.value.output


def test_a_queue_that_cannot_be_used_and_a_program_that_is_not_there_have_their_own_errors(
    asked: Asked, tmp_path: Path
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    other = embedded_backend((*asked.queue.program[:-1], str(blocked / "queue")))
    with pytest.raises(ControllerDown, match="cannot be created: Not a directory"):
        asked.run_query(other.queue.jobs(JobScope()))
    (asked.queue.folder / "queue.db").write_bytes(b"no database" * 1000)
    with pytest.raises(ControllerDown, match="is damaged") as damaged:
        asked.run_query(asked.backend.queue.jobs(JobScope()))
    folder = asked.queue.folder
    assert f"mv {folder} {folder}.damaged" in damaged.value.next_step
    assert str(damaged.value).count("is damaged") == str(damaged.value).count("mv ") == 1
    (asked.queue.folder / "queue.db").unlink()
    missing = embedded_backend((sys.executable, "-I", "-m", "hpcdash_not_there", "x"))
    with pytest.raises(CommandMissing):
        asked.run_query(missing.probe.query())
    talks = embedded_backend(("echo", "welcome"))
    with pytest.raises(UnreadableOutput):
        asked.run_query(talks.queue.jobs(JobScope()))
