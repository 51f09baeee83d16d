"""The dashboard on a throw-away embedded queue where sample jobs run for real; nothing of it stays."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hpcdash.cli.build import build_queue_session, queue_program
from hpcdash.cli.dashboard import require_terminal, run_app
from hpcdash.cli.options import CommonOptions
from hpcdash.config import load_settings
from hpcdash.local.demo.jobs import Demonstration
from hpcdash.ui.actions import ACTION_NAMES
from hpcdash.ui.prompter import UiPrompter

_END_SECONDS = 20.0


def run_demo(common: CommonOptions) -> None:
    """Fill a queue, show it, and take it away again."""
    settings = load_settings(common.config, action_names=ACTION_NAMES)
    require_terminal()
    with demonstration() as folder:
        session = build_queue_session(folder / "queue", name="demo", state_folder=folder, cache_folder=None)
        run_app(common, settings, [session], UiPrompter(), tour=True)


@contextmanager
def demonstration() -> Iterator[Path]:
    """A filled queue in a folder of its own; gone afterwards, even where this program is killed."""
    folder = Path(tempfile.mkdtemp(prefix="hpcdash-demo-"))
    program = queue_program(folder / "queue")
    undertaker = subprocess.Popen(
        [sys.executable, "-P", "-m", "hpcdash.local.demo", str(folder), *program],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert undertaker.stdin is not None
    try:
        # A terminal that is closed ends this program as ctrl+q does.
        signal.signal(signal.SIGHUP, lambda number, frame: sys.exit(1))
        Demonstration(folder).begin(program)
        yield folder
    finally:
        undertaker.stdin.close()
        undertaker.wait(_END_SECONDS)
