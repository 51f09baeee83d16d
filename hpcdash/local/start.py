"""Starts the queue's supervisor as a program of its own, where none runs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from hpcdash.local import processes
from hpcdash.local.wake import wake


def ensure_supervisor(folder: Path) -> None:
    """Wake the supervisor, or start one that outlives this program and its terminal; `folder` is absolute."""
    if wake(folder):
        return
    child = os.fork()
    if child != 0:
        os.waitpid(child, 0)
        return
    # A program of its own: SQLite's state must not come along into a fork.
    try:
        os.setsid()
        if os.fork() != 0:
            os._exit(0)
        os.chdir("/")
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(nowhere, descriptor)
        processes.close_from(3, [])
        processes.default_signals()
        # The package may not be installed: it is found where this one is. A job that calls this is not its parent.
        found_in = str(Path(__file__).resolve().parent.parent.parent)
        environment = {name: value for name, value in os.environ.items() if name != processes.MARK}
        environment |= {"PYTHONPATH": found_in, processes.APART: str(folder)}
        argv = [sys.executable, "-P", "-m", "hpcdash.local", str(folder), "supervise"]
        os.execve(sys.executable, argv, environment)
    finally:
        os._exit(1)
