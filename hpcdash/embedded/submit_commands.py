"""The commands that submit scripts, with sbatch's own options; the supervisor starts the jobs."""

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
from hpcdash.embedded.store import QueueStore, readable
from hpcdash.errors import HpcdashError, UsageError

_MAX_SCRIPT_BYTES = 4 << 20
_STDIN = ("-", "/dev/stdin")


def _submit(folder: Path, parts: list[str]) -> int:
    """Run `submit [--token TOKEN] [--named NAME] OPTION… [SCRIPT [ARGUMENT…]]`.

    Without a script, or with -, the script is stdin, and NAME is the job's default name.
    """
    umask = os.umask(0o077)
    token, parts = _split_option(parts, "--token")
    stdin_name, parts = _split_option(parts, "--named")
    line = sbatch.read_command_line(parts)
    refuse_problems(line)
    wrapped = last_value(line.options, "wrap")
    file = line.script[0] if line.script and line.script[0] not in _STDIN else None
    if wrapped is not None and line.script:
        raise UsageError("--wrap replaces the script: use only one of them")
    if wrapped is not None:
        script = f"#!/bin/sh\n{wrapped}\n".encode("utf-8", "surrogateescape")
        command = "(wrap)"
        default_name = "wrap"
    elif file is None:
        script = _read_script(sys.stdin.fileno(), "stdin")
        command = "(stdin)"
        default_name = stdin_name or "sbatch"
    else:
        script = _read_script(file, file)
        command = os.path.abspath(file)
        default_name = Path(file).name
    now = time.time()
    options = [option for option in line.options if option.name != "wrap"]
    parsed = read_submission(script.decode("utf-8", "surrogateescape"), options, now)
    try:
        submit_dir = os.getcwd()
    except FileNotFoundError:
        raise UsageError(
            "the current folder no longer exists", "Change to another folder."
        ) from None
    work_dir = os.path.join(submit_dir, os.path.expanduser(parsed.request.work_dir))
    request = replace(
        parsed.request,
        name=parsed.request.name or default_name,
        work_dir=os.path.abspath(work_dir),
        # Recovery finds the job by its token, which the list of jobs shows as the comment.
        comment=parsed.request.comment or token or "",
    )
    _require_fit(request, this_machine(folder))
    store = QueueStore(folder)
    number = store.submit(
        request,
        script=script,
        arguments=line.script[1:],
        environment=dict(os.environ),
        command=command,
        submit_dir=submit_dir,
        umask=umask,
        ignored=parsed.ignored,
        now=now,
        token=token,
    )
    return _print_number(store, number, parsed.ignored)


def _print_number(store: QueueStore, number: int, ignored: Sequence[str]) -> int:
    """Print the number of the stored submission, and wake the supervisor."""
    store.close()
    write({"id": str(number), "ignored": [readable(text) for text in ignored]})
    sys.stdout.flush()
    try:
        ensure_supervisor(store.folder)
    except OSError as error:
        print(f"queued, but cannot start yet: {error.strerror}", file=sys.stderr)
    return 0


def _split_option(parts: list[str], name: str) -> tuple[str | None, list[str]]:
    """Return the value of our own option at the front, and the arguments after it."""
    if parts[:1] != [name]:
        return None, parts
    if len(parts) < 2:
        raise UsageError(f"{name} needs a value")
    return parts[1], parts[2:]


def _again(folder: Path, parts: list[str]) -> int:
    """Run `again [--token TOKEN] [--time TIME] ID`: resubmit a job, or some tasks of an array.

    Everything but the time limit is as before, without dependencies, start time and hold.
    """
    token, parts = _split_option(parts, "--token")
    limit, parts = _split_option(parts, "--time")
    store = QueueStore(folder)
    jobs = [job for text in parts for job in find_jobs(store, text)]
    if not jobs:
        raise HpcdashError("no such job in this queue")
    submission = store.submission(jobs[0].number)
    request = replace(submission.request, dependencies=(), begin_at=None, held=False)
    if request.tasks:
        tasks = ArrayTasks(
            tuple(range(job.task, job.task + 1) for job in jobs if job.task is not None)
        )
        throttle = f"%{submission.throttle}" if submission.throttle else ""
        request = replace(request, tasks=f"{tasks}{throttle}")
    if limit is not None:
        try:
            seconds = parse_duration(limit, bare_unit_seconds=60)
        except ValueError as error:
            raise UsageError(str(error)) from None
        request = replace(request, limit_seconds=seconds)
    # A comment that is a token belongs to that submission.
    if request.comment == (store.find_token(submission.number) or ""):
        request = replace(request, comment=token or "")
    number = store.submit(
        request,
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
    return _print_number(store, number, ())


def _read_script(file: str | int, name: str) -> bytes:
    try:
        with open(file, "rb") as stream:
            script = stream.read(_MAX_SCRIPT_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{name}: {error.strerror}") from error
    if len(script) > _MAX_SCRIPT_BYTES:
        raise UsageError(
            f"{name} is more than {_MAX_SCRIPT_BYTES >> 20} MiB: is it a batch script?"
        )
    return script


def _require_fit(request: QueueRequest, machine: Machine) -> None:
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
