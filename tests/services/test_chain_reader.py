"""A train is read with few questions: what a job waited for is asked once, and of no more jobs than
said.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcdash.errors import AccountingUnavailable, NoSuchJob
from hpcdash.services.chains import MAX_ASKED, ChainReader
from hpcdash.services.cluster.store import ClusterStore
from tests.support.scripted_transport import HISTORY, ScriptedTransport
from tests.support.slurm_text import submit_line_text
from tests.ui.chains.chain_stage import PAST, SUBMIT_LINE, WAITS, lines_asked, train_cluster
from tests.ui.jobs.acting_stage import acting_session, job


def store_on(transport: ScriptedTransport, folder: Path) -> ClusterStore:
    return acting_session(transport, folder).store


async def order(reader: ChainReader) -> list[str]:
    return [unit.job_id for unit in (await reader.read()).units]


@pytest.mark.parametrize("job_id", ["60", "61", "62", "63", "64", "64_[1-300%1]"])
async def test_each_of_its_jobs_leads_to_the_whole_train(tmp_path: Path, job_id: str) -> None:
    reader = ChainReader(store_on(train_cluster(), tmp_path), job_id)
    assert await order(reader) == ["60", "61", "62", "63", "64"]
    assert reader.notes == ()


async def test_what_a_job_waited_for_is_asked_once(tmp_path: Path) -> None:
    transport = train_cluster()
    reader = ChainReader(store_on(transport, tmp_path), "63")
    await reader.read()
    assert sorted(lines_asked(transport)) == ["60", "61", "62"]
    await reader.read()
    assert len(lines_asked(transport)) == 3


async def test_of_a_long_past_no_more_than_a_few_are_asked(tmp_path: Path) -> None:
    transport = train_cluster(
        lines={str(100 + n): f"sbatch -d afterany:{99 + n} run.sh" for n in range(1, 40)}
    )
    first = 1_795_000_000
    transport.history = [
        {
            **PAST,
            "jobid": str(100 + n),
            "start": str(first + n * 100),
            "end": str(first + n * 100 + 90),
        }
        for n in range(40)
    ]
    reader = ChainReader(store_on(transport, tmp_path), "139")
    found = await order(reader)
    assert len(lines_asked(transport)) == MAX_ASKED
    assert found == [str(100 + n) for n in range(40 - MAX_ASKED - 1, 40)]
    assert [note.partition(":")[0] for note in reader.notes] == ["the chain may be longer"]


async def test_a_job_seen_waiting_is_still_joined_after_it_began(tmp_path: Path) -> None:
    transport = train_cluster(has_array=False)
    transport.history = []
    transport.fails[lambda words: words[0] == HISTORY and words[-1] != "ALL"] = (
        AccountingUnavailable("no accounting answers", argv=("sacct",))
    )
    reader = ChainReader(store_on(transport, tmp_path), "63")
    assert await order(reader) == ["62", "63"]
    assert reader.notes == ("finished jobs are missing: no accounting answers",)
    transport.recent = [job("62", name="train", state="COMPLETED"), job("63", name="train")]
    assert await order(reader) == ["62", "63"]


async def test_what_others_share_is_its_name_alone_and_joins_nothing(tmp_path: Path) -> None:
    transport = train_cluster(has_array=False)
    transport.recent.append(job("70", name="train"))
    assert await order(ChainReader(store_on(transport, tmp_path), "70")) == ["70"]


async def test_a_job_that_nothing_knows_is_said(tmp_path: Path) -> None:
    with pytest.raises(NoSuchJob, match="job 999 was not found"):
        await ChainReader(store_on(train_cluster(), tmp_path), "999").read()


async def test_a_job_whose_turn_has_come_and_that_waits_for_room_still_follows_what_ended(
    tmp_path: Path,
) -> None:
    transport = train_cluster(has_array=False)
    transport.mine, transport.recent = (
        [],
        [job("62", name="other", **{**WAITS, "reason": "Resources"})],
    )
    reader = ChainReader(store_on(transport, tmp_path), "62")
    assert await order(reader) == ["60", "61", "62"]


async def test_what_the_history_does_not_know_yet_is_asked_once_more(tmp_path: Path) -> None:
    transport = train_cluster(has_array=False)
    lines, nothing = transport.answers[SUBMIT_LINE], lambda command: submit_line_text(command.words)
    transport.answers[SUBMIT_LINE] = nothing
    transport.mine, transport.recent = [], [job("62", name="other", timeused="30:00")]
    reader = ChainReader(store_on(transport, tmp_path), "62")
    assert await order(reader) == ["62"]
    assert reader.again_in_seconds == 1.0
    transport.answers[SUBMIT_LINE] = lines
    assert await order(reader) == ["60", "61", "62"]
    transport.answers[SUBMIT_LINE] = nothing
    await reader.read()
    assert sorted(lines_asked(transport)) == ["60", "61", "62", "62"]
    assert reader.again_in_seconds is None
