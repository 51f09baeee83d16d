"""The losses of several jobs from the ends of their logs, which are real files read by a real
shell.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hpcdash.backends.embedded.backend import embedded_backend
from hpcdash.errors import ConnectionFailed
from hpcdash.services.cluster.clock import SystemClock
from hpcdash.services.cluster.queries import CommandBudget
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.metrics.loss_tails import MAX_VALUES, TAIL_BYTES, LossTail, LossTails
from hpcdash.services.state.folders import queue_program
from hpcdash.transport.local import LocalTransport
from tests.support.real_files import append
from tests.support.real_files import put as put_content
from tests.support.scripted_transport import ScriptedTransport

pytestmark = pytest.mark.system


@pytest.fixture
def transport() -> ScriptedTransport:
    return ScriptedTransport(behind=LocalTransport())


def store_of(transport: ScriptedTransport, folder: Path, ceiling: int = 600) -> ClusterStore:
    backend = embedded_backend(queue_program(folder))
    return ClusterStore(
        "here", transport, (backend,), clock=SystemClock(), budget=CommandBudget(ceiling)
    )


@pytest.fixture
def tails(transport: ScriptedTransport, tmp_path: Path) -> LossTails:
    return LossTails(
        store_of(transport, tmp_path), lambda names: "loss" if "loss" in names else None
    )


def put(path: Path, content: bytes) -> Path:
    put_content(path, content)
    return path


def row(job_id: str, stdout: Path | str, stderr: Path | str | None = None) -> Mapping[str, Any]:
    return {
        "id": job_id,
        "stdout_path": str(stdout),
        "stderr_path": None if stderr is None else str(stderr),
    }


def log(first: int, last: int) -> bytes:
    return b"".join(
        b"step %d: loss %.3f lr 0.001\n" % (step, 9 - step / 1e4) for step in range(first, last)
    )


async def test_many_logs_are_read_in_one_command_and_of_each_only_its_end(
    tails: LossTails, transport: ScriptedTransport, tmp_path: Path
) -> None:
    put(tmp_path / "long", log(0, 50_000))
    put(tmp_path / "short", log(0, 3))
    put(
        tmp_path / "stderr",
        b"step 1, loss: nan, lr: 1\nstep 2, loss: inf, lr: 1\nstep 3, loss: 1.5",
    )
    put(tmp_path / "none", b"no metric here\n")
    rows = [row("1", tmp_path / "long"), row("2", tmp_path / "short"), row("4", tmp_path / "none")]
    assert await tails.refresh([*rows, row("3", tmp_path / "empty", tmp_path / "stderr")])
    (answer,) = transport.answered
    assert len(answer.stdout) < 1.05 * TAIL_BYTES
    newest = tails.tail("1")
    assert newest is not None
    assert (newest.name, len(newest.values), newest.values[-1]) == ("loss", MAX_VALUES, 4.0)
    second = tails.tail("2")
    assert second is not None
    assert (second.name, second.values) == ("loss", (9.0, 9.0, 9.0))
    assert second.lines[0] == log(0, 3).decode().splitlines()[0]
    third = tails.tail("3")
    assert third is not None
    # The line that has no end yet may say more.
    assert [str(value) for value in third.values] == ["nan", "inf"]
    assert tails.tail("4") == LossTail(lines=("no metric here", ""))
    assert tails.tail("5") is None


async def test_the_end_of_a_training_is_known_where_its_log_shows_pace_and_final_step(
    tails: LossTails, tmp_path: Path
) -> None:
    line = b" iteration %d/1000 | elapsed time per iteration (ms): 500.0 | loss: 2.5 |\n"
    timed = b"".join(line % step for step in range(1, 401))
    put(tmp_path / "timed", timed)
    put(tmp_path / "endless", timed.replace(b"/1000", b""))
    put(tmp_path / "over", timed.replace(b"/1000", b"/400"))
    names = ("timed", "endless", "over")
    await tails.refresh([row(name, tmp_path / name) for name in names])
    ends = [found.seconds_to_end for name in names if (found := tails.tail(name)) is not None]
    assert ends == [300.0, None, 0.0]


async def test_a_log_that_stands_still_is_not_read_again_and_one_that_grew_is(
    tails: LossTails, transport: ScriptedTransport, tmp_path: Path
) -> None:
    rows = [
        row("1", put(tmp_path / "one", log(0, 400))),
        row("2", put(tmp_path / "other", log(0, 400))),
    ]
    assert await tails.refresh(rows)
    assert not await tails.refresh(rows)
    assert len(transport.answered[-1].stdout) < 200
    append(tmp_path / "other", b"step 400: loss nan\n")
    assert await tails.refresh(rows)
    other, one = tails.tail("2"), tails.tail("1")
    assert other is not None
    assert one is not None
    assert math.isnan(other.values[-1])
    assert len(one.values) == 400
    # A job that writes to the same file is another's look.
    assert await tails.refresh([*rows, row("3", tmp_path / "one")])
    assert tails.tail("3") == one


async def test_paths_of_any_letters_and_what_is_no_log_do_no_harm(
    tails: LossTails, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    odd = put(tmp_path / "a 'b' $(touch gone)\n`c`", log(0, 5))
    put(tmp_path / "-n", log(0, 5))
    put(tmp_path / "empty", b"")
    names = ["pipe", "folder", "missing", "empty", "/dev/null", "/dev/zero", "with\0nul"]
    rows = [row(str(number), name) for number, name in enumerate(names)]
    assert await tails.refresh([*rows, row("odd", odd), row("dash", "-n")])
    assert not (tmp_path / "gone").exists()
    for job_id in ("odd", "dash"):
        found = tails.tail(job_id)
        assert found is not None
        assert len(found.values) == 5
    assert [tails.tail(str(number)) for number in range(len(names))].count(None) == len(names) - 1
    assert tails.tail("3") == LossTail(lines=("",))


async def test_nothing_is_asked_where_the_ceiling_leaves_no_room_nor_a_failure_raised(
    transport: ScriptedTransport, tmp_path: Path
) -> None:
    store = store_of(transport, tmp_path, ceiling=3)
    tails = LossTails(store, lambda names: "loss")
    rows = [row("1", put(tmp_path / "log", log(0, 5)))]
    transport.fails["*"] = ConnectionFailed("the line is cut", "Wait.")
    assert not await tails.refresh(rows)
    transport.fails.clear()
    assert await tails.refresh(rows)
    store.budget.spend()
    append(tmp_path / "log", log(5, 9))
    assert not await tails.refresh(rows)
    assert len(transport.answered) == 1


async def test_where_jobs_write_is_asked_for_a_few_jobs_at_a_time_and_once(
    transport: ScriptedTransport, tmp_path: Path
) -> None:
    store = store_of(transport, tmp_path / "queue", ceiling=60)
    tails = LossTails(store, lambda names: "loss")
    rows = [{**row(str(number), ""), "stdout_path": None} for number in range(1, 6)]

    def located() -> set[str]:
        return {
            word
            for answer in transport.answered
            for word in answer.argv
            if word in {"1", "2", "3", "4", "5"}
        }

    assert not await tails.refresh(rows)
    assert located() == {"1", "2", "3"}
    assert not await tails.refresh(rows)
    assert located() == {"1", "2", "3", "4", "5"}
    asked = len(transport.answered)
    # None of them is there: they are not asked for again.
    assert not await tails.refresh(rows)
    assert len(transport.answered) == asked


async def test_a_job_that_writes_to_dev_null_has_no_log_and_is_known_for_it(
    tails: LossTails, tmp_path: Path
) -> None:
    await tails.refresh([row("1", "/dev/null"), row("2", put(tmp_path / "log", log(0, 3)))])
    assert (tails.tail("1"), tails.is_discarded("1"), tails.is_discarded("2")) == (
        None,
        True,
        False,
    )
