"""A plain launch on the embedded queue: what runs, and one whose answer is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from hpcdash.backends.embedded.backend import embedded_backend
from hpcdash.config.settings import LaunchSettings
from hpcdash.domain.request import Request, Site
from hpcdash.errors import UnreachableError
from hpcdash.services.cluster.clock import SystemClock
from hpcdash.services.cluster.queries import CommandBudget
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.jobs.actions import Actions
from hpcdash.services.state.journal import Journal
from hpcdash.services.submit import recovery
from hpcdash.services.submit.launches import Launches
from hpcdash.transport.base import CommandResult
from hpcdash.transport.local import LocalTransport
from tests.embedded.queue_lab import QueueLab


class LossyTransport(LocalTransport):
    """Runs submissions, and loses their answers, before or after the queue has them."""

    is_before = False
    submissions = 0

    async def run(self, argv: tuple[str, ...], **options: Any) -> CommandResult:
        if "submit" not in argv or "--token" not in argv:
            return await super().run(argv, **options)
        self.submissions += 1
        if not self.is_before:
            await super().run(argv, **options)
        raise UnreachableError("the line broke", "Try again.")


@pytest.fixture
async def transport() -> LossyTransport:
    return LossyTransport()


@pytest.fixture
async def store(queue: QueueLab, transport: LossyTransport) -> AsyncIterator[ClusterStore]:
    backend = embedded_backend(queue.program)
    made = ClusterStore(
        "here", transport, (backend,), clock=SystemClock(), budget=CommandBudget(100_000)
    )
    yield made
    await made.close()


@pytest.mark.parametrize("is_before", [False, True])
async def test_a_plain_launch_whose_answer_is_lost_is_found_and_not_doubled(
    queue: QueueLab,
    store: ClusterStore,
    transport: LossyTransport,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_before: bool,
) -> None:
    monkeypatch.setattr(recovery, "_RETRY_SECONDS", 0.1)
    transport.is_before = is_before
    settings = LaunchSettings(Site(storage_root=str(tmp_path / "launches")))
    launches = Launches(store, settings, tmp_path / "state")
    actions = Actions(store, Journal(tmp_path / "state" / "journal.jsonl"))
    request = Request(command='echo "from $0"; exit 3', slots=0, plain=True)
    planned = await launches.plan(request, 'command = "x"\nplain = true\n')
    result = await launches.submit(planned, actions)
    assert transport.submissions == 1
    if is_before:
        assert result.outcome.done is False
        assert queue.rows("jobs", "--ended") == []
        return
    assert result.outcome.done
    assert result.outcome.text == "job 1"
    assert [row["id"] for row in queue.rows("jobs", "--ended")] == ["1"]
    assert queue.ended("1").exit_code == 3
    log = Path(planned.folder, "1.out")
    script = (await asyncio.to_thread(queue.run, "script", "1")).stdout.decode()
    assert script == planned.shown
    assert script.endswith('\n\necho "from $0"; exit 3\n')
    assert (await asyncio.to_thread(log.read_text)).startswith("from ")
