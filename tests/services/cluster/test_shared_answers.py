"""Tables and probes that another program of the same person had a while ago."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from hpcdash.domain.tables import Kind
from hpcdash.errors import RateLimited
from hpcdash.transport.base import CommandResult, OnOutput, Sharing
from tests.support.scripted_cluster import Cluster
from tests.support.scripted_transport import ScriptedTransport

_FOR_PERSON = 2


class SharingTransport(ScriptedTransport):
    """Answers are `age_seconds` old, where a query accepts that; `limited`: none is given."""

    def __init__(self) -> None:
        super().__init__()
        self.age_seconds = 0.0
        self.limited = False
        self.sharings: list[Sharing] = []

    async def query(
        self, argv: tuple[str, ...], *, limit_seconds: float, cap_bytes: int, sharing: Sharing
    ) -> CommandResult:
        self.sharings.append(sharing)
        if self.limited:
            raise RateLimited("the limit of all windows")
        answer = await self.run(argv, limit_seconds=limit_seconds, cap_bytes=cap_bytes)
        if not 0 < self.age_seconds <= sharing.max_age_seconds:
            return answer
        return replace(answer, is_copy=True, age_seconds=self.age_seconds)

    async def act(
        self,
        argv: tuple[str, ...],
        *,
        stdin: bytes | None,
        limit_seconds: float,
        cap_bytes: int,
        on_output: OnOutput | None,
    ) -> CommandResult:
        return await self.run(argv, limit_seconds=limit_seconds, cap_bytes=cap_bytes)


@pytest.fixture
def transport() -> SharingTransport:
    return SharingTransport()


@pytest.fixture
def cluster(tmp_path: Path, transport: SharingTransport) -> Cluster:
    return Cluster(tmp_path, transport=transport)


async def test_a_shared_table_has_its_own_time_and_costs_no_command(
    cluster: Cluster, transport: SharingTransport
) -> None:
    await cluster.store.open()
    sent = cluster.budget.sent
    transport.age_seconds = 7.0
    snapshot = await cluster.store.fetch(Kind.NODES, 10.0)
    assert snapshot.taken_at == cluster.clock.now() - 7.0
    assert cluster.budget.sent == sent
    snapshot = await cluster.store.fetch(Kind.NODES)
    assert snapshot.taken_at == cluster.clock.now()


async def test_a_window_polls_when_the_shared_table_is_due_and_not_later(
    cluster: Cluster, transport: SharingTransport
) -> None:
    transport.age_seconds = 7.0
    await cluster.poller.poll([Kind.MINE])
    assert transport.sharings[-1].max_age_seconds == pytest.approx(11.25)
    assert cluster.poller.next_in_seconds(Kind.MINE) == pytest.approx(8.0)


async def test_what_a_person_requests_is_polled_anew(
    cluster: Cluster, transport: SharingTransport
) -> None:
    await cluster.poller.poll([Kind.MINE])
    cluster.poller.poll_now()
    await cluster.poller.poll([Kind.MINE])
    assert transport.sharings[-1].max_age_seconds == 0.0


async def test_a_probe_is_shared_for_long_whatever_was_done_since(
    cluster: Cluster, transport: SharingTransport
) -> None:
    transport.age_seconds = 300.0
    probe = await cluster.store.open()
    [sharing] = transport.sharings
    assert sharing.outlives_actions
    assert probe.clock_epoch_seconds is not None
    transport.age_seconds = 0.0
    again = Cluster(cluster.root, transport=transport)
    assert (await again.store.open()).clock_epoch_seconds == probe.clock_epoch_seconds - 300.0


async def test_the_shared_limit_is_the_ceiling_and_twice_that_for_a_person(
    cluster: Cluster, transport: SharingTransport
) -> None:
    await cluster.store.fetch(Kind.NODES)
    await cluster.store.fetch(Kind.NODES, times=_FOR_PERSON)
    limits = [sharing.commands_per_minute for sharing in transport.sharings]
    assert limits == [600, 1200]
    sent = cluster.budget.sent
    transport.limited = True
    with pytest.raises(RateLimited):
        await cluster.store.fetch(Kind.NODES)
    assert cluster.budget.sent == sent
