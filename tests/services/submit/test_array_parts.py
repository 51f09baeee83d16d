"""An array's failed tasks in parts, each an action of its own; what broke off goes on with the
missing parts.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from hpcdash.backends.actions import Outcome
from hpcdash.backends.pbs.dialects import Dialect
from hpcdash.backends.pbs.submit import PbsSubmit
from hpcdash.backends.slurm.backend import BACKEND
from hpcdash.domain.array_tasks import parse_tasks
from hpcdash.errors import UsageError
from hpcdash.services.cluster.clock import FrozenClock
from hpcdash.services.cluster.queries import CommandBudget
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.jobs.actions import Actions
from hpcdash.services.jobs.triage import fetch_tasks
from hpcdash.services.state.journal import Journal
from hpcdash.services.submit import resubmission
from hpcdash.services.submit.launches import Launches
from hpcdash.services.submit.resubmission import (
    ResubmissionPlan,
    find_sent_parts,
    format_parts,
    plan_again,
    resubmissions,
    submit_parts,
)
from tests.support.parts import changed, fixed_backend
from tests.support.records import for_each
from tests.support.scripted_cluster import failed_array

# Slurm's words, and no lists of tasks.
RANGES_ONLY = fixed_backend(
    BACKEND,
    submit=changed(BACKEND.submit, array_parts=PbsSubmit(Dialect.OPENPBS).array_parts),
)


class Cluster:
    def __init__(self, folder: Path) -> None:
        self.transport = failed_array(folder)
        # 91, 92, …
        del self.transport.answers["sbatch"]
        budget = CommandBudget(600)
        self.store = ClusterStore(
            "lab",
            self.transport,
            (RANGES_ONLY,),
            clock=FrozenClock(1_795_250_000.0),
            budget=budget,
            user="alice",
        )
        self.journal = Journal(folder / "journal")
        self.actions = Actions(self.store, self.journal)
        self.launches = Launches(self.store)

    async def plan(self) -> ResubmissionPlan:
        failed = [
            row for row in (await fetch_tasks(self.store, "88")).ended if row["state"] == "failed"
        ]
        planned = await plan_again(self.store, resubmissions(failed), journal=self.journal)
        assert isinstance(planned, ResubmissionPlan)
        return planned

    @property
    def arrays(self) -> list[str]:
        return [
            word.partition("=")[2]
            for words, _ in self.transport.submitted
            for word in words
            if "array=" in word
        ]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setattr(resubmission, "_HISTORY_LAG_SECONDS", 0.0)
    return Cluster(tmp_path)


async def test_each_part_has_its_own_mark_and_line_in_the_journal(cluster: Cluster) -> None:
    again = await cluster.plan()
    names = again.plan.parts
    assert len(names) == len(again.plan.commands) > 1
    outcomes = await submit_parts(again, cluster.launches, cluster.actions)
    assert [outcome.new_job for outcome in outcomes] == [f"{91 + at}" for at in range(len(names))]
    tasks = [task for text in cluster.arrays for task in parse_tasks(text.partition("%")[0])]
    assert sorted(tasks) == sorted(set(tasks)) == [3, 7, 8, 9]
    entries = cluster.journal.read()[0][::-1]
    assert [entry.job_ids for entry in entries] == [(name,) for name in names]
    assert {entry.parts for entry in entries} == {names}
    marks = {
        word for words, _ in cluster.transport.submitted for word in words if "hpcdash:" in word
    }
    assert len(marks) == len(names)
    assert format_parts(outcomes, len(names)) == f"resubmitted in {len(names)} parts: 91 92"


async def test_under_a_throttle_each_part_waits_for_the_one_before_it(cluster: Cluster) -> None:
    again = await cluster.plan()
    await submit_parts(
        replace(again, is_chained=True, after="90"), cluster.launches, cluster.actions
    )
    waits = [
        next((word for word in words if word.startswith("--dependency=")), "")
        for words, _ in cluster.transport.submitted
    ]
    assert waits == ["--dependency=afterany:90", "--dependency=afterany:91"]


async def test_what_broke_off_goes_on_with_the_missing_parts_and_then_begins_anew(
    cluster: Cluster,
) -> None:
    again = await cluster.plan()
    cut = replace(again, plan=replace(again.plan, commands=again.plan.commands[:1]))
    await submit_parts(cut, cluster.launches, cluster.actions)
    rest = await cluster.plan()
    assert [command.job_ids for command in rest.plan.commands] == [
        (name,) for name in again.plan.parts[1:]
    ]
    assert rest.plan.parts == again.plan.parts
    assert rest.notes[0].startswith("tasks ")
    await submit_parts(rest, cluster.launches, cluster.actions)
    once_more = await cluster.plan()
    assert once_more.plan.parts == again.plan.parts
    assert len(once_more.plan.commands) == len(again.plan.parts)
    # Broken off again, after its first part.
    cut = replace(once_more, plan=replace(once_more.plan, commands=once_more.plan.commands[:1]))
    await submit_parts(cut, cluster.launches, cluster.actions)
    assert len((await cluster.plan()).plan.commands) == len(again.plan.parts) - 1


async def test_a_part_that_was_refused_is_among_the_missing_ones(cluster: Cluster) -> None:
    again = await cluster.plan()
    wanted = parse_tasks("1,3,7-9")
    _note(cluster, again, 0, Outcome(again.plan.parts[0], True, "job 91"))
    _note(cluster, again, 1, Outcome(again.plan.parts[1], False, "no"))
    sent = await find_sent_parts(cluster.store, cluster.journal, "88", wanted)
    assert sent == {again.plan.parts[0]: "91"}
    # Of other tasks it was another submission.
    others = parse_tasks("7-9")
    assert await find_sent_parts(cluster.store, cluster.journal, "88", others) == {}
    assert await find_sent_parts(cluster.store, cluster.journal, "89", wanted) == {}


async def test_a_part_that_is_being_sent_is_waited_for(cluster: Cluster) -> None:
    again = await cluster.plan()
    name = again.plan.parts[0]
    cluster.journal.before(
        cluster="lab",
        user="alice",
        verb="submit",
        job_ids=(name,),
        commands=(),
        parts=again.plan.parts,
    )
    with pytest.raises(UsageError, match="is already being resubmitted"):
        await cluster.plan()


async def test_several_arrays_in_parts_are_refused_together(cluster: Cluster) -> None:
    failed = [
        row for row in (await fetch_tasks(cluster.store, "88")).ended if row["state"] == "failed"
    ]
    plain = {**failed[0], "id": "90", "array_id": None, "array_task": None}
    with pytest.raises(UsageError, match="in 2 submissions"):
        await plan_again(cluster.store, resubmissions([*failed, plain]), journal=cluster.journal)


@for_each(
    ("dialect", "parts"),
    [
        (Dialect.OPENPBS, ["3-12:3", "4"]),
        (Dialect.PBS_TEXT, ["3-12:3", "4"]),
        (Dialect.TORQUE, ["3-4,6,9,12"]),
    ],
)
def test_openpbs_takes_a_range_and_others_a_list(dialect: Dialect, parts: list[str]) -> None:
    assert list(map(str, PbsSubmit(dialect).array_parts(parse_tasks("3-4,6,9,12")))) == parts


def _note(cluster: Cluster, again: ResubmissionPlan, place: int, outcome: Outcome) -> None:
    name = again.plan.parts[place]
    action_id = cluster.journal.before(
        cluster="lab",
        user="alice",
        verb="submit",
        job_ids=(name,),
        commands=(),
        parts=again.plan.parts,
    )
    cluster.journal.after(action_id, (outcome,))
