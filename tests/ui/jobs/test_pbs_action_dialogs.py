"""Acting on PBS jobs from the screen: only what PBS can do is offered, and what runs names its
arrays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace
from textual.pilot import Pilot
from textual.widgets import Input, Static

from hpcdash.assembly import cluster_pace
from hpcdash.backends.base import Backend, Probe
from hpcdash.backends.pbs.backend import pbs_backend
from hpcdash.backends.pbs.dialects import Dialect
from hpcdash.backends.queries import ParsedTable, Query
from hpcdash.config.settings import ClusterSettings
from hpcdash.domain.schema import JOBS, NODES, QUEUES
from hpcdash.services.cluster.clock import FrozenClock
from hpcdash.services.cluster.poller import Poller
from hpcdash.services.cluster.queries import CommandBudget
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.jobs.actions import Actions
from hpcdash.services.session import ClusterSession
from hpcdash.services.state.journal import Journal
from hpcdash.services.submit.launches import Launches
from hpcdash.ui.app import HpcdashApp
from hpcdash.ui.jobs.action_dialogs import AlterDialog, ConfirmDialog, ResultsDialog, SignalDialog
from tests.support.parts import changed
from tests.support.scripted_transport import ScriptedTransport
from tests.ui.jobs.acting_stage import NOW, mark, point_at
from tests.ui.stage import notices, press, screen_text, settled, until

SIZE = (110, 36)


def job(
    job_id: str, state: str, *, array_task: str | None = None, tasks: int = 1
) -> dict[str, Any]:
    number = job_id.split(".")[0].split("[")[0]
    return {
        "id": job_id,
        "array_id": f"{number}[].pbs01" if array_task else None,
        "array_task": array_task,
        "name": f"train-{number}",
        "user": "alice",
        "queue": "gpu",
        "state": state,
        "limit_seconds": 43_200,
        "_number": int(number),
        "_task": None,
        "_tasks": tasks,
    }


QUEUE = (
    job("34.pbs01", "running"),
    job("12[3].pbs01", "running", array_task="3"),
    job("12[6-10].pbs01", "pending", array_task="6-10%2", tasks=5),
    job("40.pbs01", "pending"),
)


def pbs_with(dialect: Dialect | None = None, rows: Sequence[dict[str, Any]] = QUEUE) -> Backend:
    """PBS as `dialect`, whose queue has these rows."""
    backend = pbs_backend(dialect or Dialect.OPENPBS)
    probe = Query(("true",), lambda answer: Probe("alice", "23.06.06", dialect=Dialect.OPENPBS))
    jobs = Query(("qstat",), lambda answer: ParsedTable(pa.Table.from_pylist(list(rows), JOBS)))
    nodes = Query(("pbsnodes",), lambda answer: ParsedTable(NODES.empty_table()))
    queues = Query(("qstat",), lambda answer: ParsedTable(QUEUES.empty_table()))
    return replace(
        backend,
        probe=changed(backend.probe, query=lambda: probe),
        queue=changed(
            backend.queue, jobs=lambda scope: jobs, nodes=lambda: nodes, queues=lambda: queues
        ),
    )


def pbs_transport() -> ScriptedTransport:
    """Every command does as it is told."""
    transport = ScriptedTransport()
    transport.answers["*"] = ""
    return transport


def acted(transport: ScriptedTransport) -> list[str]:
    return [
        " ".join(words)
        for words in transport.argvs
        if words[0] not in ("true", "qstat", "pbsnodes", "sh")
    ]


def pbs_app(
    transport: ScriptedTransport,
    folder: Path,
    dialect: Dialect = Dialect.OPENPBS,
    rows: Sequence[dict[str, Any]] = QUEUE,
) -> HpcdashApp:
    clock, budget = FrozenClock(NOW), CommandBudget(600)
    store = ClusterStore(
        "lab", transport, (pbs_with(dialect, rows),), clock=clock, budget=budget, user="alice"
    )
    poller = Poller(store, cluster_pace(ClusterSettings("lab", "lab")), monotonic=lambda: 0.0)
    journal = Journal(folder / "journal.jsonl", now=lambda: NOW)
    return HpcdashApp(
        [ClusterSession(store, poller, Actions(store, journal), Launches(store), "", UTC)],
        fold_arrays=False,
    )


async def asked(pilot: Pilot[Any], *keys: str) -> str:
    """Press keys; what the question they lead to shows."""
    await press(pilot, *keys)
    await until(
        pilot,
        lambda: isinstance(pilot.app.screen, ConfirmDialog) and pilot.app.screen.query("#keys"),
    )
    return screen_text(pilot.app)


def said(app: Any) -> str:
    return " ".join(notices(app))


async def test_holding_the_row_of_the_tasks_that_wait_holds_the_array_and_shows_it(
    tmp_path: Path,
) -> None:
    transport = pbs_transport()
    app = pbs_app(transport, tmp_path)
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await point_at(pilot, "12[6-10].pbs01")
        shown = await asked(pilot, "h")
        assert "qhold '12[].pbs01'" in shown
        assert "whole arrays" not in shown
        await press(pilot, "y")
        await until(pilot, lambda: acted(transport))
    assert acted(transport) == ["qhold 12[].pbs01"]


async def test_for_a_task_alone_its_whole_array_is_offered(tmp_path: Path) -> None:
    transport = pbs_transport()
    app = pbs_app(transport, tmp_path)
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await point_at(pilot, "12[3].pbs01")
        shown = await asked(pilot, "h")
        assert "Hold array 12[].pbs01 (train-12, 5 jobs, alice)" in shown
        assert "PBS can hold only whole arrays: all pending tasks of 12[].pbs01" in shown
        assert acted(transport) == []
        await press(pilot, "y")
        await until(pilot, lambda: acted(transport))
    assert acted(transport) == ["qhold 12[].pbs01"]


async def test_a_waiting_task_opened_by_its_id_is_not_taken_for_all_that_waits(
    tmp_path: Path,
) -> None:
    transport = pbs_transport()
    app = pbs_app(transport, tmp_path)
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await app.main.push("script", job_id="12[7].pbs01")
        await settled(pilot)
        shown = await asked(pilot, "h")
        assert "Hold array 12[].pbs01 (train-12, 5 jobs, alice)" in shown
        assert "PBS can hold only whole arrays: all pending tasks of 12[].pbs01" in shown


async def test_tasks_that_wait_are_cancelled_by_their_row(tmp_path: Path) -> None:
    transport = pbs_transport()
    app = pbs_app(transport, tmp_path)
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await mark(pilot, "12[6-10].pbs01", "40.pbs01")
        await asked(pilot, "x")
        await press(pilot, "y")
        await until(pilot, lambda: acted(transport))
    assert acted(transport) == ["qdel 12[6-10].pbs01 40.pbs01"]


async def test_no_qos_and_no_change_by_an_amount_is_offered(tmp_path: Path) -> None:
    transport = pbs_transport()
    app = pbs_app(transport, tmp_path)
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await point_at(pilot, "40.pbs01")
        await press(pilot, "A")
        assert isinstance(app.screen, AlterDialog)
        assert [field.id for field in app.screen.query(Input)] == ["time", "queue", "nice"]
        assert "+1h" not in screen_text(app)
        app.screen.query_one("#nice", Input).value = "50"
        app.screen.query_one("#time", Input).value = "+1h"
        await press(pilot, "enter")
        assert "PBS does not accept relative changes" in screen_text(app)
        app.screen.query_one("#time", Input).value = "1-12:00:00"
        assert "qalter -l walltime=36:00:00 -p -50 40.pbs01" in await asked(pilot, "enter")
        await press(pilot, "y")
        await until(pilot, lambda: acted(transport))
    assert acted(transport) == ["qalter -l walltime=36:00:00 -p -50 40.pbs01"]


async def test_a_signal_is_for_all_of_a_job_and_nobody_in_it_is_chosen(tmp_path: Path) -> None:
    transport = pbs_transport()
    app = pbs_app(transport, tmp_path)
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await point_at(pilot, "34.pbs01")
        await press(pilot, "z")
        assert isinstance(app.screen, SignalDialog)
        shown = screen_text(app)
        assert "to all processes of the job" in shown
        assert "srun" not in shown
        shown = await asked(pilot, "enter")
        assert "to all processes of the job" in shown
        assert "srun" not in shown
        await press(pilot, "y")
        await until(pilot, lambda: acted(transport))
    assert acted(transport) == ["qsig -s USR1 34.pbs01"]


async def test_a_suspend_that_takes_an_operator_says_so(tmp_path: Path) -> None:
    transport = pbs_transport()
    transport.answers["qsig"] = (159, b"", b"qsig: Unauthorized Request  34.pbs01\n")
    app = pbs_app(transport, tmp_path)
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await point_at(pilot, "34.pbs01")
        await asked(pilot, "p")
        await press(pilot, "y")
        await until(pilot, lambda: isinstance(app.screen, ResultsDialog))
        await settled(pilot)
        assert "only operators can suspend jobs" in screen_text(app)


async def test_a_job_whose_node_does_not_answer_is_offered_to_be_cancelled_by_force(
    tmp_path: Path,
) -> None:
    transport = pbs_transport()
    transport.answers["qdel"] = (222, b"", b"qdel: Server could not connect to MOM 34.pbs01\n")
    app = pbs_app(transport, tmp_path)
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await point_at(pilot, "34.pbs01")
        await asked(pilot, "x")
        await press(pilot, "y")
        await until(pilot, lambda: "by force?" in screen_text(app))
        shown = screen_text(app)
        assert "Cancel job 34.pbs01 (train-34, alice) by force?" in shown
        assert "Server could not connect to MOM" in shown
        assert "qdel -W force 34.pbs01" in shown
        assert acted(transport) == ["qdel 34.pbs01"]
        del transport.answers["qdel"]
        await press(pilot, "y")
        await until(pilot, lambda: len(acted(transport)) == 2)
    assert acted(transport)[1] == "qdel -W force 34.pbs01"


async def test_many_jobs_are_held_with_pauses_that_the_question_tells_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    goes_on = asyncio.Event()

    async def pause(seconds: float) -> None:
        waited.append(seconds)
        await goes_on.wait()

    monkeypatch.setattr("hpcdash.services.jobs.actions.pause", pause)
    rows = [job(f"{number}.pbs01", "pending") for number in range(100, 350)]
    transport = pbs_transport()
    app = pbs_app(transport, tmp_path, rows=rows)
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await mark(pilot, *(row["id"] for row in rows))
        await press(pilot, "h")
        await until(
            pilot, lambda: isinstance(app.screen, ConfirmDialog) and app.screen.query("#keys")
        )
        told = [str(words.render()) for words in app.screen.query("Static").results(Static)]
        assert (
            "This takes at least 52 s: hpcdash pauses between commands to spare the scheduler."
            in told
        )
        await pilot.press("y")
        await until(pilot, lambda: waited)
        assert len(acted(transport)) == 1
        goes_on.set()
        await until(pilot, lambda: "250 jobs held" in said(app))
    assert [len(line.split()) - 1 for line in acted(transport)] == [50] * 5
    assert waited == [13.0] * 4
