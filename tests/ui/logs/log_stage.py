"""A dashboard whose jobs are recorded and whose log files are real ones of a test's folder.

Asserts nothing.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from textual.pilot import Pilot

from hpcdash.assembly import cluster_pace
from hpcdash.backends.slurm.backend import BACKEND
from hpcdash.config.settings import ClusterSettings
from hpcdash.errors import without_env
from hpcdash.services.cluster.clock import Clock, SystemClock
from hpcdash.services.cluster.poller import Poller
from hpcdash.services.cluster.queries import CommandBudget
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.jobs.actions import Actions
from hpcdash.services.session import ClusterSession
from hpcdash.services.state.folders import journal
from hpcdash.services.submit.launches import Launches
from hpcdash.transport.base import CommandResult, Transport
from hpcdash.transport.local import LocalTransport
from hpcdash.ui.app import HpcdashApp
from hpcdash.ui.logs.pane import LogPane
from hpcdash.ui.logs.view import LogView
from tests.support.scripted_transport import PROBED, Command, ScriptedTransport
from tests.support.slurm_text import shown_job
from tests.ui.stage import CASES, PROBE, has_messages, screen_text, settled, until

RUNNING, PENDING = "74", "57"
_ROWS = (CASES / "everyday" / "jobs-mine.out").read_bytes()


# What of Slurm does not answer. A real sinfo without a configuration takes a second to say so.
_AWAY = ("sinfo", "sacct", "sacctmgr", "sprio", "sstat")
_UNREACHED = (
    1,
    b"",
    b"slurm_load_partitions: Unable to contact slurm controller (connect failure)\n",
)


def of_files(words: tuple[str, ...]) -> bool:
    """Whether a command looks at files: it is none of Slurm's, nor the question whether it is
    there.
    """
    return words[0] not in ("squeue", "scontrol", *_AWAY) and words != without_env(
        BACKEND.probe.query().argv
    )


def log_transport(
    stdout: Path, stderr: Path, *, shown_folder: Path | None = None
) -> ScriptedTransport:
    """This machine, where Slurm answers as recorded; its jobs write to `stdout` and `stderr`.

    `shown_folder` is where the files seem to be, wherever the test has them.
    """
    shown = shown_folder or stdout.parent

    async def look(command: Command) -> CommandResult:
        there = tuple(word.replace(str(shown), str(stdout.parent)) for word in command.argv)
        return await replace(command, argv=there).run_here()

    transport = ScriptedTransport(behind=LocalTransport())
    transport.answers = {
        PROBED: PROBE,
        "squeue": _ROWS,
        "scontrol": lambda command: shown_job(
            command.words[-1], StdErr=shown / stderr.name, StdOut=shown / stdout.name
        ),
        of_files: look,
        **dict.fromkeys(_AWAY, _UNREACHED),
    }
    return transport


def set_state(transport: Transport, state: bytes) -> ScriptedTransport:
    """Job 74 is in this state from now on."""
    assert isinstance(transport, ScriptedTransport)
    rows = transport.answers["squeue"]
    assert isinstance(rows, bytes)
    pattern = rb"^(74\x1f[^\n]*?\x1f)(?:RUNNING|PENDING)(\x1f)"
    transport.answers["squeue"] = re.sub(
        pattern, rb"\g<1>" + state + rb"\2", rows, flags=re.MULTILINE
    )
    return transport


def log_session(transport: ScriptedTransport, clock: Clock | None = None) -> ClusterSession:
    store = ClusterStore(
        "lab",
        transport,
        (BACKEND,),
        clock=clock or SystemClock(),
        budget=CommandBudget(600),
        user="maya",
    )
    poller = Poller(store, cluster_pace(ClusterSettings("lab", "lab")), monotonic=lambda: 0.0)
    return ClusterSession(store, poller, Actions(store, journal()), Launches(store), "")


def log_dashboard(
    folder: Path,
    *,
    both_in_one: bool = False,
    clock: Clock | None = None,
    shown_folder: Path | None = None,
    **arguments: Any,
) -> HpcdashApp:
    """A dashboard whose jobs write to job.out and job.err of a folder, which seems to be
    `shown_folder`.
    """
    stdout = folder / "job.out"
    stderr = stdout if both_in_one else folder / "job.err"
    transport = log_transport(stdout, stderr, shown_folder=shown_folder)
    return HpcdashApp([log_session(transport, clock)], **arguments)


async def open_log(pilot: Pilot[Any], job_id: str = RUNNING, stream: str = "stdout") -> None:
    """To a job's log, once something of it is on the screen."""
    await settled(pilot)
    await _app(pilot).main.push("log", job_id=job_id, stream=stream)
    await until(pilot, lambda: pane_of(pilot) is not None, "opened")

    def is_read() -> bool:
        """Between the check of a file and its first rows other tasks run."""
        window = pane_of(pilot).window
        has_rows = window.is_open or not window.stat.is_there or bool(window.stat.problem)
        return window.checked_at is not None and has_rows

    await until(pilot, is_read, "read")
    await until(pilot, lambda: not has_messages(pilot.app), "ready for keys")


def _app(pilot: Pilot[Any]) -> HpcdashApp:
    app = pilot.app
    assert isinstance(app, HpcdashApp)
    return app


def current_view(pilot: Pilot[Any]) -> LogView:
    view = _app(pilot).main.view
    assert isinstance(view, LogView)
    return view


def pane_of(pilot: Pilot[Any]) -> LogPane:
    return current_view(pilot).pane  # type: ignore[return-value]


async def shows(pilot: Pilot[Any], text: str) -> None:
    """Wait until a text is on the screen."""
    await until(pilot, lambda: text in screen_text(pilot.app), f"{text!r} is shown")


async def shows_no_more(pilot: Pilot[Any], text: str) -> None:
    await until(pilot, lambda: text not in screen_text(pilot.app), f"{text!r} is gone")
