"""A submission whose answer is lost is looked for on a line that is opened again, and never sent a
second time.
"""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from hpcdash.backends.actions import ActionCommand, Outcome
from hpcdash.backends.queries import Answer
from hpcdash.backends.registry import load_backend
from hpcdash.backends.slurm.backend import BACKEND
from hpcdash.backends.submissions import Submission
from hpcdash.errors import (
    AuthenticationFailed,
    CommandTimedOut,
    ConnectionFailed,
    HpcdashError,
    LoginRequired,
    NotSent,
)
from hpcdash.services.cluster.clock import FrozenClock
from hpcdash.services.cluster.queries import CommandBudget
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.jobs.actions import Actions, Report
from hpcdash.services.state.journal import Journal, JournalEntry
from hpcdash.services.submit import recovery as lost_answers
from hpcdash.services.submit.recovery import (
    build_searches,
    reconcile,
    reconcile_noted,
    reconcile_recent,
)
from hpcdash.services.submit.submission import SubmissionPlan, plan_submission
from hpcdash.transport.http import HttpTransport
from tests.support.scripted_cluster import failed_array
from tests.support.scripted_transport import HISTORY, RECENT, Command
from tests.transport.test_http_transport import server

NOW = 1_795_250_000.0
LOST = ConnectionFailed("the line was lost")


STILL_THERE = "sh*still there"


class Person:
    """Submits `sim.sh`, after a staging where that is wanted."""

    def __init__(self, folder: Path, *, stages: bool = False) -> None:
        self.transport = failed_array(folder)
        self.transport.answers |= {"stage": "", STILL_THERE: ""}
        self.store = ClusterStore(
            "lab",
            self.transport,
            (BACKEND,),
            clock=FrozenClock(NOW),
            budget=CommandBudget(600),
            user="alice",
        )
        self.journal = Journal(folder / "journal.jsonl")
        self.again = plan_submission(self.store, Submission(b"#!/bin/sh\n", "sim.sh"))
        self.told: list[str] = []
        if stages:
            staging = ActionCommand(("stage",), ("sim.sh",), _read_staging, b"#!/bin/sh\n")
            plan = replace(self.again.plan, commands=(staging, *self.again.plan.commands))
            self.again = SubmissionPlan(plan, (), self.again.searches)

    @property
    def mark(self) -> str:
        return self.again.searches["sim.sh"].mark

    async def submit(self) -> tuple[Report, Outcome]:
        report = await Actions(self.store, self.journal).run(self.again.plan)
        (outcome,) = await reconcile(self.store, self.again, report, self.told.append)
        return report, outcome

    def arrive(self, **fields: str) -> None:
        self.transport.recent.append(
            {"jobarrayid": "93", "name": "sim.sh", "comment": self.mark, **fields}
        )


def _read_staging(answer: Answer) -> tuple[Outcome, ...]:
    return (
        Outcome(
            "sim.sh",
            True if answer.status == 0 else None if answer.status == 143 else False,
            "staging",
        ),
    )


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lost_answers, "_RETRY_SECONDS", 0.0)
    monkeypatch.setattr(lost_answers, "_PATIENCE_SECONDS", 0.0)


@pytest.mark.parametrize(
    "staging", [LOST, CommandTimedOut("no answer"), NotSent("no channel"), 143]
)
async def test_where_the_staging_was_lost_it_never_arrived_and_nothing_needs_to_be_looked_for(
    tmp_path: Path, staging: Exception | int
) -> None:
    person = Person(tmp_path, stages=True)
    person.transport.answers["stage"] = (
        (staging, b"", b"no room") if isinstance(staging, int) else staging
    )
    report, outcome = await person.submit()
    assert report.outcomes == (outcome,)
    assert outcome.done is False
    assert outcome.text.startswith("never received")
    assert (person.transport.count("stage"), person.transport.submitted) == (1, [])
    assert person.transport.count(RECENT) == 0
    assert person.journal.read()[0][0].state == "refused"


async def test_where_the_staging_was_refused_nothing_is_submitted(tmp_path: Path) -> None:
    person = Person(tmp_path, stages=True)
    person.transport.answers["stage"] = (1, b"", b"no room")
    _, outcome = await person.submit()
    assert (outcome, person.transport.submitted) == (Outcome("sim.sh", False, "staging"), [])


