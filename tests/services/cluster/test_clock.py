"""What time it is on the cluster, where its clock or this machine's is wrong, or is set while one
looks.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from hpcdash.backends.slurm.backend import BACKEND
from hpcdash.backends.tokens import RECORDED_TOKEN
from hpcdash.domain.tables import Kind
from hpcdash.domain.units import format_clock
from hpcdash.services.cluster.clock import ClusterClock
from hpcdash.services.cluster.queries import CommandBudget
from hpcdash.services.cluster.snapshots import SnapshotCache
from hpcdash.services.cluster.store import ClusterStore
from tests.support.scripted_transport import MINE, Command, ScriptedTransport
from tests.support.slurm_text import Fields, queue_text

BEGAN = 1_795_242_000
HOUR = 3600.0


@dataclass
class World:
    """A cluster's clock and this machine's are off by `there` and `here`; `seconds` have gone by in
    truth.

    A job began at the beginning and has run since, `suspended` seconds of which it stood still.
    """

    seconds: float = 100.0
    here: float = 0.0
    there: float = 0.0
    suspended: float = 0.0

    def wall(self) -> float:
        return BEGAN + self.seconds + self.here

    def steady(self) -> float:
        return self.seconds

    def wall_there(self) -> float:
        return BEGAN + self.seconds + self.there

    def queue(self, _command: Command) -> bytes:
        # squeue takes what it says of the time from the login node's clock.
        ran = int(self.seconds + self.there - self.suspended)
        row: Fields = {
            "timeused": format_clock(ran),
            "starttime": str(BEGAN),
            "endtime": str(BEGAN + 36_000),
        }
        return queue_text(row, token=RECORDED_TOKEN)


class Looking:
    """Somebody who looks at that cluster."""

    def __init__(self, folder: Path) -> None:
        self.world = World()
        self.transport = ScriptedTransport()
        self.transport.now = self.world.wall_there
        self.transport.answers[MINE] = self.world.queue
        self.cache = SnapshotCache(folder, "lab")

    def begin(self) -> None:
        clock = ClusterClock(self.world.wall, self.world.steady)
        budget = CommandBudget(600, self.world.steady)
        self.store = ClusterStore(
            "lab", self.transport, (BACKEND,), clock=clock, budget=budget, cache=self.cache
        )

    async def look(self) -> None:
        await self.store.open()
        await self.store.fetch(Kind.MINE)

    @property
    def error(self) -> float:
        """How far the time that is taken for the cluster's is from it."""
        return self.store.clock.now() - self.world.wall_there()

    @property
    def dates(self) -> int:
        return self.transport.count("date")


@pytest.fixture
def looking(tmp_path: Path) -> Looking:
    return Looking(tmp_path)


@pytest.mark.parametrize(("here", "there"), [(0, 0), (3 * HOUR, 0), (0, 3 * HOUR), (-40, 15)])
async def test_the_time_is_the_cluster_s_whichever_clock_is_wrong(
    looking: Looking, here: float, there: float
) -> None:
    looking.world.here, looking.world.there = here, there
    looking.begin()
    await looking.look()
    assert abs(looking.error) < 2
    assert looking.dates == 0, "the first question per connection asked"


@pytest.mark.parametrize("step", [3 * HOUR, -3 * HOUR])
async def test_setting_this_machine_s_clock_moves_nothing(looking: Looking, step: float) -> None:
    looking.begin()
    await looking.look()
    looking.world.here += step
    assert abs(looking.error) < 2
    looking.world.seconds += 15
    await looking.look()
    assert abs(looking.error) < 2
    snapshot = looking.store.snapshots[Kind.MINE]
    assert abs(snapshot.taken_at - looking.store.clock.now()) < 2


@pytest.mark.parametrize("step", [3 * HOUR, -0.02 * HOUR])
async def test_setting_the_cluster_s_clock_is_noticed_at_the_next_look(
    looking: Looking, step: float
) -> None:
    looking.begin()
    await looking.look()
    looking.world.there += step
    for _ in range(3):
        looking.world.seconds += 15
        await looking.look()
        assert abs(looking.error) < 2
    assert looking.dates == 1, "one question more"


async def test_a_job_that_stood_still_for_a_while_is_no_sign_of_a_wrong_clock(
    looking: Looking,
) -> None:
    looking.begin()
    looking.world.suspended = 50
    for _ in range(5):
        looking.world.seconds += 15
        await looking.look()
        assert abs(looking.error) < 2
    assert looking.dates <= 1


async def test_what_the_last_run_knew_has_its_age_by_this_machine_s_clock(looking: Looking) -> None:
    looking.world.there = 3 * HOUR
    looking.begin()
    await looking.look()
    looking.world.seconds += 600
    looking.begin()
    looking.store.load_cached((Kind.MINE,))
    age = looking.store.clock.now() - looking.store.snapshots[Kind.MINE].taken_at
    assert abs(age - 600) < 2
