"""`srun` for jobs of the embedded queue: the command once a task, each with its rank."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import NoReturn

from hpcdash.backends.slurm import options as sbatch
from hpcdash.embedded import processes

# Options of srun that sbatch has not, by whether a value follows as a word of its own.
_WITH_VALUE = frozenset(
    {
        "mpi",
        "epilog",
        "prolog",
        "task-epilog",
        "task-prolog",
        "multi-prog-file",
        "het-group",
        "jobid",
    }
)
_FLAGS = frozenset(
    {
        "l",
        "label",
        "u",
        "unbuffered",
        "K",
        "kill-on-bad-exit",
        "exact",
        "overlap",
        "pty",
        "E",
        "X",
        "Z",
    }
)


def read(parts: Sequence[str]) -> tuple[int | None, int | None, list[str]]:
    """Return (tasks, CPUs a task, command) of srun's arguments.

    Others have no meaning on one machine.
    """
    tasks = cpus = None
    at = 0
    while at < len(parts):
        word = parts[at]
        name, has_value, _ = word.lstrip("-").partition("=")
        if word == "--":
            at += 1
            break
        if not word.startswith("-") or word == "-":
            break
        if name in _FLAGS:
            at += 1
            continue
        if word.startswith("--") and name in _WITH_VALUE:
            at += 1 if has_value else 2
            continue
        option = next(iter(sbatch.read_command_line(parts[at:]).options), None)
        if option is None or option.arguments != tuple(parts[at : at + len(option.arguments)]):
            at += 1
            continue
        value = option.value or ""
        if option.name == "ntasks" and value.isdigit():
            tasks = int(value)
        elif option.name == "cpus-per-task" and value.isdigit():
            cpus = int(value)
        at += len(option.arguments)
    return tasks, cpus, list(parts[at:])


def main() -> NoReturn:
    """Ends with the highest status of the tasks, or where the first that fails ends all, with that
    one's.
    """
    tasks, cpus, command = read(sys.argv[1:])
    if not command:
        sys.exit("srun: no command given to execute.")
    count = tasks or int(os.environ.get("SLURM_NTASKS", "1"))
    environment = {
        **os.environ,
        "SLURM_NTASKS": str(count),
        "SLURM_NPROCS": str(count),
        "SLURM_STEP_ID": "0",
    }
    if cpus:
        environment["SLURM_CPUS_PER_TASK"] = str(cpus)
    try:
        if count == 1:
            os.execvpe(
                command[0], command, {**environment, "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
            )
        # Signals of the job are for the tasks: what is handled here is as it was in them.
        for name in ("SIGUSR1", "SIGUSR2", "SIGHUP", "SIGCONT"):
            signal.signal(getattr(signal, name), lambda *_: None)
        running = [
            subprocess.Popen(
                command, env={**environment, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)}
            )
            for rank in range(count)
        ]
    except OSError as error:
        sys.exit(f"srun: error: {command[0]}: {error.strerror}")
    is_ended_for = "--kill-on-bad-exit=0" not in sys.argv and (
        any(word.startswith(("-K", "--kill-on-bad-exit")) for word in sys.argv)
        or os.environ.get("SLURM_KILL_BAD_EXIT") not in (None, "", "0")
    )
    sys.exit(_status(running, ends_all=is_ended_for))


def _status(running: list[subprocess.Popen[bytes]], *, ends_all: bool) -> int:
    """The highest of all, or with `ends_all` that of the first that failed, which ends the
    others.
    """
    left = {process.pid: process for process in running}
    highest = 0
    while left:
        pid, status = os.wait()
        if left.pop(pid, None) is None:
            continue
        code = os.waitstatus_to_exitcode(status)
        code = code if code >= 0 else 128 - code
        if not (highest and ends_all):
            highest = max(highest, code)
        if code and ends_all:
            processes.send(
                [pid for other in left for pid in (other, *processes.descendants(other))],
                signal.SIGTERM,
            )
    return highest