async def test_a_staging_that_is_cancelled_is_noted_as_never_arrived(tmp_path: Path) -> None:
    person = Person(tmp_path, stages=True)
    begun = asyncio.Event()
    await person.store.open()
    person.transport.on_run = lambda word: begun.set()
    person.transport.hangs["*"] = asyncio.Event()
    running = asyncio.create_task(Actions(person.store, person.journal).run(person.again.plan))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert person.journal.read()[0][0].state == "refused"


@pytest.mark.parametrize("more", ["", " kill-switch=/project/KILL"])
async def test_after_a_staging_a_submission_whose_answer_was_lost_is_found_by_its_mark(
    tmp_path: Path, more: str
) -> None:
    person = Person(tmp_path, stages=True)
    person.transport.answers["sbatch"] = LOST
    person.arrive(comment=f"{person.mark}{more}")
    report, outcome = await person.submit()
    assert report.outcomes[0].done is None
    assert outcome == Outcome("sim.sh", True, "job 93")
    assert (person.transport.count("stage"), len(person.transport.submitted)) == (1, 1)
    assert person.told == [
        f"the answer was lost; searching for the job by mark {person.mark}",
        "found: job 93",
    ]


async def test_what_was_not_sent_never_arrived_and_is_not_looked_for(tmp_path: Path) -> None:
    person = Person(tmp_path)
    person.transport.answers["sbatch"] = NotSent("the line broke before it")
    _, outcome = await person.submit()
    assert outcome == Outcome("sim.sh", False, "never received: the line broke before it")
    assert person.transport.count(RECENT) == 0


async def test_what_is_found_out_later_is_what_the_journal_has(tmp_path: Path) -> None:
    person = Person(tmp_path)
    person.transport.answers["sbatch"] = LOST
    report = await Actions(person.store, person.journal).run(person.again.plan)
    assert person.journal.read()[0][0].state == "unknown"
    person.arrive()
    await reconcile(person.store, person.again, report)
    (entry,), unreadable = person.journal.read()
    assert (entry.state, entry.outcomes, unreadable) == (
        "done",
        (Outcome("sim.sh", True, "job 93"),),
        0,
    )


async def test_a_command_that_still_runs_over_there_is_waited_for(tmp_path: Path) -> None:
    person = Person(tmp_path)
    person.transport.answers["sbatch"] = LOST

    def arrives(command: Command) -> str:
        person.arrive()
        return "still there\n"

    person.transport.answers[STILL_THERE] = ["still there\n", arrives, ""]
    _, outcome = await person.submit()
    assert outcome == Outcome("sim.sh", True, "job 93")
    assert len([words for words in person.told if "still running on the login node" in words]) == 1


async def test_one_that_does_not_end_over_there_is_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lost_answers, "_END_SECONDS", -1000.0)
    person = Person(tmp_path)
    person.transport.answers["sbatch"] = LOST
    person.transport.answers[STILL_THERE] = "still there\n"
    _, outcome = await person.submit()
    assert outcome.done is None
    assert person.mark in outcome.text


async def test_a_line_that_is_down_for_a_while_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lost_answers, "_PATIENCE_SECONDS", 5.0)
    monkeypatch.setattr(lost_answers, "_LONGEST_PAUSE_SECONDS", 0.01)
    person = Person(tmp_path)
    person.transport.answers["sbatch"] = LOST
    person.arrive()
    report = await Actions(person.store, person.journal).run(person.again.plan)
    closed_doors = [ConnectionFailed("nobody is at home")] * 3

    async def connect(_force: bool) -> None:
        if closed_doors:
            raise closed_doors.pop()

    person.transport.on_connect = connect
    (outcome,) = await reconcile(person.store, person.again, report)
    assert outcome == Outcome("sim.sh", True, "job 93")


@pytest.mark.parametrize("kind", [AuthenticationFailed, LoginRequired])
async def test_a_person_who_has_to_log_in_is_not_asked_by_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[AuthenticationFailed]
) -> None:
    monkeypatch.setattr(lost_answers, "_PATIENCE_SECONDS", 5.0)
    person = Person(tmp_path)
    person.transport.answers["sbatch"] = LOST
    report = await Actions(person.store, person.journal).run(person.again.plan)
    person.transport.connect_error = kind("the line was lost, and took a password")
    before = len(person.transport.connects)
    (outcome,) = await reconcile(person.store, person.again, report)
    # Asked for once, and not in spite of what the last login took.
    assert person.transport.connects[before:] == [False]
    assert outcome.done is None
    assert "the line was lost, and took a password" in outcome.text


