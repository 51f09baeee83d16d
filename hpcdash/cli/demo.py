"""`hpcdash demo`: the dashboard on a temporary embedded queue that runs sample jobs."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from hpcdash.assembly import build_queue_session
from hpcdash.cli.dashboard import leave_app, require_terminal, show_app, watched
from hpcdash.cli.ending import EndedBySignal, leave_terminal
from hpcdash.cli.options import CommonOptions
from hpcdash.config.read import load_settings, settings_from_text
from hpcdash.embedded.demo.jobs import FOLDER_PREFIX, READY
from hpcdash.errors import HpcdashError
from hpcdash.services.session import ClusterSession
from hpcdash.ui.actions import ACTION_NAMES, key_problems
from hpcdash.ui.prompter import UiPrompter

_END_SECONDS = 20.0
# Settings of the demonstration's watchdogs: one of its jobs hangs, a training has a spike, another
# is too long.
WATCHED = """
[watch]
every_seconds = 60
[[watch.hanging]]
name = "allreduce-bench"
limit_seconds = 20
[[watch.losses]]
[[watch.chains]]
name = "train-7b"
[[watch.saves]]
name = "train-7b"
interval_seconds = "10m"
save_seconds = 40
[watch.failures]
"""


def run_demo(common: CommonOptions) -> None:
    """Fill a queue, show it, and remove it."""
    settings = load_settings(common.config, action_names=ACTION_NAMES, check=key_problems)
    require_terminal()
    with demonstration() as folder:
        leave_app(
            asyncio.run(show_app(common, settings, [demo_session(folder)], UiPrompter(), tour=True))
        )


def demo_session(folder: Path) -> ClusterSession:
    """Build the session of the demonstration's queue, with watchdogs that store state in it."""
    session = build_queue_session(folder / "queue", name="demo", state_folder=folder)
    return watched(session, settings_from_text(WATCHED, folder / "demo").watch, folder)


@contextmanager
def demonstration() -> Iterator[Path]:
    """Fill a queue in a temporary folder, which is removed even if this program is killed."""
    folder, lock = _locked_folder()
    undertaker = subprocess.Popen(
        [sys.executable, "-P", "-m", "hpcdash.embedded.demo", str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        pass_fds=(lock,),
        start_new_session=True,
    )
    os.close(lock)
    assert undertaker.stdin is not None
    assert undertaker.stdout is not None
    try:
        # Closing the terminal ends this program as ctrl+q does.
        signal.signal(signal.SIGHUP, _end)
        signal.signal(signal.SIGTERM, _end)
        # Load the slowest modules while the queue is filled.
        import hpcdash.ui.app  # noqa: F401

        message = undertaker.stdout.readline().decode("utf-8", "replace").strip()
        if message != READY:
            raise HpcdashError(message or "the demo's queue did not start")
        yield folder
    finally:
        undertaker.stdin.close()
        undertaker.stdout.close()
        undertaker.wait(_END_SECONDS)


def _locked_folder() -> tuple[Path, int]:
    """Create a fresh folder and its lock; a folder without a held lock is no longer in use."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX))
        lock = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # Another demonstration came before the lock, and removes the folder.
            os.close(lock)
        except OSError:
            # A file system without locks: abandoned folders are not removed there.
            return folder, lock
        else:
            return folder, lock


def _end(number: int, frame: FrameType | None) -> None:
    if number == signal.SIGHUP:
        leave_terminal()
    raise EndedBySignal(number)
