"""Why a job failed is read once from the end of its log; of a launch that runs, its containers are
counted.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from hpcdash.backends.script.folder import CONTAINER_UP
from hpcdash.backends.slurm.backend import BACKEND
from hpcdash.errors import ConnectionFailed
from hpcdash.services.cluster.queries import CommandBudget
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.jobs.failures import FAILED, fetch_failure
from hpcdash.services.jobs.overview import CONTAINERS_EVERY_SECONDS, JobFacts, Part
from hpcdash.services.jobs.page import job_groups
from tests.support.scripted_cluster import HandClock
from tests.support.scripted_transport import ScriptedTransport, run_here
from tests.support.slurm_text import Fields, shown_job

pytestmark = pytest.mark.system
TRACEBACK = """Traceback (most recent call last):
  File "train.py", line 3, in <module>
ValueError: nan in the loss
"""
FAILED_JOB: Fields = {"state": "FAILED", "exit_code": "256", "username": "alice"}
LAUNCH: Fields = {
    "comment": "hpcdash:0123456789",
    "numnodes": "2",
    "nodelist": "g[1-2]",
    "username": "alice",
}


SCRIPT, LOG_END, LOG_HEAD = "scontrol write", "sh*tail -c", "sh*head -c"


def one_job(
    folder: Path, row: Fields, *, joined: bool = False, script: str = "#!/bin/bash\n"
) -> ScriptedTransport:
    """A cluster with job 88, whose files are 88.out and 88.err of a folder, read by a real
    shell.
    """
    stdout, stderr = folder / "88.out", folder / ("88.out" if joined else "88.err")
    transport = ScriptedTransport({"jobarrayid": "88", **row})
    transport.recent = transport.mine
    transport.answers = {
        LOG_HEAD: run_here,
        LOG_END: run_here,
        SCRIPT: script,
        "scontrol*show": shown_job("88", StdErr=stderr, StdOut=stdout),
    }
    return transport


def read(transport: ScriptedTransport) -> list[str]:
    """What each look at a file or a script was for."""
    ran = transport.ran(is_look)
    return [
        "script" if words[0] == "scontrol" else "end" if "tail -c" in words[2] else "head"
        for words in ran
    ]


def is_look(words: tuple[str, ...]) -> bool:
    return words[:2] == ("scontrol", "write") or (
        words[0] == "sh" and ("tail -c" in words[2] or "head -c" in words[2])
    )


class Watched:
    """A picture of job 88, and what it says."""

    def __init__(self, transport: ScriptedTransport, **options: Any) -> None:
        self.clock = HandClock()
        store = ClusterStore(
            "lab", transport, (BACKEND,), clock=self.clock, budget=CommandBudget(600, self.clock)
        )
        self.picture = JobFacts(store, "88", **options)

    def says(self, label: str) -> str:
        groups = job_groups(self.picture, self.clock_time, signs={})
        return next(
            (entry.text for group in groups for entry in group.entries if entry.label == label), ""
        )

    def remarks(self) -> list[str]:
        groups = job_groups(self.picture, self.clock_time, signs={})
        return [
            entry.value
            for group in groups
            for entry in group.entries
            if entry.is_dim and "log" in entry.value
        ]

    @property
    def clock_time(self) -> datetime:
        return datetime.fromtimestamp(self.clock.now(), UTC)


async def test_the_line_that_says_why_stands_before_how_it_ended(tmp_path: Path) -> None:
    transport = one_job(tmp_path, FAILED_JOB)
    (tmp_path / "88.err").write_text(
        f"{TRACEBACK}srun: error: g1: task 0: Exited with exit code 1\n"
    )
    watched = Watched(transport)
    await watched.picture.fetch()
    assert watched.says("stderr says") == "ValueError: nan in the loss"
    [job] = [
        group
        for group in job_groups(watched.picture, watched.clock_time, signs={})
        if group.title == "Job"
    ]
    labels = [entry.label for entry in job.entries]
    assert labels[labels.index("state") + 1] == "stderr says"
    assert labels.index("ended with") > labels.index("stderr says")


async def test_it_is_read_once_with_one_command_and_anew_once_the_job_failed_again(
    tmp_path: Path,
) -> None:
    transport = one_job(tmp_path, FAILED_JOB)
    (tmp_path / "88.err").write_text(TRACEBACK)
    watched = Watched(transport)
    await watched.picture.fetch()
    await watched.picture.fetch()
    assert read(transport) == ["end"]
    transport.mine = transport.recent = [{**transport.mine[0], "endtime": "1795285999"}]
    (tmp_path / "88.err").write_text("Killed\n")
    await watched.picture.fetch()
    assert read(transport) == ["end", "end"]
    assert watched.says("stderr says") == "Killed"


@pytest.mark.parametrize(
    "row",
    [
        {"state": "RUNNING", "username": "alice"},
        {"state": "PENDING", "username": "alice", "starttime": "N/A", "nodelist": ""},
        {"state": "COMPLETED", "username": "alice"},
        {"state": "CANCELLED", "username": "alice"},
    ],
    ids=lambda row: str(row["state"]),
)
async def test_the_log_of_a_job_that_did_not_fail_is_not_read(tmp_path: Path, row: Fields) -> None:
    transport = one_job(tmp_path, row)
    (tmp_path / "88.err").write_text(TRACEBACK)
    watched = Watched(transport)
    await watched.picture.fetch()
    assert read(transport) == []
    assert watched.picture.failure is None


async def test_where_stderr_does_not_say_why_stdout_may(tmp_path: Path) -> None:
    transport = one_job(tmp_path, FAILED_JOB)
    (tmp_path / "88.err").write_text("srun: error: g1: task 0: Exited with exit code 1\n")
    (tmp_path / "88.out").write_text(TRACEBACK)
    watched = Watched(transport)
    await watched.picture.fetch()
    assert watched.says("stdout says") == "ValueError: nan in the loss"


async def test_what_merely_stands_at_the_end_is_told_as_such(tmp_path: Path) -> None:
    transport = one_job(tmp_path, FAILED_JOB, joined=True)
    (tmp_path / "88.out").write_text("step 1\nstep 2\n")
    watched = Watched(transport)
    await watched.picture.fetch()
    assert watched.says("log ends with") == "step 2"


async def test_no_more_than_the_end_of_a_large_log_is_read(tmp_path: Path) -> None:
    transport = one_job(tmp_path, FAILED_JOB, joined=True)
    (tmp_path / "88.out").write_text(
        "ModuleNotFoundError: early\n" + "step\n" * 200_000 + TRACEBACK
    )
    watched = Watched(transport)
    await watched.picture.fetch()
    failure = watched.picture.failure
    assert failure is not None
    assert failure.excerpt is not None
    assert failure.text == "ValueError: nan in the loss"
    assert len(failure.excerpt.lines) == 15


async def test_with_debug_more_of_the_log_is_shown(tmp_path: Path) -> None:
    transport = one_job(tmp_path, FAILED_JOB, joined=True)
    (tmp_path / "88.out").write_text("step\n" * 300)
    watched = Watched(transport, debug=True)
    await watched.picture.fetch()
    failure = watched.picture.failure
    assert failure is not None
    assert failure.excerpt is not None
    assert len(failure.excerpt.lines) == 100


async def test_a_log_that_is_not_there_or_not_reached_is_said_in_few_words_and_read_the_next_time(
    tmp_path: Path,
) -> None:
    transport = one_job(tmp_path, FAILED_JOB)
    watched = Watched(transport)
    await watched.picture.fetch()
    assert watched.remarks() == ["end of log: the log does not exist"]
    transport.fails[LOG_END] = ConnectionFailed("the line was cut")
    await watched.picture.fetch()
    assert isinstance(watched.picture.errors[Part.LOG], ConnectionFailed)
    transport.fails.clear()
    (tmp_path / "88.err").write_text(TRACEBACK)
    await watched.picture.fetch()
    assert watched.says("stderr says") == "ValueError: nan in the loss"


async def test_an_empty_log_is_said_to_be_empty(tmp_path: Path) -> None:
    transport = one_job(tmp_path, FAILED_JOB, joined=True)
    (tmp_path / "88.out").touch()
    watched = Watched(transport)
    await watched.picture.fetch()
    assert watched.remarks() == ["end of log: the log is empty"]


def test_the_state_of_a_cancelled_job_says_enough() -> None:
    assert "cancelled" not in FAILED
    assert "gone" in FAILED


CONTAINER_SCRIPT = f'#!/bin/bash\necho "{CONTAINER_UP}$(hostname)"\n'


async def test_a_launch_says_how_many_of_its_containers_are_up_until_all_are(
    tmp_path: Path,
) -> None:
    transport = one_job(tmp_path, LAUNCH, script=CONTAINER_SCRIPT)
    watched = Watched(transport)
    await watched.picture.fetch()
    assert watched.says("launch") == "pulling: 0 of 2 containers up"
    (tmp_path / "88.err").write_text(f"INFO: pulling\n{CONTAINER_UP}g2\n")
    await watched.picture.keep_containers_fresh()
    assert read(transport) == ["script", "head"], "asked again too soon"
    watched.clock.seconds += CONTAINERS_EVERY_SECONDS
    await watched.picture.keep_containers_fresh()
    assert watched.says("launch") == "pulling: 1 of 2 containers up"
    (tmp_path / "88.err").write_text(f"{CONTAINER_UP}g2\n{CONTAINER_UP}g1\n")
    watched.clock.seconds += CONTAINERS_EVERY_SECONDS
    await watched.picture.keep_containers_fresh()
    assert watched.says("launch") == ""
    watched.clock.seconds += CONTAINERS_EVERY_SECONDS
    await watched.picture.keep_containers_fresh()
    assert read(transport) == ["script", "head", "head", "head"]


async def test_a_launch_without_a_container_is_asked_for_its_script_alone(tmp_path: Path) -> None:
    transport = one_job(tmp_path, LAUNCH)
    watched = Watched(transport)
    await watched.picture.fetch()
    await watched.picture.fetch()
    assert read(transport) == ["script"]
    assert watched.says("launch") == ""


async def test_a_job_that_is_no_launch_is_asked_for_nothing(tmp_path: Path) -> None:
    transport = one_job(tmp_path, {**LAUNCH, "comment": "mine"}, script=CONTAINER_SCRIPT)
    await Watched(transport).picture.fetch()
    assert read(transport) == []


@pytest.mark.parametrize(
    ("up", "shown"), [(("g1",), 301), (("g1", "g2"), 15)], ids=["one up", "both up"]
)
async def test_of_a_launch_that_failed_before_all_containers_were_up_all_is_shown(
    tmp_path: Path, up: tuple[str, ...], shown: int
) -> None:
    transport = one_job(
        tmp_path, {**LAUNCH, "state": "FAILED"}, joined=True, script=CONTAINER_SCRIPT
    )
    lines = [*(f"{CONTAINER_UP}{host}" for host in up), *["pulling"] * 300]
    (tmp_path / "88.out").write_text("\n".join(lines) + "\n")
    watched = Watched(transport)
    await watched.picture.fetch()
    failure = watched.picture.failure
    assert failure is not None
    assert failure.excerpt is not None
    assert len(failure.excerpt.lines) == shown


async def test_nothing_is_read_of_a_scheduler_that_knows_no_paths(tmp_path: Path) -> None:
    transport = one_job(tmp_path, FAILED_JOB)
    watched = Watched(transport)
    await watched.picture.fetch()
    detail, row = watched.picture.detail, watched.picture.row
    assert detail is not None
    assert row is not None
    # The accounting alone knows it, and not where it wrote.
    past = type(detail)(detail.job, {"JobIDRaw": "88"})
    failure = await fetch_failure(
        watched.picture.store, past, {**row, "stdout_path": None, "stderr_path": None}
    )
    assert failure.excerpt is None