@pytest.mark.parametrize(("comment", "done"), [("mark", True), ("", None), ("another's", False)])
async def test_a_job_that_left_the_queue_at_once_is_found_in_the_history(
    tmp_path: Path, comment: str, done: bool | None
) -> None:
    person = Person(tmp_path)
    person.transport.answers["sbatch"] = LOST
    said = person.mark if comment == "mark" else comment
    person.transport.history.append(
        {"jobid": "93", "jobname": "sim.sh", "comment": said, "submit": str(int(NOW))}
    )
    _, outcome = await person.submit()
    assert outcome.done is done, outcome
    if done is None:
        assert "93" in outcome.text


async def test_a_history_that_cannot_be_asked_leaves_it_unknown(tmp_path: Path) -> None:
    person = Person(tmp_path)
    person.transport.answers["sbatch"] = LOST
    person.transport.fails[HISTORY] = HpcdashError("the database is down")
    _, outcome = await person.submit()
    assert outcome.done is None
    assert "the database is down" in outcome.text


async def test_a_submission_of_an_earlier_run_is_looked_for_by_the_mark_in_the_journal(
    tmp_path: Path,
) -> None:
    person = Person(tmp_path)
    (command,) = person.again.plan.commands
    person.journal.before(
        cluster="lab", user="alice", verb="submit", job_ids=("sim.sh",), commands=[command.argv]
    )
    (entry,), _ = person.journal.read()
    assert build_searches(entry)["sim.sh"].mark == person.mark
    person.arrive()
    assert await reconcile_noted(person.store, person.journal, entry) == (
        Outcome("sim.sh", True, "job 93"),
    )
    (entry,), _ = person.journal.read()
    assert (entry.state, person.transport.submitted) == ("done", [])


async def test_one_of_an_earlier_run_whose_mark_was_not_noted_stays_as_it_is(
    tmp_path: Path,
) -> None:
    person = Person(tmp_path)
    person.journal.before(
        cluster="lab", user="alice", verb="submit", job_ids=("9",), commands=[("sbatch", "job.sh")]
    )
    (entry,), _ = person.journal.read()
    assert await reconcile_noted(person.store, person.journal, entry) == (Outcome("9", None),)
    assert person.transport.count(RECENT) == 0


async def test_one_that_was_submitted_as_another_account_is_looked_for_among_its_jobs(
    tmp_path: Path,
) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    sudo = ("sudo", "-n", "-u", "svc", "/usr/bin/sbatch", "--comment=hpcdash:0123456789")
    for name, words in (("theirs", sudo), ("mine", sudo[4:])):
        journal.before(
            cluster="lab",
            user="alice",
            verb="submit",
            job_ids=(name,),
            commands=[("sh", "x"), words],
        )
    (mine, theirs), _ = journal.read()
    assert (build_searches(theirs)["theirs"].user, build_searches(mine)["mine"].user) == (
        "svc",
        "alice",
    )


def noted(
    person: Person, *commands: tuple[str, ...], name: str = "night", hours_ago: float = 0.1
) -> JournalEntry:
    """A submission of `batch.sh` that a run noted before it was killed."""
    journal = Journal(person.journal.path, now=lambda: NOW - 3600 * hours_ago)
    journal.before(
        cluster="lab",
        user="alice",
        verb="submit",
        job_ids=("batch.sh",),
        commands=commands,
        names={"batch.sh": name},
    )
    # Whoever wrote it runs no more.
    journal.path.write_bytes(
        re.sub(rb'"host":"[^"]*"', b'"host":"elsewhere"', journal.path.read_bytes())
    )
    person.journal = Journal(journal.path, now=lambda: NOW)
    return person.journal.read()[0][0]


STAGED = (("sh", "-c", "stage"), ("sbatch", "--comment=hpcdash:0123456789", "/l/night-1/batch.sh"))


