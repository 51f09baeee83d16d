"""What following one's jobs and reading the history costs a PBS server, with commands that answer
as recorded.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from hpcdash.backends.pbs.backend import BACKEND
from hpcdash.domain.tables import Kind
from hpcdash.services.cluster.poller import Pace, Poller
from hpcdash.services.cluster.queries import CommandBudget
from hpcdash.services.cluster.store import HISTORY_SECONDS, ClusterStore
from hpcdash.transport.local import LocalTransport
from tests.support.pbs import StandIns
from tests.support.scripted_cluster import HandClock

pytestmark = pytest.mark.system


class Site:
    """A PBS of recordings, and a store that asks it as alice."""

    def __init__(self, folder: Path) -> None:
        self.stand_ins = StandIns.install(folder / "pbs", "everyday")
        self.clock = HandClock()
        self.clock.seconds = float(self.stand_ins.settings["clock"])
        transport = LocalTransport(path=str(self.stand_ins.path))
        self.store = ClusterStore(
            "lab", transport, (BACKEND,), clock=self.clock, budget=CommandBudget(600)
        )

    def take_out(self, job_id: str) -> bytes:
        """Remove a job from the queue; returns its record."""
        jobs = (self.stand_ins.folder / "scene" / "jobs.dsv").read_bytes().splitlines(keepends=True)
        (line,) = [one for one in jobs if one.startswith(f"Job Id: {job_id}@@".encode())]
        (self.stand_ins.folder / "scene" / "jobs.dsv").write_bytes(
            b"".join(one for one in jobs if one != line)
        )
        return line

    def end(self, job_id: str) -> None:
        """Let a job have ended, well, a moment ago."""
        self.note_end(self.take_out(job_id))

    def note_end(self, line: bytes) -> None:
        """Let the history have a record, of a job that succeeded a moment ago."""
        scene = self.stand_ins.folder / "scene"
        values = dict(field.partition(b"=")[::2] for field in line.rstrip(b"\n").split(b"@@"))
        clock = str(self.stand_ins.settings["clock"]).encode()
        values |= {
            b"job_state": b"F",
            b"substate": b"92",
            b"Exit_status": b"0",
            b"history_timestamp": clock,
        }
        values[b"mtime"] = values[b"obittime"] = b"Sat Nov 21 04:06:35 2026"
        ended = b"@@".join(
            b"=".join((name, value)) if value else name for name, value in values.items()
        )
        with (scene / "ended.dsv").open("ab") as file:
            file.write(ended + b"\n")

    def calls(self) -> list[list[str]]:
        """What PBS was asked of jobs since the last time, without the words of the format."""
        calls = self.stand_ins.calls("qstat", "qselect")
        self.stand_ins.called.write_text("")
        hidden = ("-F", "dsv", "-D")
        shown = (
            [word for word in words if word not in hidden and "\x1e" not in word] for words in calls
        )
        return [words for words in shown if words != ["qstat", "-Bf"]]


@pytest.fixture
async def site(tmp_path: Path) -> Site:
    site = Site(tmp_path)
    await site.store.open()
    site.calls()
    return site


async def test_how_a_job_ended_is_asked_by_its_id_and_of_no_other_job(site: Site) -> None:
    await site.store.fetch(Kind.MINE)
    polled = site.calls()
    site.end("2.pbs01")
    await site.store.fetch(Kind.MINE)
    assert [(event.job_id, event.after) for event in site.store.events] == [
        ("2.pbs01", "completed")
    ]
    assert site.calls()[len(polled) :] == [
        ["qstat", "-f", "-E", "-x", "-t", "2[].pbs01", "2.pbs01"]
    ]
    await site.store.fetch(Kind.MINE)
    assert len(site.calls()) == len(polled)


async def test_a_job_that_was_removed_from_the_history_is_gone_at_once_beside_one_that_ended(
    site: Site,
) -> None:
    await site.store.fetch(Kind.MINE)
    site.take_out("2.pbs01")
    await site.store.fetch(Kind.MINE)
    assert [(event.job_id, event.after) for event in site.store.events] == [("2.pbs01", "gone")]
    site.take_out("4.pbs01")
    site.end("5.pbs01")
    await site.store.fetch(Kind.MINE)
    assert {event.job_id: event.after for event in site.store.events} == {
        "2.pbs01": "gone",
        "5.pbs01": "completed",
        "4.pbs01": "gone",
    }


async def test_while_scheduling_is_off_each_pending_job_says_so(site: Site) -> None:
    scene = site.stand_ins.folder / "scene"
    server = (scene / "server.dsv").read_bytes()
    (scene / "server.dsv").write_bytes(server.replace(b"scheduling=True", b"scheduling=False"))

    async def reasons() -> dict[str, set[str]]:
        rows = (await site.store.fetch(Kind.MINE)).table.to_pylist()
        return {
            state: {row["reason"] for row in rows if row["state"] == state}
            for state in ("pending", "held")
        }

    shown = await reasons()
    assert shown["pending"] == {"scheduling is off on this server: jobs do not start"}
    assert not shown["held"] & shown["pending"]
    (scene / "server.dsv").write_bytes(server)
    site.clock.seconds += 60
    assert not (await reasons())["pending"] & shown["pending"]


async def test_jobs_that_began_and_ended_between_two_polls_are_asked_for_once_a_minute_by_their_ids(
    site: Site,
) -> None:
    record = site.take_out("2.pbs01")
    await site.store.fetch(Kind.MINE)
    polled = site.calls()
    site.note_end(record)
    site.clock.seconds += 15
    await site.store.fetch(Kind.MINE)
    assert (list(site.store.events), len(site.calls())) == ([], len(polled))
    site.clock.seconds += 45
    await site.store.fetch(Kind.MINE)
    assert [(event.job_id, event.after) for event in site.store.events] == [
        ("2.pbs01", "completed")
    ]
    # 60 s and 10 s before 04:06:35.
    assert site.calls()[len(polled) :] == [
        ["qselect", "-x", "-T", "-s", "FX", "-u", "alice", "-tm.ge.202611210405.25"],
        ["qstat", "-f", "-E", "-x", "-t", "2[].pbs01", "2.pbs01"],
    ]
    site.clock.seconds += 60
    await site.store.fetch(Kind.MINE)
    assert [words[0] for words in site.calls()[len(polled) :]] == ["qselect"]
    assert len(site.store.events) == 1


async def test_without_a_history_nothing_that_ended_is_asked_for(site: Site) -> None:
    assert site.store.probe is not None
    site.store.probe = replace(site.store.probe, has_accounting=False)
    await site.store.fetch(Kind.MINE)
    polled = site.calls()
    site.clock.seconds += 60
    await site.store.fetch(Kind.MINE)
    assert len(site.calls()) == len(polled)


async def test_of_a_history_that_is_known_only_what_ended_since_is_asked_for(site: Site) -> None:
    first = (await site.store.fetch(Kind.HISTORY)).table["id"].to_pylist()
    assert "2.pbs01" not in first
    site.calls()
    site.end("2.pbs01")
    site.clock.seconds += 60
    second = (await site.store.fetch(Kind.HISTORY)).table["id"].to_pylist()
    assert second == ["2.pbs01", *first]
    selection, _ = site.calls()
    # 60 s and 600 s before 04:06:35.
    assert selection[-1] == "-tm.ge.202611210355.35"


async def test_what_ended_too_long_ago_is_forgotten(site: Site) -> None:
    assert (await site.store.fetch(Kind.HISTORY)).table.num_rows
    site.clock.seconds += HISTORY_SECONDS
    (site.stand_ins.folder / "scene" / "ended.dsv").write_text("")
    (site.stand_ins.folder / "scene" / "subjobs.dsv").write_text("")
    assert (await site.store.fetch(Kind.HISTORY)).table.num_rows == 0


async def test_each_command_that_the_server_is_sent_counts_and_rest_is_four_a_minute(
    site: Site,
) -> None:
    budget, sent = site.store.budget, site.store.budget.sent
    turns: list[float] = []
    first = 0
    poller = Poller(
        site.store,
        Pace(dict.fromkeys(Kind, 15.0), controller_share=1000.0),
        monotonic=lambda: site.clock.seconds,
    )
    called = len(site.stand_ins.calls("qstat", "qselect", "pbsnodes"))
    while site.clock.seconds < site.stand_ins.settings["clock"] + 600:
        await poller.poll([Kind.MINE])
        turns.append(poller.next_in_seconds(Kind.MINE))
        first = first or budget.sent - sent
        site.clock.seconds += turns[-1]
    commands = len(site.stand_ins.calls("qstat", "qselect", "pbsnodes")) - called
    assert budget.sent - sent == commands
    # The first answer is news; after it there are four commands a minute.
    assert turns[0] == 15
    assert commands - first <= 4 * (site.clock.seconds - site.stand_ins.settings["clock"]) / 60


async def test_a_change_makes_polls_as_frequent_as_they_are_set(site: Site) -> None:
    poller = Poller(
        site.store,
        Pace(dict.fromkeys(Kind, 15.0), controller_share=1000.0),
        monotonic=lambda: site.clock.seconds,
    )
    for _ in range(2):
        await poller.poll([Kind.MINE])
    assert poller.interval_seconds(Kind.MINE) > 15
    assert not poller.is_spared(Kind.MINE)
    site.end("2.pbs01")
    await poller.poll([Kind.MINE])
    assert poller.interval_seconds(Kind.MINE) == 15
