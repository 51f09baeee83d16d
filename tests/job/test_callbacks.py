"""Which callbacks go to a job, which are told on the client, and when."""

from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from hpcdash.job.callbacks import (
    Callback,
    ClientCallbacks,
    RunsOn,
    StatusOn,
    received,
    shipped,
    tell,
)
from hpcdash.job.pickles import packed, unpacked
from hpcdash.job.states import EmittedBy, JobStatus, Launch, RunStatus
from tests.support.records import for_each

LAUNCH = Launch("train", "main", pre_submission_id="s1")


class Recorder(Callback):
    """Keeps what it is told."""

    def __init__(
        self, runs_on: RunsOn = RunsOn.CLIENT, status_on: StatusOn = StatusOn.CHANGE
    ) -> None:
        self.runs_on, self.status_on = runs_on, status_on
        self.told: list[Any] = []

    def on_status(self, event: JobStatus) -> None:
        self.told.append(event.state)

    def on_completed(self, event: Any) -> None:
        self.told.append(event)


class Broken(Recorder):
    def on_status(self, event: JobStatus) -> None:
        raise SystemExit(3)

    def on_completed(self, event: Any) -> None:
        raise RuntimeError("no connection")


@pytest.fixture
def told_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(logging.getLogger("hpcdash.job"), "propagate", True)
    return caplog


def names(file: bytes, folder: Path) -> list[str]:
    path = folder / "callbacks"
    path.write_bytes(file)
    return [type(callback).__name__ + callback.runs_on.value for callback in received(str(path))]


def see(told: ClientCallbacks, *states: str, every: float = 10) -> None:
    for number, state in enumerate(states):
        is_ended = state in ("COMPLETED", "FAILED", "CANCELLED")
        success = {"COMPLETED": True, "FAILED": False}.get(state)
        told.see(JobStatus("7", state, 100 + every * number, is_ended, success, reason=None))


# -- shipping


def test_only_those_that_ask_for_the_runner_are_shipped(tmp_path: Path) -> None:
    asked = [Recorder(place) for place in (RunsOn.CLIENT, RunsOn.RUNNER, RunsOn.BOTH)]
    assert names(shipped(asked), tmp_path) == ["Recorderrunner", "Recorderboth"]
    assert not Callback().requires_runner_transport


def test_one_that_cannot_be_pickled_is_left_out_with_a_warning(
    tmp_path: Path, told_log: pytest.LogCaptureFixture
) -> None:
    locked = Recorder(RunsOn.RUNNER)
    locked.lock = threading.Lock()  # type: ignore[attr-defined]
    assert names(shipped([locked, Recorder(RunsOn.BOTH)]), tmp_path) == ["Recorderboth"]
    (warning,) = told_log.records
    assert warning.levelname == "WARNING"
    assert "Recorder cannot be pickled and is not sent to the job: cannot pickle" in warning.message


def test_one_of_the_client_alone_need_not_be_picklable(told_log: pytest.LogCaptureFixture) -> None:
    locked = Recorder(RunsOn.CLIENT)
    locked.lock = threading.Lock()  # type: ignore[attr-defined]
    assert unpacked(shipped([locked])) == []
    assert not told_log.records


def test_one_that_cannot_be_read_on_the_node_takes_no_other_with_it(
    tmp_path: Path, told_log: pytest.LogCaptureFixture
) -> None:
    entries: Any = unpacked(shipped([Recorder(RunsOn.RUNNER)]))
    leaving = b"\x80\x04csys\nexit\nK\x03\x85R."
    file = packed(
        [("Foreign", b"\x80\x04cnot_on_this_node\nFoo\n."), ("Leaving", leaving), *entries]
    )
    assert names(file, tmp_path) == ["Recorderrunner"]
    assert "Foreign cannot be read" in told_log.text
    assert "Leaving cannot be read" in told_log.text


@pytest.mark.parametrize("content", [b"", b"no base64!", packed(7), packed([])[:-5]])
def test_a_file_that_cannot_be_read_has_no_callbacks_and_is_logged(
    content: bytes, tmp_path: Path, told_log: pytest.LogCaptureFixture
) -> None:
    assert names(content, tmp_path) == []
    assert "callbacks will not run" in told_log.text


