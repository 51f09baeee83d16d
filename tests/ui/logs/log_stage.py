"""A dashboard whose jobs are recorded and whose log files are real ones of a test's folder. Asserts nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from textual.pilot import Pilot

from hpcdash.backends.slurm.backend import BACKEND
from hpcdash.backends.tokens import RECORDED_TOKEN
from hpcdash.cli.build import journal, pace_of
from hpcdash.config.settings import ClusterSettings
from hpcdash.errors import HpcdashError, without_env
from hpcdash.recorded import token_of
from hpcdash.services.cluster.clock import Clock, SystemClock
from hpcdash.services.cluster.poller import Poller
from hpcdash.services.cluster.queries import CommandBudget
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.jobs.actions import Actions
from hpcdash.services.session import ClusterSession
from hpcdash.transport.base import CommandResult
from hpcdash.transport.local import LocalTransport
from hpcdash.ui.app import HpcdashApp
from hpcdash.ui.logs.pane import LogPane
from hpcdash.ui.logs.view import LogView
from tests.ui.stage import CASES, PROBE, screen_text, settled, until

RUNNING, PENDING = "74", "57"
_ROWS = (CASES / "everyday" / "jobs-mine.out").read_bytes()


class LogTransport(LocalTransport):
    """This machine, where Slurm answers as recorded; its jobs write to `stdout` and `stderr`."""

    def __init__(self, stdout: Path, stderr: Path, *, shown_folder: Path | None = None) -> None:
        """`shown_folder` is where the files seem to be, wherever the test has them."""
        super().__init__()
        self.folder = stdout.parent
        self.shown_folder = shown_folder or self.folder
        self.stdout = self.shown_folder / stdout.name
        self.stderr = self.shown_folder / stderr.name
        self.rows = _ROWS
        self.files_asked = 0
        # Files are not looked at until it is set.
        self.held: asyncio.Event | None = None
        # Raised in place of looking at a file.
        self.line_error: HpcdashError | None = None

    async def run(self, argv: tuple[str, ...], **limits: Any) -> CommandResult:
        words = without_env(argv)
        if words == without_env(BACKEND.probe.query().argv):
            return CommandResult(argv, 0, PROBE, b"", 0.01)
        if words[0] == "squeue":
            return CommandResult(
                argv, 0, self.rows.replace(RECORDED_TOKEN.encode(), (token_of(argv) or "").encode()), b"", 0
            )
        if words[0] == "scontrol":
            return CommandResult(argv, 0, self._job(words[-1]), b"", 0.01)
        self.files_asked += 1
        if self.held is not None:
            await self.held.wait()
        if self.line_error is not None:
            raise self.line_error
        there = tuple(word.replace(str(self.shown_folder), str(self.folder)) for word in argv)
        return await super().run(there, **limits)

    def _job(self, job_id: str) -> bytes:
        lines = (
            f"JobId={job_id} JobName=job",
            "   BatchFlag=1",
            "   Command=/bin/true",
            f"   StdErr={self.stderr}",
            f"   StdOut={self.stdout}",
        )
        return "\n".join(lines).encode() + b"\n\n"


def log_session(transport: LogTransport, clock: Clock | None = None) -> ClusterSession:
    store = ClusterStore(
        "lab", transport, (BACKEND,), clock=clock or SystemClock(), budget=CommandBudget(600), user="maya"
    )
    poller = Poller(store, pace_of(ClusterSettings("lab", "lab")), monotonic=lambda: 0.0)
    return ClusterSession(store, poller, Actions(store, journal()), "")


def log_dashboard(
    folder: Path,
    *,
    both_in_one: bool = False,
    clock: Clock | None = None,
    shown_folder: Path | None = None,
    **arguments: Any,
) -> HpcdashApp:
    """A dashboard whose jobs write to job.out and job.err of a folder, which seems to be `shown_folder`."""
    stdout = folder / "job.out"
    stderr = stdout if both_in_one else folder / "job.err"
    transport = LogTransport(stdout, stderr, shown_folder=shown_folder)
    return HpcdashApp([log_session(transport, clock)], **arguments)


async def open_log(pilot: Pilot[Any], job_id: str = RUNNING, stream: str = "stdout") -> None:
    """To a job's log, once something of it is on the screen."""
    await settled(pilot)
    await _app(pilot).main.push("log", job_id=job_id, stream=stream)
    await until(pilot, lambda: pane_of(pilot) is not None, "opened")
    await until(pilot, lambda: pane_of(pilot).window.looked_at is not None, "looked at")
    await pilot.pause()


def _app(pilot: Pilot[Any]) -> HpcdashApp:
    app = pilot.app
    assert isinstance(app, HpcdashApp)
    return app


def view_of(pilot: Pilot[Any]) -> LogView:
    view = _app(pilot).main.view
    assert isinstance(view, LogView)
    return view


def pane_of(pilot: Pilot[Any]) -> LogPane:
    return view_of(pilot).pane  # type: ignore[return-value]


async def shows(pilot: Pilot[Any], text: str) -> None:
    """Wait until a text is on the screen."""
    await until(pilot, lambda: text in screen_text(pilot.app), f"{text!r} is shown")


async def shows_no_more(pilot: Pilot[Any], text: str) -> None:
    await until(pilot, lambda: text not in screen_text(pilot.app), f"{text!r} is gone")
