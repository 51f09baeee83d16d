"""A recorded case shows every view: what the jobs wrote and their scripts are there too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from hpcdash.ui.dialogs import ChoiceDialog
from tests.support.play_case import FIXTURES
from tests.ui.metrics.chart_stage import drawn
from tests.ui.stage import CASES, PBS_CASES, dashboard, press, screen_text, settled, until

SLURM, PBS, RAY = CASES, PBS_CASES, FIXTURES / "ray" / "2.60"


@pytest.mark.parametrize(
    ("cases", "view", "job_id", "shown"),
    [
        (SLURM, "job", "13_3", "FloatingPointError: loss is nan at step 1150"),
        (SLURM, "log", "6", "step 29140 loss"),
        (SLURM, "log", "13_3", "FloatingPointError"),
        (SLURM, "log", "52", "Segmentation fault"),
        (SLURM, "script", "6", "--signal=USR1@300"),
        (SLURM, "triage", "13", "FloatingPointError"),
        (SLURM, "chain", "57", "dinov2-export"),
        (PBS, "job", "29.pbs01", "Process 71234 got signal: 15"),
        (PBS, "log", "2.pbs01", "step 6400 loss"),
        (PBS, "log", "29.pbs01", "SignalException"),
        (PBS, "script", "2.pbs01", "train.py --steps 20000"),
        (PBS, "triage", "12[].pbs01", "ValueError: batch of 7"),
        (PBS, "chain", "9.pbs01", "grandchild"),
        (RAY, "job", "raysubmit_tok", "FileNotFoundError"),
        (RAY, "log", "raysubmit_llama7b", "step 168 loss"),
        (RAY, "script", "raysubmit_llama7b", "train.py --config llama-7b.yaml"),
    ],
    ids=lambda value: value.parent.name if isinstance(value, Path) else str(value)[:16],
)
async def test_a_recorded_job_opens_in_the_view(
    cases: Path, view: str, job_id: str, shown: str
) -> None:
    app = dashboard("training", cases=cases)
    async with app.run_test(size=(140, 40)) as pilot:
        await settled(pilot)
        await app.main.push(view, job_id=job_id)
        await until(pilot, lambda: shown in screen_text(app), f"{view} of {job_id} shows {shown!r}")


@pytest.mark.parametrize(
    ("cases", "job_id"), [(SLURM, "6"), (PBS, "2.pbs01")], ids=["slurm", "pbs"]
)
async def test_the_loss_of_a_recorded_training_is_drawn_with_its_spike(
    cases: Path, job_id: str
) -> None:
    app = dashboard("training", cases=cases)
    async with app.run_test(size=(140, 40)) as pilot:
        await settled(pilot)
        await app.main.push("chart", job_id=job_id)
        await drawn(pilot)
        await until(pilot, lambda: "spike at" in screen_text(app), "the spike is found")


async def test_the_page_of_a_node_shows_what_programs_run_there() -> None:
    app = dashboard("tasks", cases=RAY)
    async with app.run_test(size=(140, 40)) as pilot:
        await settled(pilot)
        await app.main.push("node", name="192.0.2.2")
        await until(
            pilot,
            lambda: "train-0.02 1 running" in screen_text(app),
            "the node page shows its tasks",
        )


async def test_no_file_outside_the_recording_is_read(tmp_path: Path) -> None:
    app = dashboard("training")
    secret = tmp_path / "secret"
    secret.write_text("hello\n", encoding="utf-8")
    log = app.sessions[0].store.log_file(str(secret))
    assert (await log.read(0, 100)).stat.is_missing
    assert (
        await app.sessions[0].store.log_file(f"/../../../../../../..{secret}").read(0, 100)
    ).stat.is_missing


@pytest.mark.parametrize("key", ["1", "2", "3", "4"], ids=["jobs", "nodes", "resources", "history"])
def test_a_ray_cluster_looks_as_it_did(key: str, snap_compare: Callable[..., bool]) -> None:
    async def shown(pilot: Pilot[Any]) -> None:
        await settled(pilot)
        await press(pilot, key)

    assert snap_compare(dashboard("training", cases=RAY), terminal_size=(120, 30), run_before=shown)


def test_runs_on_slices_look_as_they_did(snap_compare: Callable[..., bool]) -> None:
    app = dashboard("slices", cases=RAY)

    async def shown(pilot: Pilot[Any]) -> None:
        await settled(pilot)
        await press(pilot, "down")
        await until(
            pilot, lambda: "step 2690 loss" in screen_text(app), "the loss of both attempts"
        )

    assert snap_compare(app, terminal_size=(120, 34), run_before=shown)


async def test_the_attempts_the_failed_worker_and_the_nodes_of_runs_on_slices_are_shown() -> None:
    app = dashboard("slices", cases=RAY)
    async with app.run_test(size=(140, 44)) as pilot:
        await settled(pilot)
        for view, opened, words in (
            ("job", {"job_id": "raysubmit_pretrain"}, "preempted: worker 1 on slice-a"),
            ("job", {"job_id": "raysubmit_pretrain"}, "0 attempt 2 on slice-a"),
            ("triage", {"job_id": "raysubmit_evalsweep"}, "RuntimeError: shard 17 has no label"),
            ("node", {"name": "10.130.0.8"}, "llama-pretrain"),
        ):
            await app.main.push(view, **opened)
            await until(pilot, lambda words=words: words in screen_text(app), words)  # type: ignore[misc]


def test_the_page_of_a_ray_program_shows_its_tasks_and_actors(
    snap_compare: Callable[..., bool],
) -> None:
    app = dashboard("tasks", cases=RAY)

    async def shown(pilot: Pilot[Any]) -> None:
        await settled(pilot)
        await app.main.push("job", job_id="raysubmit_sweep")
        await until(pilot, lambda: "diverges" in screen_text(app), "why a task failed")

    assert snap_compare(app, terminal_size=(140, 44), run_before=shown)


@pytest.mark.parametrize("version", ["2.60", "2.9"])
async def test_the_logs_of_a_ray_program_s_workers_are_chosen_from_a_list(version: str) -> None:
    app = dashboard("tasks", cases=FIXTURES / "ray" / version)
    async with app.run_test(size=(140, 40)) as pilot:
        await settled(pilot)
        await app.main.push("log", job_id="raysubmit_sweep")
        await until(pilot, lambda: "(stdout and stderr)" in screen_text(app), "the driver's log")
        await press(pilot, "o")
        await until(pilot, lambda: isinstance(app.screen, ChoiceDialog), "the list of logs")
        assert isinstance(app.screen, ChoiceDialog)
        names = [choice.text for choice in app.screen.choices]
        await press(
            pilot,
            *["down"] * next(at for at, words in enumerate(names) if "train-0.01" in words),
            "enter",
        )
        await until(pilot, lambda: "s shows both streams" in screen_text(app), "the worker's log")
        await press(pilot, "tab")
        await until(pilot, lambda: "rate 0.01" in screen_text(app), "its stderr")
        await press(pilot, "left_square_bracket")
        await until(pilot, lambda: "rate 0.02" in screen_text(app), "the one before in the list")
