"""Each job of a chain is submitted once, after the one before; what is appended to a chain waits
for its last.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcdash.assembly import build_replay
from hpcdash.backends.actions import Outcome
from hpcdash.backends.job_detail import Script
from hpcdash.backends.slurm.backend import BACKEND
from hpcdash.backends.submissions import Submission
from hpcdash.domain.tables import Kind
from hpcdash.errors import CommandTimedOut, ControllerDown, UsageError, without_env
from hpcdash.services.chains import Appendix, ChainReader, plan_append
from hpcdash.services.cluster.clock import FrozenClock
from hpcdash.services.cluster.queries import CommandBudget
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.jobs.actions import Actions
from hpcdash.services.state.journal import Journal
from hpcdash.services.submit import recovery as lost_answers
from hpcdash.services.submit.launches import Launches, format_chain
from hpcdash.services.submit.submission import SubmissionPlan, SubmissionResult, plan_submission
from tests.support.scripted_transport import RECENT, ScriptedTransport

NOW = 1_795_250_000.0


class Chain:
    """A chain of a script on a cluster in this process, and what was told of it."""

    def __init__(self, folder: Path) -> None:
        self.transport = ScriptedTransport()
        budget = CommandBudget(600)
        self.store = ClusterStore(
            "lab", self.transport, (BACKEND,), clock=FrozenClock(NOW), budget=budget, user="alice"
        )
        self.actions = Actions(self.store, Journal(folder / "journal.jsonl", now=lambda: NOW))
        self.launches = Launches(self.store)
        self.planned: list[tuple[str, ...]] = []
        self.told: list[tuple[int, Outcome]] = []
        self.messages: list[str] = []

    async def plan(self, after: tuple[str, ...]) -> SubmissionPlan:
        self.planned.append(after)
        return plan_submission(self.store, Submission(b"#!/bin/sh\n", "train.sh", after=after))

    async def submit(self, count: int) -> tuple[Outcome, ...]:
        async def told(link: int, result: SubmissionResult) -> None:
            self.told.append((link, result.outcome))

        return await self.launches.submit_chain(
            self.plan, self.actions, count, told, self.messages.append
        )

    @property
    def waited_for(self) -> list[str]:
        """What each submission was told to wait for."""
        return [
            next((word for word in argv if "dependency" in word), "")
            for argv, _ in self.transport.submitted
        ]


@pytest.fixture
def chain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Chain:
    monkeypatch.setattr(lost_answers, "_RETRY_SECONDS", 0.0)
    monkeypatch.setattr(lost_answers, "_PATIENCE_SECONDS", 0.0)
    return Chain(tmp_path)


LOST = CommandTimedOut("no answer", argv=("sbatch",))


async def test_each_waits_for_the_one_before_however_it_ends(chain: Chain) -> None:
    outcomes = await chain.submit(3)
    assert [outcome.new_job for outcome in outcomes] == ["91", "92", "93"]
    assert chain.waited_for == ["", "--dependency=afterany:91", "--dependency=afterany:92"]
    assert chain.told == list(enumerate(outcomes))
    assert format_chain(outcomes, 3) == "3 jobs, one after the other: 91 92 93"


async def test_a_refusal_ends_it_and_what_was_submitted_stays(chain: Chain) -> None:
    chain.transport.answers["sbatch"] = [
        None,
        None,
        (1, b"", b"sbatch: error: Batch job submission failed: Job violates QOS limits\n"),
    ]
    outcomes = await chain.submit(5)
    assert len(chain.transport.submitted) == 3
    assert format_chain(outcomes, 5) == (
        "2 jobs of 5 submitted (these stay queued: 91 92); job 3 of 5: Job violates QOS limits; "
        "the remaining 2 were not sent"
    )


async def test_a_lost_answer_is_looked_for_and_the_chain_goes_on_from_the_job_that_is_found(
    chain: Chain,
) -> None:
    chain.transport.answers["sbatch"] = [None, LOST]

    def arrives(word: str) -> None:
        if len(chain.transport.submitted) == 2:
            [mark] = [
                option[10:]
                for option in chain.transport.submitted[1][0]
                if option.startswith("--comment=")
            ]
            chain.transport.mine = chain.transport.recent = [{"jobarrayid": "192", "comment": mark}]

    chain.transport.on_run = arrives
    outcomes = await chain.submit(3)
    assert [outcome.new_job for outcome in outcomes] == ["91", "192", "93"]
    assert chain.waited_for[2] == "--dependency=afterany:192"
    assert chain.messages[0].startswith("the answer was lost; searching for the job by mark")
    assert len(chain.transport.submitted) == 3


async def test_one_of_which_nothing_is_known_ends_it_and_is_not_repeated(chain: Chain) -> None:
    chain.transport.answers["sbatch"] = [None, LOST]
    chain.transport.fails[RECENT] = ControllerDown(
        "the controller does not answer", argv=("squeue",)
    )
    outcomes = await chain.submit(3)
    assert [outcome.done for outcome in outcomes] == [True, None]
    assert len(chain.transport.submitted) == 2
    assert (
        "1 job of 3 submitted (these stay queued: 91); job 2 of 3: the job may or may not have been submitted"
        in format_chain(outcomes, 3)
    )


async def test_one_whose_number_was_not_told_is_the_last(chain: Chain) -> None:
    chain.transport.answers["sbatch"] = "thank you\n"
    outcomes = await chain.submit(2)
    assert (outcomes[0].done, len(chain.transport.submitted)) == (True, 1)


async def test_a_later_one_that_cannot_be_planned_is_an_outcome_and_the_first_is_an_error(
    chain: Chain,
) -> None:
    async def refuses(after: tuple[str, ...]) -> SubmissionPlan:
        if len(after) == at:
            raise UsageError("it cannot be")
        return await chain.plan(after)

    at = 1
    outcomes = await chain.launches.submit_chain(refuses, chain.actions, 2)
    assert [(outcome.done, outcome.text) for outcome in outcomes] == [
        (True, "job 91"),
        (False, "not submitted: it cannot be"),
    ]
    at = 0
    with pytest.raises(UsageError, match="it cannot be"):
        await chain.launches.submit_chain(refuses, chain.actions, 2)


@pytest.mark.parametrize("count", [0, 101])
async def test_a_chain_of_none_or_of_far_too_many_is_refused(chain: Chain, count: int) -> None:
    with pytest.raises(UsageError, match="1 to 100 jobs"):
        await chain.submit(count)
    assert chain.planned == []


async def test_what_the_journal_could_not_take_is_said(chain: Chain, tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").mkdir()
    [outcome] = await chain.submit(1)
    assert outcome.new_job == "91"
    assert "not written to the journal" in outcome.text


PBS = Path(__file__).parents[2] / "fixtures" / "pbs" / "23.06" / "everyday"
SCRIPT = Script("#!/bin/sh\n#PBS -N child\nsleep 60\n", "a test's")


async def test_in_pbs_one_waits_for_the_last_of_a_chain() -> None:
    store = build_replay(PBS).store
    await store.fetch(Kind.EVERYONE)
    train = await ChainReader(store, "9.pbs01").read()
    assert [unit.job_id for unit in train.units] == ["9.pbs01", "10.pbs01", "11.pbs01"]
    detail = await store.fetch_detail("10.pbs01")
    again = plan_append(
        store, Appendix("10.pbs01", SCRIPT, "child", detail, {}), (train.ends[-1].job_id,)
    )
    [command] = again.plan.commands
    words = without_env(command.argv)
    at = words.index("qsub")
    assert words[at : at + 4] == ("qsub", "-f", "-W", "depend=afterany:11.pbs01")
    assert sum(word.startswith("depend=") for word in words) == 1
    assert command.stdin == SCRIPT.text.encode()
    assert again.searches["10.pbs01"].mark in " ".join(words)


async def test_a_script_of_one_s_own_waits_for_a_pbs_array() -> None:
    store = build_replay(PBS).store
    await store.open()
    again = plan_append(store, Appendix("next.sh", SCRIPT, "next.sh"), ("15[].pbs01",), "1-4%1")
    words = without_env(again.plan.commands[0].argv)
    assert "depend=afterany:15[].pbs01" in words
    assert words[words.index("-J") + 1] == "1-4%1"
