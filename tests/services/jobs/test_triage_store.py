"""An array's ended tasks are gathered with the last words of their logs, with few commands, and
each log read once.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from hpcdash.backends.slurm.backend import BACKEND
from hpcdash.errors import ConnectionFailed, NoSuchJob, UsageError
from hpcdash.services.cluster.clock import FrozenClock
from hpcdash.services.cluster.queries import CommandBudget
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.jobs import triage as triage_module
from hpcdash.services.jobs.triage import Triage, TriageReader, fetch_tasks, path_template
from hpcdash.services.logs.ends import END_BYTES, LogEnd, ends_query
from tests.support.records import for_each
from tests.support.scripted_cluster import LOG_ENDS, end_task, failed_array
from tests.support.scripted_transport import ScriptedTransport
from tests.support.slurm_text import answered


def store_of(transport: ScriptedTransport) -> ClusterStore:
    return ClusterStore(
        "lab", transport, (BACKEND,), clock=FrozenClock(1_795_250_000.0), budget=CommandBudget(600)
    )


def told(triage: Triage) -> list[tuple[str, str, str | None]]:
    return [(str(group.tasks), group.state, group.line) for group in triage.groups]


@pytest.mark.system
async def test_tasks_are_grouped_by_how_they_ended_and_what_their_logs_say(tmp_path: Path) -> None:
    transport = failed_array(tmp_path)
    triage = await TriageReader(store_of(transport), "88_3").read()
    assert told(triage) == [
        ("3,7-8", "failed", "RuntimeError: CUDA out of memory. Tried to allocate 3.50 GiB"),
        ("1", "timeout", "step 1"),
        ("9", "failed", "line 4: nvidia-smi: command not found"),
        ("0,2,4-5", "completed", None),
    ]
    assert (triage.groups[0].node, triage.notes) == ("g1", ())
    # The queue, the history, where two tasks write, and one look into all logs.
    assert transport.count(LOG_ENDS) == 1
    assert len(transport.asked) <= 7


@pytest.mark.system
async def test_a_log_is_read_once_and_that_of_a_task_that_failed_since_is_read_too(
    tmp_path: Path,
) -> None:
    transport = failed_array(tmp_path)
    reader = TriageReader(store_of(transport), "88")
    await reader.read()
    await reader.read()
    assert transport.count(LOG_ENDS) == 1
    end_task(transport, tmp_path, 6, "FAILED", "256", "g1", "ValueError: nan\n")
    triage = await reader.read()
    assert transport.count(LOG_ENDS) == 2
    assert ("6", "failed", "ValueError: nan") in told(triage)


@pytest.mark.system
async def test_how_tasks_ended_is_told_before_their_logs_are_read(tmp_path: Path) -> None:
    seen: list[list[str | None]] = []
    reader = TriageReader(store_of(failed_array(tmp_path)), "88", lambda: seen.append(lines()))

    def lines() -> list[str | None]:
        assert reader.triage is not None
        return [group.line for group in reader.triage.groups if group.failed]

    await reader.read()
    assert seen[0] == [None] * len(seen[0])
    assert None not in seen[-1]


async def test_logs_that_cannot_be_read_are_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = failed_array(tmp_path)
    store = store_of(transport)

    async def cut_off(*arguments: object) -> None:
        raise ConnectionFailed("the line was cut")

    monkeypatch.setattr(triage_module, "locate_logs", cut_off)
    triage = await TriageReader(store, "88").read()
    assert triage.notes == ("the logs were not read: the line was cut",)
    assert len(triage.failed_rows) == 5


@pytest.mark.system
async def test_past_a_number_of_logs_the_rest_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triage_module, "MAX_LOGS", 2)
    triage = await TriageReader(store_of(failed_array(tmp_path)), "88").read()
    assert triage.notes == ("the logs of 2 failed tasks were read, 3 were not",)


async def test_what_the_queue_says_of_a_task_counts_before_accounting(tmp_path: Path) -> None:
    transport = failed_array(tmp_path, {1: ("FAILED", "2304", "g1", "")})
    transport.history = [
        {"jobid": "88_1", "state": "FAILED", "exitcode": "9:0"},
        {"jobid": "88_2", "state": "FAILED", "exitcode": "9:0"},
    ]
    tasks = await fetch_tasks(store_of(transport), "88")
    assert {row["id"]: row["exit_code"] for row in tasks.ended} == {"88_1": 9, "88_2": 137}


async def test_a_job_that_is_no_array_is_refused_and_so_is_one_nobody_knows(tmp_path: Path) -> None:
    transport = failed_array(tmp_path)
    transport.recent.append({"jobarrayid": "90", "arrayjobid": "90"})
    with pytest.raises(UsageError, match="job 90 is not an array"):
        await fetch_tasks(store_of(transport), "90")
    with pytest.raises(NoSuchJob):
        await fetch_tasks(store_of(transport), "91")


@for_each(
    ("paths", "of_12"),
    [
        (("/w/slurm-88_3.out", "/w/slurm-88_7.out"), "/w/slurm-88_12.out"),
        (("/w/7/a-003.out", "/w/7/a-007.out"), "/w/7/a-012.out"),
        (("/w/3/3.out", "/w/7/7.out"), "/w/12/12.out"),
        (("/w/88_3/log", "/w/88_7/log"), "/w/88_12/log"),
    ],
)
def test_two_paths_tell_those_of_all_tasks(paths: tuple[str, str], of_12: str) -> None:
    template = path_template(paths, ("3", "7"))
    assert template is not None
    assert template.path("12") == of_12


@for_each(
    "paths",
    [
        ("/w/101.out", "/w/105.out"),
        ("/w/g1-3.out", "/w/g2-7.out"),
        ("/w/all.out", "/w/all.out"),
        ("/w/a3.out", "/w/b7.out"),
        (None, "/w/7.out"),
    ],
    ids=["a job's own number", "a node's name", "the same file", "other words", "unknown"],
)
def test_paths_that_differ_in_more_than_the_task_tell_nothing(
    paths: tuple[str | None, str | None],
) -> None:
    assert path_template(paths, ("3", "7")) is None


def ends_of(*files: tuple[str | None, str | None], shell: str = "sh") -> tuple[LogEnd, ...]:
    query = ends_query(files)
    found = subprocess.run((shell, *query.argv[1:]), capture_output=True, check=False)
    return query.parse(
        answered(found.stdout, status=found.returncode, stderr=found.stderr, argv=query.argv)
    )


@pytest.mark.system
@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_the_ends_of_many_files_come_with_one_command(tmp_path: Path, shell: str) -> None:
    files = {
        "out": "one\ntwo\n",
        "err": "bad\n",
        "blank": " \n\n",
        "-n odd": "kept",
        "long": "x" * END_BYTES + "\nlast\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    os.mkfifo(tmp_path / "pipe")
    at = {name: str(tmp_path / name) for name in (*files, "pipe", "none")}
    ends = ends_of(
        (at["out"], at["err"]),
        (at["out"], at["blank"]),
        (at["-n odd"], None),
        (at["long"], at["none"]),
        (at["pipe"], None),
        (at["none"], None),
        (None, None),
        ("bad\0path", None),
        shell=shell,
    )
    assert [end.lines for end in ends[:4]] == [
        ("bad", ""),
        ("one", "two", ""),
        ("kept",),
        ("last", ""),
    ]
    assert ends[4].problem == "the log is not a regular file"
    assert {end.problem for end in ends[5:]} == {"the log does not exist"}


@pytest.mark.system
def test_what_a_log_says_is_made_visible(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"\x1b]0;evil\x07\xff\x1b[31mred\x1b[0m \x08\n")
    [end] = ends_of((str(tmp_path / "log"), None))
    assert "\x1b" not in "".join(end.lines)
    assert "red" in end.lines[0]


def test_an_answer_cut_short_is_told_for_each_file_it_lacks(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("a\n")
    query = ends_query([(str(tmp_path / "log"), None)] * 3)
    assert {end.problem for end in query.parse(answered(b""))} == {"the answer was cut short"}
