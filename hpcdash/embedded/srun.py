"""`srun` for jobs of the embedded queue: runs the command once per task, each with its rank."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import NoReturn

from hpcdash.backends.slurm import options as sbatch
from hpcdash.embedded import processes

# Options that only srun has: with a value as the next word, and without one.
_WITH_VALUE = frozenset(
    [
        "mpi",
        "epilog",
        "prolog",
        "task-epilog",
        "task-prolog",
        "multi-prog-file",
        "het-group",
        "jobid",
    ]
)
_FLAGS = frozenset(
    [
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
    ]
)


def read(parts: Sequence[str]) -> tuple[int | None, int | None, list[str]]:
    """Return (tasks, CPUs per task, command) of srun's arguments.

    Other options do not apply to one machine.
    """
    tasks = None
    cpus = None
    remaining = list(parts)
    while remaining and remaining[0].startswith("-") and remaining[0] not in ("-", "--"):
        word = remaining[0]
        name, has_value, _ = word.lstrip("-").partition("=")
        count = 1
        if name not in _FLAGS:
            option = next(iter(sbatch.read_command_line(remaining).options), None)
            if word.startswith("--") and name in _WITH_VALUE:
                count = 1 if has_value else 2
            elif option and option.arguments == tuple(remaining[: len(option.arguments)]):
                count = len(option.arguments)
                value = option.value or ""
                if option.name == "ntasks" and value.isdigit():
                    tasks = int(value)
                elif option.name == "cpus-per-task" and value.isdigit():
                    cpus = int(value)
        del remaining[:count]
    if remaining[:1] == ["--"]:
        del remaining[0]
    return tasks, cpus, remaining


def main() -> NoReturn:
    """Exit with the tasks' highest status, or that of the first failure if it ends all."""
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
        # Signals of the job are for the tasks: a handler here is reset in them.
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGCONT):
            signal.signal(number, lambda *_: None)
        running = [
            subprocess.Popen(
                command, env={**environment, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)}
            )
            for rank in range(count)
        ]
    except OSError as error:
        sys.exit(f"srun: error: {command[0]}: {error.strerror}")
    ends_all = os.environ.get("SLURM_KILL_BAD_EXIT") not in (None, "", "0")
    ends_all |= any(word.startswith(("-K", "--kill-on-bad-exit")) for word in sys.argv)
    ends_all &= "--kill-on-bad-exit=0" not in sys.argv
    sys.exit(_wait({process.pid for process in running}, ends_all=ends_all))


def _wait(running: set[int], *, ends_all: bool) -> int:
    """Return the highest status, or with `ends_all` the first failure, which ends the rest."""
    highest = 0
    while running:
        pid, status = os.wait()
        if pid not in running:
            continue
        running.remove(pid)
        code = os.waitstatus_to_exitcode(status)
        if code < 0:
            code = 128 - code
        if not (highest and ends_all):
            highest = max(highest, code)
        if code and ends_all:
            for other in running:
                processes.send([other, *processes.descendants(other)], signal.SIGTERM)
    return highest