# -- telling


def test_what_a_callback_raises_is_logged_and_the_next_is_told(
    told_log: pytest.LogCaptureFixture,
) -> None:
    after = Recorder()
    tell([Broken(), after], "on_completed", "done")
    assert after.told == ["done"]
    assert "Broken failed in on_completed" in told_log.text
    assert "no connection" in told_log.text


def test_what_is_no_error_of_a_callback_does_not_end_the_job_either(
    told_log: pytest.LogCaptureFixture,
) -> None:
    class Raises(Callback):
        def __init__(self, error: BaseException) -> None:
            self.error = error

        def on_completed(self, event: Any) -> None:
            raise self.error

    after = Recorder()
    tell([Raises(asyncio.CancelledError()), Raises(GeneratorExit()), after], "on_completed", "done")
    assert (after.told, told_log.text.count("Raises failed in on_completed")) == (["done"], 2)
    # A person's own goes on, once the others were told.
    with pytest.raises(KeyboardInterrupt):
        tell([Raises(KeyboardInterrupt()), after], "on_completed", "again")
    assert after.told == ["done", "again"]


def test_the_client_tells_its_own_once_that_the_scheduler_reported_the_end() -> None:
    client, both, runner = Recorder(RunsOn.CLIENT), Recorder(RunsOn.BOTH), Recorder(RunsOn.RUNNER)
    told = ClientCallbacks([client, both, runner], LAUNCH)
    see(told, "PENDING", "RUNNING", "COMPLETED", "COMPLETED", "COMPLETED")
    assert client.told[:-1] == ["PENDING", "RUNNING", "COMPLETED"]
    completed = client.told[-1]
    assert (completed.emitted_by, completed.status) == (EmittedBy.CLIENT, RunStatus.SUCCESS)
    assert (completed.job_id, completed.launch, completed.scheduler_state) == (
        "7",
        LAUNCH,
        "COMPLETED",
    )
    assert both.told == client.told
    assert runner.told == []


@pytest.mark.parametrize(("state", "status"), [("FAILED", "failure"), ("CANCELLED", None)])
def test_an_end_that_nobody_can_name_has_no_status(state: str, status: str | None) -> None:
    client = Recorder()
    see(ClientCallbacks([client], LAUNCH), "RUNNING", state)
    assert client.told[-1].status == status


def test_a_job_that_vanished_is_not_completed() -> None:
    client = Recorder()
    see(ClientCallbacks([client], LAUNCH), "RUNNING", "MISSING", "MISSING")
    assert client.told == ["RUNNING", "MISSING"]


def test_a_broken_callback_of_the_client_hides_no_end_from_others() -> None:
    client = Recorder()
    see(ClientCallbacks([Broken(), client], LAUNCH), "FAILED")
    assert [getattr(event, "status", event) for event in client.told] == ["FAILED", "failure"]


# -- the status hook

POLLED = ("PENDING", "PENDING", "RUNNING", "RUNNING", "RUNNING", "RUNNING", "RUNNING", "COMPLETED")


@for_each(
    ("status_on", "seen"),
    [
        (StatusOn.CHANGE, ["PENDING", "RUNNING", "COMPLETED"]),
        (StatusOn.END, ["COMPLETED"]),
        (StatusOn.INTERVAL, ["PENDING", "RUNNING", "RUNNING", "COMPLETED"]),
    ],
)
def test_the_status_hook_is_called_on_a_change_at_an_interval_or_at_the_end(
    status_on: StatusOn, seen: list[str]
) -> None:
    client = Recorder(status_on=status_on)
    client.status_interval_seconds = 30
    see(ClientCallbacks([client], LAUNCH), *POLLED, every=10)
    assert client.told[:-1] == seen


def test_a_state_that_comes_back_is_a_change() -> None:
    client = Recorder()
    see(ClientCallbacks([client], LAUNCH), "RUNNING", "SUSPENDED", "RUNNING")
    assert client.told == ["RUNNING", "SUSPENDED", "RUNNING"]
