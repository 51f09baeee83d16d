"""The command that runs a person's shell beside a running job: with its variables, in its folder,
until it ends.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from hpcdash.embedded.environment import job_environment
from hpcdash.embedded.machine import this_machine, user_name
from hpcdash.embedded.processes import default_signals
from hpcdash.embedded.query_commands import find_jobs
from hpcdash.embedded.record import Record
from hpcdash.embedded.store import QueueStore
from hpcdash.errors import UsageError

# Delay between the end of the job and that of the shell.
_LOOK_SECONDS = 0.5


def _shell(folder: Path, parts: list[str]) -> int:
    """ID COMMAND…: on this terminal; the status is the command's."""
    if len(parts) < 2:
        raise UsageError("shell needs a job and a command")
    store = QueueStore(folder)
    jobs = find_jobs(store, parts[0])
    record = Record(folder, jobs[0].id, jobs[0].attempt) if len(jobs) == 1 else None
    if record is None or not record.has_keeper():
        raise UsageError(f"{parts[0]} is not a running job")
    job = jobs[0]
    submission = store.submission(jobs[0].number)
    environment = job_environment(
        job,
        submission,
        this_machine(folder),
        inherited=store.environment(job.number),
        user=user_name(),
        uid=os.getuid(),
        gid=os.getgid(),
        folder=folder,
        path_first=str(folder / "bin"),
    )
    # The job does not know the person's terminal.
    environment |= {
        name: os.environ[name]
        for name in ("TERM", "COLORTERM", "LANG", "SHELL")
        if name in os.environ
    }
    store.close()
    # The terminal's keys are for the command.
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP):
        signal.signal(number, signal.SIG_IGN)
    child = subprocess.Popen(parts[1:], env=environment, preexec_fn=default_signals)
    threading.Thread(target=_end_with, args=(record, child), daemon=True).start()
    status = child.wait()
    return status if status >= 0 else 128 - status


def _end_with(record: Record, child: subprocess.Popen[bytes]) -> None:
    """End the command once the job's keeper is not there any more: all that the terminal is in
    front of, too.
    """
    over = threading.Event()
    while record.has_keeper():
        over.wait(_LOOK_SECONDS)
    print("\r\nhpcdash: the job has ended", file=sys.stderr, flush=True)
    child.send_signal(signal.SIGHUP)
    child.send_signal(signal.SIGCONT)
    over.wait(_LOOK_SECONDS)
    child.kill()


COMMANDS = {"shell": _shell}