@pytest.mark.parametrize(
    ("rows", "state", "told"),
    [
        ([], "refused", "never received: no such job in the queue or the history"),
        ([{"comment": "hpcdash:0123456789"}], "done", "found: job 94"),
        ([{"comment": ""}], "unknown", "may be any of 94, which share the job name"),
        ([{"comment": "", "jobname": "other"}], "refused", "never received: no such job"),
    ],
)
async def test_a_form_s_submission_of_a_run_that_was_killed_is_looked_for_by_its_mark_and_its_name(
    tmp_path: Path, rows: list[dict[str, str]], state: str, told: str
) -> None:
    person = Person(tmp_path)
    noted(person, *STAGED)
    row = {"jobid": "94", "jobname": "night", "submit": str(int(NOW))}
    person.transport.history += [{**row, **more} for more in rows]
    (said,) = await reconcile_recent(person.store, person.journal)
    assert said.startswith("the submission of batch.sh at ")
    assert told in said
    (entry,), _ = person.journal.read()
    assert (entry.state, person.transport.submitted) == (state, [])


async def test_one_with_a_comment_of_its_own_is_looked_for_by_its_name(tmp_path: Path) -> None:
    person = Person(tmp_path)
    entry = noted(person, ("sbatch", "--comment=mine", "job.sh"))
    assert [(search.mark, search.name) for search in build_searches(entry).values()] == [
        ("", "night")
    ]
    person.transport.recent.append(
        {"jobarrayid": "95", "name": "night", "comment": "mine", "submittime": str(int(NOW))}
    )
    (said,) = await reconcile_recent(person.store, person.journal)
    assert "found: job 95 (the only job with that name submitted since)" in said


async def test_what_is_settled_or_was_long_ago_is_not_looked_for(tmp_path: Path) -> None:
    person = Person(tmp_path)
    noted(person, *STAGED, hours_ago=25)
    assert await reconcile_recent(person.store, person.journal) == []
    noted(person, *STAGED)
    assert len(await reconcile_recent(person.store, person.journal)) == 1
    asked = len(person.transport.asked)
    assert await reconcile_recent(person.store, person.journal) == []
    assert len(person.transport.asked) == asked


async def test_a_submission_is_noted_with_the_name_of_its_job(tmp_path: Path) -> None:
    person = Person(tmp_path)
    script = b"#!/bin/sh\n#SBATCH --job-name=night\n"
    again = plan_submission(
        person.store, Submission(script, "batch.sh", file="/l/night-1/batch.sh")
    )
    person.transport.answers["sbatch"] = LOST
    await Actions(person.store, person.journal).run(again.plan)
    (entry,), _ = person.journal.read()
    assert entry.names == {"batch.sh": "night"}
    assert build_searches(entry)["batch.sh"].name == "night"


async def test_a_job_whose_id_we_chose_is_found_by_it_among_jobs_of_that_name(
    tmp_path: Path,
) -> None:
    posted: list[str] = []

    async def dashboard(request: bytes, writer: asyncio.StreamWriter) -> None:
        if request.startswith(b"POST"):
            posted.append(json.loads(request.partition(b"\r\n\r\n")[2])["submission_id"])
            return
        ids = ["raysubmit_0123456789", *posted]
        row = {
            "status": "RUNNING",
            "start_time": int(NOW * 1000),
            "metadata": {"job_name": "sim.sh"},
        }
        jobs = [{"submission_id": job_id, **row} for job_id in ids]
        body = json.dumps(
            {"ray_version": "2.60.0"} if b" /api/version " in request else jobs
        ).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

    async with server(dashboard) as port:
        store = ClusterStore(
            "ray",
            HttpTransport(f"http://127.0.0.1:{port}"),
            (load_backend("ray"),),
            clock=FrozenClock(NOW),
            budget=CommandBudget(600),
        )
        again = plan_submission(store, Submission(b"#!/bin/sh\n", "sim.sh"))
        journal = Journal(tmp_path / "journal.jsonl", now=lambda: NOW)
        report = await Actions(store, journal).run(again.plan)
        found = (Outcome("sim.sh", True, f"job {posted[0]}"),)
        (noted,), _ = journal.read()
        assert noted.state == "unknown"
        assert await reconcile_noted(store, journal, noted) == found
        assert await reconcile(store, again, report) == found
