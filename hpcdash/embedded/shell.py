"""The command that runs a person's shell in a running job's environment, until the job ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from hpcdash.embedded.environment import job_environment
from hpcdash.embedded.machine import this_machine, user_name
from hpcdash.embedded.processes import default_signals
from hpcdash.embedded.query_commands import find_jobs
from hpcdash.embedded.record import Record
from hpcdash.embedded.store import QueueStore
from hpcdash.errors import UsageError

# Delay between the end of the job and that of the shell.
_POLL_SECONDS = 0.5


def _shell(folder: Path, parts: list[str]) -> int:
    """Run `shell ID COMMAND…` on this terminal; return the command's status."""
    if len(parts) < 2:
        raise UsageError("shell needs a job and a command")
    store = QueueStore(folder)
    jobs = find_jobs(store, parts[0])
    if len(jobs) != 1:
        raise UsageError(f"{parts[0]} is not a running job")
    job = jobs[0]
    record = Record(folder, job.id, job.attempt)
    if not record.has_keeper():
        raise UsageError(f"{parts[0]} is not a running job")
    environment = job_environment(
        job,
        store.submission(job.number),
        this_machine(folder),
        inherited=store.environment(job.number),
        user=user_name(),
        uid=os.getuid(),
        gid=os.getgid(),
        folder=folder,
        path_first=str(folder / "bin"),
    )
    # Variables of the person's terminal.
    for name in ("TERM", "COLORTERM", "LANG", "SHELL"):
        if name in os.environ:
            environment[name] = os.environ[name]
    store.close()
    # The terminal's keys are for the command.
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP):
        signal.signal(number, signal.SIG_IGN)
    child = subprocess.Popen(parts[1:], env=environment, preexec_fn=default_signals)
    threading.Thread(target=_end_with, args=(record, child), daemon=True).start()
    status = child.wait()
    return status if status >= 0 else 128 - status


def _end_with(record: Record, child: subprocess.Popen[bytes]) -> None:
    """End the command once the job's keeper no longer exists."""
    while record.has_keeper():
        time.sleep(_POLL_SECONDS)
    print("\r\nhpcdash: the job has ended", file=sys.stderr, flush=True)
    child.send_signal(signal.SIGHUP)
    child.send_signal(signal.SIGCONT)
    time.sleep(_POLL_SECONDS)
    child.kill()


COMMANDS = {"shell": _shell}
