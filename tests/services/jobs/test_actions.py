"""Acting on jobs: what is sent, what is noted, and what is known of each job when the line or the
journal fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcdash.backends.actions import ActionRequest, Outcome, Verb
from hpcdash.errors import CommandTimedOut, ConnectionFailed, HpcdashError, UsageError
from hpcdash.recorded import find_token
from hpcdash.services.jobs.actions import Actions, Report
from hpcdash.services.state.journal import Journal
from tests.support.scripted_cluster import Cluster
from tests.support.scripted_transport import ACT, Command, Reply, ScriptedTransport
from tests.support.slurm_text import queue_text
from tests.support.waiting import until


class Acting:
    """A cluster to act on, and its journal."""

    def __init__(self, folder: Path) -> None:
        self.transport = ScriptedTransport()
        self.cluster = Cluster(folder, transport=self.transport)
        self.journal = Journal(folder / "state" / "journal.jsonl")
        self.actions = Actions(self.cluster.store, self.journal)
        self.told: list[Outcome] = []

    async def run(self, verb: str, *job_ids: str, changes: dict[str, str] | None = None) -> Report:
        plan = self.actions.plan(ActionRequest(Verb(verb), job_ids, changes=changes or {}))
        return await self.actions.run(plan, self.told.append)

    async def ids_of(self, *job_ids: str) -> list[tuple[str, int]]:
        return [(row["id"], row["_tasks"]) for row in await self.actions.fetch_rows(job_ids)]

    def answer(self, *replies: Reply) -> None:
        """What the next commands that act come to."""
        self.transport.answers[ACT] = list(replies)

    @property
    def sent(self) -> list[str]:
        return [" ".join(words) for words in self.transport.acted]

    @property
    def states(self) -> list[str]:
        return [entry.state for entry in self.journal.read()[0]]


@pytest.fixture
def acting(tmp_path: Path) -> Acting:
    return Acting(tmp_path)


ONE_BY_ONE = {"time": "+30m"}


async def test_each_job_has_its_outcome_and_the_journal_has_them_all(acting: Acting) -> None:
    acting.answer((1, b"", b"Invalid user id for job 3\n"))
    report = await acting.run("hold", "41", "3")
    assert acting.sent == ["scontrol hold 41,3"]
    assert report.outcomes == (Outcome("41", True), Outcome("3", False, "Invalid user id"))
    assert acting.told == list(report.outcomes)
    assert report.journal_problem == ""
    ([entry], _) = acting.journal.read()
    assert (entry.state, entry.verb, entry.cluster, entry.user) == (
        "partly",
        "hold",
        "lab",
        "alice",
    )
    assert (entry.job_ids, entry.commands) == (("41", "3"), (("scontrol", "hold", "41,3"),))
    assert entry.outcomes == report.outcomes


async def test_it_is_in_the_journal_before_it_is_sent(acting: Acting) -> None:
    seen: list[str] = []
    acting.transport.on_run = lambda word: seen.extend(acting.states)
    await acting.run("cancel", "41")
    assert (seen, acting.states) == (["running"], ["done"])


@pytest.mark.parametrize(
    "error", [ConnectionFailed("the line broke"), CommandTimedOut("no answer after 60 s")]
)
async def test_a_lost_answer_is_unknown_and_nothing_more_is_sent(
    acting: Acting, error: HpcdashError
) -> None:
    acting.answer(None, error)
    report = await acting.run("alter", "41", "42", "43", changes=ONE_BY_ONE)
    assert len(acting.sent) == 2
    assert [outcome.done for outcome in report.outcomes] == [True, None, False]
    assert "the answer was lost; check the job" in report.outcomes[1].text
    assert report.outcomes[2].text.startswith("not run: ")
    assert acting.states == ["unknown"]


async def test_what_cannot_be_sent_was_not_done(acting: Acting) -> None:
    acting.answer(UsageError("The command line is too long."))
    report = await acting.run("alter", "41", "42", changes=ONE_BY_ONE)
    assert [outcome.done for outcome in report.outcomes] == [False, False]
    assert acting.states == ["refused"]


async def test_a_line_that_does_not_open_did_nothing(acting: Acting) -> None:
    acting.transport.connect_error = ConnectionFailed("no route")
    report = await acting.run("cancel", "41")
    assert report.outcomes == (Outcome("41", False, "not run: no route"),)
    assert acting.sent == []
    assert acting.transport.connects == [True]


async def test_our_own_ceiling_refuses_no_action(tmp_path: Path) -> None:
    acting = Acting(tmp_path)
    acting.cluster.budget.ceiling = 1
    await acting.cluster.store.open()
    assert acting.cluster.budget.wait_seconds() > 0
    report = await acting.run("alter", "41", "42", changes=ONE_BY_ONE)
    assert [outcome.done for outcome in report.outcomes] == [True, True]
    assert acting.cluster.budget.per_minute == 3


async def test_without_a_journal_it_is_done_and_said(acting: Acting) -> None:
    acting.journal.path.parent.write_text("no folder")
    report = await acting.run("cancel", "41")
    assert report.outcomes == (Outcome("41", True),)
    assert "not written to the journal" in report.journal_problem


async def test_a_journal_that_fills_up_meanwhile_is_said(acting: Acting) -> None:
    def fill(_command: Command) -> None:
        acting.journal.path.unlink()
        acting.journal.path.mkdir()

    acting.transport.answers[ACT] = fill
    report = await acting.run("cancel", "41")
    assert report.outcomes == (Outcome("41", True),)
    assert "the result was not written to the journal" in report.journal_problem


async def test_an_action_that_is_broken_off_is_noted_as_unknown(acting: Acting) -> None:
    acting.answer(None, asyncio.Event())
    running = asyncio.create_task(acting.run("alter", "41", "42", "43", changes=ONE_BY_ONE))
    await until(lambda: len(acting.sent) == 2)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    ([entry], _) = acting.journal.read()
    assert entry.state == "unknown"
    assert [outcome.done for outcome in entry.outcomes] == [True, None, False]


async def test_a_job_of_two_commands_is_done_when_both_are(acting: Acting) -> None:
    changes = {"nice": "5", "throttle": "2"}
    acting.answer(None, (1, b"", b"Access/permission denied for job 88\n"))
    report = await acting.run("alter", "88", changes=changes)
    assert report.outcomes == (Outcome("88", False, "Access/permission denied"),)
    acting.answer(None, asyncio.Event())
    running = asyncio.create_task(acting.run("alter", "88", changes=changes))
    await until(lambda: len(acting.sent) == 4)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert acting.states == ["unknown", "refused"]


async def test_a_command_that_is_missing_did_nothing(acting: Acting) -> None:
    acting.answer((127, b"", b"env: 'scancel': No such file or directory\n"))
    report = await acting.run("cancel", "41")
    assert report.outcomes == (Outcome("41", False, "scancel: command not found"),)


def an_array(acting: Acting) -> None:
    task = {"arrayjobid": "88", "username": "alice"}
    acting.transport.recent = [
        {**task, "jobarrayid": "88_1", "arraytaskid": "1", "state": "COMPLETED"},
        {**task, "jobarrayid": "88_2", "arraytaskid": "2", "state": "RUNNING"},
        {**task, "jobarrayid": "88_[3-9%2]", "arraytaskid": "3-9%2", "state": "PENDING"},
        {"jobarrayid": "90", "arrayjobid": "90", "arraytaskid": "N/A", "state": "RUNNING"},
    ]


@pytest.mark.parametrize(
    ("job_ids", "rows"),
    [
        (("90",), [("90", 1)]),
        (("88",), [("88_1", 1), ("88_2", 1), ("88_[3-9%2]", 7)]),
        (("88_2", "90"), [("88_2", 1), ("90", 1)]),
        (("88_[3-9%2]",), [("88_[3-9%2]", 7)]),
        (("88_4",), [("88_4", 1)]),
        (("88_[2-4]",), [("88_2", 1), ("88_[3-4]", 2)]),
        (("88_4", "88_7", "88_5"), [("88_[4-5,7]", 3)]),
        (("88_[0-99]", "88_4"), [("88_1", 1), ("88_2", 1), ("88_[3-9%2]", 7)]),
        (("88_77",), []),
    ],
)
async def test_ids_mean_rows_and_parts_of_rows(
    acting: Acting, job_ids: tuple[str, ...], rows: list[tuple[str, int]]
) -> None:
    an_array(acting)
    assert await acting.ids_of(*job_ids) == rows


@pytest.mark.parametrize("job_id", ["28", "28+1"])
async def test_an_id_under_which_slurm_has_another_job_is_refused(
    acting: Acting, job_id: str
) -> None:
    acting.transport.answers["squeue"] = lambda command: queue_text(
        {"jobarrayid": "27+1"}, token=find_token(command.argv) or ""
    )
    with pytest.raises(
        UsageError, match=r"no job has the ID .*; the scheduler lists 27\+1 instead"
    ):
        await acting.ids_of(job_id)
    assert [found for found, _ in await acting.ids_of("27+1")] == ["27+1"]


async def test_jobs_nobody_knows_have_no_rows(acting: Acting) -> None:
    assert await acting.ids_of("41") == []


async def test_very_many_ids_are_looked_for_in_the_whole_queue(acting: Acting) -> None:
    an_array(acting)
    found = await acting.ids_of(*map(str, range(1000, 2000)), "88_2")
    assert found == [("88_2", 1)]
    assert all(len(" ".join(argv)) < 2000 for argv in acting.transport.argvs)


def saying(*pieces: bytes, then: Reply = None) -> Callable[[Command], Reply]:
    """Written on stderr while the command runs."""

    def reply(command: Command) -> Reply:
        for piece in pieces:
            command.limits["on_output"](piece)
        return then

    return reply


async def test_what_a_command_says_while_it_goes_on_is_told_as_it_comes(
    acting: Acting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcdash.services.jobs.actions._PROGRESS_SECONDS", 0.01)
    goes_on = asyncio.Event()
    acting.answer(saying(b"it is temporarily un", b"able\nhalf a li", then=goes_on))
    heard: list[str] = []
    plan = acting.actions.plan(ActionRequest(Verb.CANCEL, ("1",)))
    running = asyncio.ensure_future(acting.actions.run(plan, on_message=heard.append))
    await until(lambda: heard)
    assert heard == ["it is temporarily unable"], "whole lines, each once"
    goes_on.set()
    assert [outcome.done for outcome in (await running).outcomes] == [True]
    assert heard == ["it is temporarily unable"]


async def test_a_command_that_ends_at_once_is_told_by_its_outcome_alone(acting: Acting) -> None:
    acting.answer(saying(b"scancel: Terminating job 1\n"))
    heard: list[str] = []
    await acting.actions.run(
        acting.actions.plan(ActionRequest(Verb.CANCEL, ("1",))), on_message=heard.append
    )
    assert heard == []


async def test_given_up_on_a_command_that_is_listened_to_is_ended(acting: Acting) -> None:
    ended = asyncio.Event()

    class Endless(asyncio.Event):
        async def wait(self) -> bool:
            try:
                return await super().wait()
            finally:
                ended.set()

    acting.answer(Endless())
    sent = asyncio.Event()
    acting.transport.on_run = lambda word: sent.set() if acting.sent else None
    plan = acting.actions.plan(ActionRequest(Verb.CANCEL, ("1",)))
    running = asyncio.ensure_future(acting.actions.run(plan, on_message=lambda line: None))
    await sent.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert ended.is_set()
    assert acting.states == ["unknown"]
