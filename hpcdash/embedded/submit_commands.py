"""The command that hands a script in, with sbatch's own options. Starts no job itself."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hpcdash.backends.options import last_value
from hpcdash.backends.slurm import options as sbatch
from hpcdash.domain.array_tasks import ArrayTasks
from hpcdash.domain.units import parse_duration
from hpcdash.embedded.job import QueueRequest
from hpcdash.embedded.machine import Machine, this_machine
from hpcdash.embedded.query_commands import find_jobs, write
from hpcdash.embedded.script import read_submission, refuse_problems
from hpcdash.embedded.start import ensure_supervisor
from hpcdash.embedded.store import HandedIn, QueueStore, readable
from hpcdash.errors import HpcdashError, UsageError

_MAX_SCRIPT_BYTES = 4 << 20
_STDIN = ("-", "/dev/stdin")


def _submit(folder: Path, parts: list[str]) -> int:
    """[--token TOKEN] [--named NAME] sbatch's options, then a script's path and its arguments;
    without one, or with -, the script is stdin, and the job is called NAME unless it says
    otherwise.
    """
    umask = os.umask(0o077)
    token, parts = _taken(parts, "--token")
    named, parts = _taken(parts, "--named")
    line = sbatch.read_command_line(parts)
    refuse_problems(line)
    wrapped = last_value(line.options, "wrap")
    file = line.script[0] if line.script and line.script[0] not in _STDIN else None
    if wrapped is not None:
        if line.script:
            raise UsageError("--wrap replaces the script: give one of them")
        script, command = f"#!/bin/sh\n{wrapped}\n".encode("utf-8", "surrogateescape"), "(wrap)"
    else:
        script, command = _read_script(file)
    now = time.time()
    options = [option for option in line.options if option.name != "wrap"]
    reading = read_submission(script.decode("utf-8", "surrogateescape"), options, now)
    # Like sbatch: the option, the script's own line, else the file's name.
    file_name = "wrap" if wrapped is not None else Path(command).name if file else named or "sbatch"
    name = reading.request.name or file_name
    submit_dir = _current_folder()
    work_dir = os.path.abspath(
        os.path.join(submit_dir, os.path.expanduser(reading.request.work_dir))
    )
    # The list of jobs has a token as a comment, by which the job is found again.
    comment = reading.request.comment or token or ""
    request = replace(reading.request, name=name, work_dir=work_dir, comment=comment)
    _refuse_what_never_fits(request, this_machine(folder))
    store = QueueStore(folder)
    number = store.submit(
        HandedIn(
            request=request,
            script=script,
            arguments=line.script[1:],
            environment=dict(os.environ),
            command=command,
            submit_dir=submit_dir,
            umask=umask,
            ignored=reading.ignored,
            now=now,
            token=token,
        )
    )
    return _print_number(store, number, reading.ignored)


def _print_number(store: QueueStore, number: int, ignored: Sequence[str]) -> int:
    """Print the number of the stored submission, and make sure that it starts."""
    store.close()
    write({"id": str(number), "ignored": [readable(text) for text in ignored]})
    sys.stdout.flush()
    try:
        ensure_supervisor(store.folder)
    except OSError as error:
        print(f"it is queued, but cannot start yet: {error.strerror}", file=sys.stderr)
    return 0


def _taken(parts: list[str], name: str) -> tuple[str | None, list[str]]:
    """Return an option of ours at the front, and the arguments after it."""
    if parts[:1] != [name]:
        return None, parts
    if len(parts) < 2:
        raise UsageError(f"{name} needs a value")
    return parts[1], parts[2:]


def _again(folder: Path, parts: list[str]) -> int:
    """[--token TOKEN] [--time TIME] ID: a job once more, or some tasks of an array, with all it was
    handed in with, or another time limit; what it waited for then does not count.
    """
    token, parts = _taken(parts, "--token")
    limit, parts = _taken(parts, "--time")
    store = QueueStore(folder)
    jobs = [job for text in parts for job in find_jobs(store, text)]
    if not jobs:
        raise HpcdashError("no such job in this queue")
    submission = store.submission(jobs[0].number)
    request = submission.request
    tasks = ArrayTasks(tuple(range(job.task, job.task + 1) for job in jobs if job.task is not None))
    throttle = f"%{submission.throttle}" if submission.throttle else ""
    is_its_own = request.comment != (store.find_token(submission.number) or "")
    number = store.submit(
        HandedIn(
            request=replace(
                request,
                tasks=f"{tasks}{throttle}" if request.tasks else "",
                dependencies=(),
                begin_at=None,
                held=False,
                limit_seconds=request.limit_seconds if limit is None else _limit(limit),
                comment=request.comment if is_its_own else token or "",
            ),
            script=store.script(submission.number),
            arguments=submission.arguments,
            environment=store.environment(submission.number),
            command=submission.command,
            submit_dir=submission.submit_dir,
            umask=submission.umask,
            ignored=submission.ignored,
            now=time.time(),
            token=token,
        )
    )
    return _print_number(store, number, ())


def _limit(text: str) -> int | None:
    try:
        return parse_duration(text, bare_unit_seconds=60)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _current_folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise UsageError(
            "the folder this was called from no longer exists", "Go to another one."
        ) from None


def _read_script(file: str | None) -> tuple[bytes, str]:
    try:
        if file is None:
            script = sys.stdin.buffer.read(_MAX_SCRIPT_BYTES + 1)
            command = "(stdin)"
        else:
            with open(file, "rb") as stream:
                script = stream.read(_MAX_SCRIPT_BYTES + 1)
                command = os.path.abspath(file)
    except OSError as error:
        raise UsageError(f"{file or 'stdin'}: {error.strerror}") from error
    if len(script) > _MAX_SCRIPT_BYTES:
        raise UsageError(
            f"{file or 'stdin'} is more than {_MAX_SCRIPT_BYTES >> 20} MiB: is it a batch script?"
        )
    return script, command


def _refuse_what_never_fits(request: QueueRequest, machine: Machine) -> None:
    if request.cpus > machine.cpus:
        raise UsageError(
            f"the job requests {request.cpus} CPUs; this machine has {machine.cpus}",
            "Request fewer on the command line, which overrides the script: --ntasks=1 "
            "--cpus-per-task=1",
        )
    if request.gpus > len(machine.gpu_ids):
        raise UsageError(
            f"the job requests {request.gpus} GPUs; this machine has {len(machine.gpu_ids)}",
            "Request fewer on the command line, which overrides the script: --gpus=0",
        )


COMMANDS = {"submit": _submit, "again": _again}
