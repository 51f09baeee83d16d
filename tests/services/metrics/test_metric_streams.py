"""How often logs are asked for, also when gone; how streams are joined; where times without a zone
stand.
"""

from __future__ import annotations

import asyncio
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from hpcdash.backends.job_detail import LogFiles
from hpcdash.services.cluster.queries import CommandBudget
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.logs.file import LogFile
from hpcdash.services.metrics import run as metrics
from hpcdash.services.metrics import source as metric_source
from hpcdash.services.metrics.facts import RunReader
from hpcdash.services.metrics.joined import JoinedRun, MetricStream
from hpcdash.services.metrics.pace import JobFacts
from hpcdash.services.metrics.places import MetricPlace, MetricPlaces
from hpcdash.services.metrics.reader import MetricReader
from hpcdash.services.metrics.run import WatchedRun
from hpcdash.services.metrics.series import MetricLog
from hpcdash.services.metrics.vocabulary import zone_behind_seconds
from hpcdash.transport.local import LocalTransport
from tests.support.scripted_transport import ScriptedTransport

pytestmark = pytest.mark.system
HOUR = 3600.0


def watched(
    monkeypatch: pytest.MonkeyPatch, *places: MetricPlace, per_minute: int = 60
) -> tuple[WatchedRun, ScriptedTransport]:
    """A run whose scheduler says these places; its newest task runs."""
    row = {"name": "x", "state": "running", "id": "7", "array_id": None}

    async def located(*_: object, **__: object) -> MetricPlaces:
        return MetricPlaces(
            "7", row, places, len(places) > 1, all(place.is_over for place in places)
        )

    monkeypatch.setattr(metrics, "locate_metrics", located)
    monkeypatch.setattr(metrics, "NamedMetricsFiles", lambda store: None)
    transport = ScriptedTransport(behind=LocalTransport())
    store = SimpleNamespace(
        transport=transport,
        budget=CommandBudget(per_minute),
        log_file=lambda path, host="": LogFile(transport, path, host),
    )
    return WatchedRun(cast("ClusterStore", store), "7"), transport


async def commands_in(run: WatchedRun, transport: ScriptedTransport, seconds: float) -> int:
    """How many commands following took after it was opened."""
    await run.open()
    before = len(transport.argvs)
    task = asyncio.create_task(run.follow(lambda: None))
    await asyncio.wait({task}, timeout=seconds)
    await run.close()
    return len(transport.argvs) - before


async def test_logs_that_were_deleted_are_asked_for_within_the_ceiling_and_ever_more_seldom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = [LogFiles(f"{tmp_path}/{task}.out", f"{tmp_path}/{task}.err") for task in range(50)]
    places = [MetricPlace(f"7_{task}", files, task < 49) for task, files in enumerate(gone)]
    run, transport = watched(monkeypatch, *places, per_minute=600)
    # 600 a minute are 10 a second; what was reserved last is of two commands.
    assert 0 < await commands_in(run, transport, 1.5) <= 20
    ended, transport = watched(monkeypatch, MetricPlace("7", gone[0], True), per_minute=6000)
    monkeypatch.setattr(metrics, "LONGEST_PAUSE_SECONDS", 0.02)
    assert await commands_in(ended, transport, 1.0) == 4


async def test_what_is_read_backwards_stays_within_the_ceiling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FIRST_BYTES", "SMALLEST_STRETCH", "LARGEST_STRETCH"):
        monkeypatch.setattr(metric_source, name, 1 << 12)
    log = tmp_path / "log"
    log.write_text("".join(f"step {step} loss 2.5\n" for step in range(30_000)))
    run, transport = watched(
        monkeypatch, MetricPlace("7", LogFiles(str(log), None), True), per_minute=600
    )
    assert 5 <= await commands_in(run, transport, 1.0) <= 12
    assert not run.progress.is_whole


def test_streams_are_joined_without_their_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    logs = []
    for content in (b"step 1 loss 2 lr 1\n", b"step 1 loss 3\nstep 2 loss 4\n"):
        logs.append(MetricLog())
        logs[-1].append(MetricReader().feed(content, is_end=True))
    with monkeypatch.context() as without:
        without.delattr(MetricStream, "written")
        run = JoinedRun([MetricStream([log]) for log in logs])
    assert run.series("loss").values.tolist() == [3, 4]
    assert run.series("lr").values.tolist() == [1]


async def test_times_without_a_zone_stand_where_the_file_says_and_are_no_stall(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()

    def stamped(name: str, ahead: float, zone: str = "") -> str:
        path = tmp_path / name
        moments = [datetime.fromtimestamp(now - 10 * (9 - n) + ahead, UTC) for n in range(10)]
        path.write_text(
            "".join(
                f"{at:%Y-%m-%d %H:%M:%S}{zone} step {n} loss 2.{n}\n"
                for n, at in enumerate(moments)
            )
        )
        os.utime(path, (now + 1, now + 1))
        return str(path)

    async def newest(path: str) -> WatchedRun:
        run, _ = watched(monkeypatch, MetricPlace("7", LogFiles(path, None), False))
        await run.open()
        return run

    for name, ahead in (
        ("new-york", -5 * HOUR),
        ("utc", 0.0),
        ("delhi", 5.5 * HOUR),
        ("kiritimati", 14 * HOUR),
    ):
        run = await newest(stamped(name, ahead))
        assert run.run.series("loss", "time").x[-1] == pytest.approx(now, abs=2), name
        assert run.run.attempts[-1].last[3] == pytest.approx(now, abs=2), name
        for silence, stalls in ((5.0, False), (2 * HOUR, True)):
            facts = JobFacts(now + silence, True)
            found = RunReader().read(run.run, ("loss",), "step", facts).found
            assert [mark.kind for mark in found] == ["stall"] * stalls, name
    # What bears a zone is not moved, though the file was written to since.
    path = stamped("zoned", -2 * HOUR, "+0000")
    assert (await newest(path)).run.series("loss", "time").x[-1] == pytest.approx(
        now - 2 * HOUR, abs=2
    )


def test_a_zone_is_told_in_quarters_of_an_hour_and_no_other_difference_is_one() -> None:
    assert zone_behind_seconds(1.7e9, 1.7e9 + 5 * HOUR + 400) == 5 * HOUR
    assert zone_behind_seconds(1.7e9, 1.7e9 + 5 * HOUR - 60) == 5 * HOUR
    assert zone_behind_seconds(1.7e9, 1.7e9 - 5.75 * HOUR) == -5.75 * HOUR
    assert zone_behind_seconds(1.7e9, 1.7e9 + 30 * HOUR) == 0
