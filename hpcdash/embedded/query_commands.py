"""The commands that query jobs, history, nodes and queues, and a job's facts, usage and script."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hpcdash import __version__
from hpcdash.domain.array_tasks import parse_tasks
from hpcdash.domain.units import format_clock
from hpcdash.embedded import machine as machines
from hpcdash.embedded import processes
from hpcdash.embedded.environment import QUEUE
from hpcdash.embedded.job import ACTIVE, IS_ACTIVE, Job
from hpcdash.embedded.machine import Machine, boot_id, this_machine, user_name
from hpcdash.embedded.record import Record, records
from hpcdash.embedded.scheduling import is_too_large
from hpcdash.embedded.start import ensure_supervisor, supervisor_pid
from hpcdash.embedded.store import (
    MET,
    NOT_YET,
    QueueStore,
    StoredSubmission,
    output_paths,
    readable,
)
from hpcdash.errors import HpcdashError, UsageError

# As long as a scheduler lists finished jobs.
_RECENT_SECONDS = 300.0
_MAX_NAMED = 5


def find_jobs(store: QueueStore, text: str) -> list[Job]:
    """Return the jobs of an ID, in order; raises UsageError for an invalid ID."""
    match = re.fullmatch(r"([0-9]{1,15})(?:_(.+))?", text)
    if match is None:
        raise UsageError(f"{text!r} is not a job: use 17, 17_3 or 17_[3-5]")
    number = int(match[1])
    tasks = match[2]
    if tasks is None:
        found = store.find(number)
        # A task's own number means that task.
        return [job for job in found if number in (job.number, job.id)]
    try:
        return store.find(number, parse_tasks(tasks))
    except ValueError as error:
        raise UsageError(f"{text!r}: {error}") from error


def job_columns(
    store: QueueStore, jobs: Sequence[Job], *, machine: Machine, user: str, now: float
) -> dict[str, list[Any]]:
    """Return the columns of the jobs' schema; times are epoch seconds, unknown values are null."""
    submissions = store.submissions(job.number for job in jobs)
    reasons = _Reasons(store, machine, now)
    boot = boot_id()
    columns: dict[str, list[Any]] = {}
    for job in jobs:
        submission = submissions[job.number]
        row = _row(job, submission, reasons.of(job, submission), machine.node, user, boot)
        for name, value in row.items():
            columns.setdefault(name, []).append(value)
    return columns


def _row(
    job: Job, submission: StoredSubmission, reason: str | None, node: str, user: str, boot: str
) -> dict[str, Any]:
    request = submission.request
    is_active = job.state in ACTIVE
    is_pending = job.state == "pending"
    has_ended = job.ended_at is not None
    stdout, stderr = output_paths(job, submission, node, user)
    elapsed = job.elapsed
    if elapsed is None and is_pending:
        elapsed = 0.0
    elif elapsed is None and is_active and job.started_clock is not None and job.boot == boot:
        elapsed = max(0.0, time.monotonic() - job.started_clock)
    ends_at = job.ended_at
    if is_active and job.limit_seconds is not None and job.started_at is not None:
        ends_at = job.started_at + job.limit_seconds
    return {
        "id": job.shown_id,
        "array_id": None if job.task is None else str(job.number),
        "array_task": None if job.task is None else str(job.task),
        "name": readable(submission.name),
        "user": user,
        "account": readable(request.account) or None,
        "queue": QUEUE,
        "qos": None,
        "state": "held" if is_pending and job.held else job.state,
        "native_state": job.state.upper(),
        "reason": readable(job.reason) if job.reason else reason,
        # The queue is first come, first served.
        "priority": None,
        "nodes": 1,
        "cpus": job.cpus,
        "gpus": job.gpus,
        "memory_bytes": request.memory_bytes,
        "elapsed_seconds": None if elapsed is None else int(elapsed),
        "limit_seconds": job.limit_seconds,
        "submitted_at": int(submission.submitted_at),
        "eligible_at": int(max(submission.submitted_at, job.begin_at or 0)),
        "started_at": None if job.started_at is None else int(job.started_at),
        "ends_at": None if ends_at is None else int(ends_at),
        "node_list": node if job.started_at is not None else None,
        "work_dir": readable(submission.work_dir),
        "stdout_path": readable(stdout),
        "stderr_path": readable(stderr or stdout),
        "dependency": _dependency(submission) if is_pending and job.ready != MET else None,
        "comment": readable(request.comment) or None,
        "exit_code": job.exit_code if has_ended else None,
        "exit_signal": job.exit_signal if has_ended else None,
        "cpu_seconds_used": job.cpu_seconds if has_ended else None,
        "memory_peak_bytes": (job.peak_bytes or None) if has_ended else None,
        "run": max(1, job.attempt),
    }


def _dependency(submission: StoredSubmission) -> str:
    request = submission.request
    return ("?" if request.any_dependency else ",").join(map(str, request.dependencies))


class _Reasons:
    """Reasons why jobs wait or failed, by Slurm's names; counts each array's tasks once."""

    def __init__(self, store: QueueStore, machine: Machine, now: float) -> None:
        self._store = store
        self._machine = machine
        self._now = now
        self._active: dict[int, int] = {}
        self._next: int | None = None

    def of(self, job: Job, submission: StoredSubmission) -> str | None:
        if job.state == "timeout":
            return "TimeLimit"
        if job.state == "failed" and job.exit_code:
            return "NonZeroExitCode"
        if job.state != "pending":
            return None
        if job.held:
            return "JobHeldUser"
        if job.ready != MET:
            return "Dependency" if job.ready == NOT_YET else "DependencyNeverSatisfied"
        if job.begin_at is not None and job.begin_at > self._now:
            return "BeginTime"
        if is_too_large(job, self._machine):
            return "more than this machine has"
        if self._is_throttled(job.number, submission.throttle):
            return "JobArrayTaskLimit"
        if self._next is None:
            self._next = self._next_in_line()
        return "Resources" if job.number == self._next else "Priority"

    def _is_throttled(self, number: int, throttle: int | None) -> bool:
        """Whether an array has as many active tasks as its throttle permits."""
        if not throttle:
            return False
        if number not in self._active:
            self._active[number] = self._store.active_tasks(number)
        return self._active[number] >= throttle

    def _next_in_line(self) -> int:
        """Return the first submission that waits only for CPUs and GPUs; 0 for none."""
        number = self._store.next_waiting_number(0, self._now)
        while number is not None:
            first = self._store.waiting_jobs(number, self._now, 1)
            is_throttled = self._is_throttled(number, self._store.throttle(number))
            if first and not is_throttled and not is_too_large(first[0], self._machine):
                return number
            number = self._store.next_waiting_number(number, self._now)
        return 0


def native(job: Job, submission: StoredSubmission, machine: Machine, user: str) -> dict[str, str]:
    """Return all known facts of a job, as text."""
    request = submission.request
    stdout, stderr = output_paths(job, submission, machine.node, user)
    early_signal = None
    if signal := request.early_signal:
        early_signal = f"{'B:' if signal.to_batch else ''}{signal.number}@{signal.seconds}"
    known: dict[str, object] = {
        "JobId": job.id,
        "ArrayJobId": None if job.task is None else job.number,
        "ArrayTaskId": job.task,
        "JobName": submission.name,
        "JobState": job.state.upper(),
        "Reason": job.reason,
        "Held": "yes" if job.held else None,
        "Dependency": _dependency(submission),
        "Restarts": job.restarts,
        "Requeue": None if request.requeue else "no",
        "TimeLimit": "UNLIMITED" if job.limit_seconds is None else format_clock(job.limit_seconds),
        "EarlySignal": early_signal,
        "NumCPUs": job.cpus,
        "NumTasks": request.processes,
        "Gpus": job.gpus or None,
        "GpuIds": job.gpu_ids,
        "ArrayTaskThrottle": submission.throttle,
        "WorkDir": submission.work_dir,
        "StdIn": request.stdin,
        "StdOut": stdout,
        "StdErr": stderr or stdout,
        "Command": submission.command,
        "Comment": request.comment,
        "CpuSeconds": None if job.cpu_seconds is None else f"{job.cpu_seconds:.2f}",
        "PeakMemoryBytes": job.peak_bytes,
        "Ignored": "; ".join(submission.ignored),
    }
    return {name: readable(str(value)) for name, value in known.items() if value not in (None, "")}


def node_columns(store: QueueStore, machine: Machine) -> dict[str, list[Any]]:
    """Return the columns of the nodes' schema, with this machine."""
    active = store.active_jobs()
    cpus_used = sum(job.cpus for job in active)
    state = "idle"
    if active:
        state = "allocated" if cpus_used >= machine.cpus else "mixed"
    load = None
    with suppress(OSError):
        load = os.getloadavg()[0]
    return {
        "name": [machine.node],
        "state": [state],
        "native_state": [state.upper()],
        "flags": [[]],
        "reason": [None],
        "reason_by": [None],
        "reason_since": [None],
        "queues": [[QUEUE]],
        "cpus": [machine.cpus],
        "cpus_used": [cpus_used],
        "gpus": [len(machine.gpu_ids)],
        "gpus_used": [sum(job.gpus for job in active)],
        "gpu_type": [machine.gpu_type or None],
        "memory_bytes": [machine.memory_bytes],
        "memory_used_bytes": [machines.memory_used_bytes()],
        "load": [load],
        "features": [[]],
        "jobs": [len(active)],
    }


def queue_columns(store: QueueStore, machine: Machine) -> dict[str, list[Any]]:
    """Return the columns of the queues' schema, with the only queue."""
    active = store.active_jobs()
    return {
        "name": [QUEUE],
        "available": [True],
        "default": [True],
        "limit_seconds": [None],
        "nodes": [1],
        "nodes_idle": [0 if active else 1],
        "nodes_down": [0],
        "cpus": [machine.cpus],
        "cpus_used": [sum(job.cpus for job in active)],
        "gpus": [len(machine.gpu_ids)],
        "gpus_used": [sum(job.gpus for job in active)],
        "jobs_running": [len(active)],
        "jobs_pending": [store.pending_count()],
        "_standing": [None],
        "_note": [None],
        "_opens_at": [None],
        "_server_note": [None],
    }


def write(answer: object) -> None:
    """Write a line of JSON."""
    sys.stdout.write(json.dumps(answer, separators=(",", ":")) + "\n")


def _probe(folder: Path, parts: list[str]) -> int:
    _opened(folder)
    write(
        {
            "user": user_name(),
            "version": f"hpcdash {__version__}",
            "node": this_machine(folder).node,
            "now": time.time(),
            "folder": readable(str(folder)),
            "supervisor": supervisor_pid(folder),
        }
    )
    return 0


def _opened(folder: Path) -> QueueStore:
    """Open the store, and start the supervisor if it is needed, as after a reboot."""
    store = QueueStore(folder)
    if (store.has_work() or records(folder)) and supervisor_pid(folder) is None:
        ensure_supervisor(folder)
    return store


def _write_jobs(store: QueueStore, jobs: Iterable[Job]) -> None:
    now = time.time()
    columns = job_columns(
        store, list(jobs), machine=this_machine(store.folder), user=user_name(), now=now
    )
    write({"now": now, "columns": columns})


def _named(store: QueueStore, ids: list[str]) -> list[Job]:
    found = {job.id: job for text in ids for job in find_jobs(store, text)}
    if not found:
        named = ", ".join(ids[:_MAX_NAMED])
        raise HpcdashError(
            f"no such job in this queue: {named}", "`hpcdash jobs` and `hpcdash history` list them."
        )
    return list(found.values())


def _jobs(folder: Path, parts: list[str]) -> int:
    """Run `jobs [--ended[=SECONDS]] [ID…]`: unfinished jobs, with --ended or IDs also others."""
    store = _opened(folder)
    ended = [word for word in parts if word == "--ended" or word.startswith("--ended=")]
    if ids := [word for word in parts if word not in ended]:
        _write_jobs(store, _named(store, ids))
        return 0
    jobs = store.jobs(f"state = 'pending' OR {IS_ACTIVE}", ACTIVE)
    if ended:
        try:
            seconds = float(ended[-1].partition("=")[2] or _RECENT_SECONDS)
        except ValueError:
            raise UsageError("--ended= needs a number of seconds") from None
        jobs += store.jobs("ended_at >= ?", (time.time() - seconds,))
    _write_jobs(store, jobs)
    return 0


def _history(folder: Path, parts: list[str]) -> int:
    """Run `history --since SECONDS` or `history ID…`."""
    store = _opened(folder)
    if parts[:1] != ["--since"]:
        _write_jobs(store, _named(store, parts))
        return 0
    try:
        since = time.time() - float(parts[1])
    except (IndexError, ValueError):
        raise UsageError("--since needs a number of seconds") from None
    _write_jobs(store, store.jobs("ended_at >= ?", (since,), order="ended_at DESC, id DESC"))
    return 0


def _nodes(folder: Path, parts: list[str]) -> int:
    write({"now": time.time(), "columns": node_columns(_opened(folder), this_machine(folder))})
    return 0


def _queues(folder: Path, parts: list[str]) -> int:
    write({"now": time.time(), "columns": queue_columns(_opened(folder), this_machine(folder))})
    return 0


def _show(folder: Path, parts: list[str]) -> int:
    store = _opened(folder)
    job = _named(store, parts)[0]
    write(native(job, store.submission(job.number), this_machine(folder), user_name()))
    return 0


def _usage(folder: Path, parts: list[str]) -> int:
    """Print the usage of a running or finished job."""
    job = _named(_opened(folder), parts)[0]
    cpu_seconds = job.cpu_seconds
    peak_bytes = job.peak_bytes
    if job.state in ACTIVE:
        begun, _ = Record(folder, job.id, job.attempt).read()
        if begun is not None:
            cpu_seconds, peak_bytes = processes.usage(processes.descendants(begun.keeper))
    write({"cpu_seconds": cpu_seconds, "memory_peak_bytes": peak_bytes})
    return 0


def _script(folder: Path, parts: list[str]) -> int:
    store = _opened(folder)
    sys.stdout.buffer.write(store.script(_named(store, parts)[0].number))
    return 0


def _find(folder: Path, parts: list[str]) -> int:
    """Run `find TOKEN`: print the number of the submission with a token."""
    if len(parts) != 1:
        raise UsageError("find needs one token")
    number = _opened(folder).token_number(parts[0])
    write({"id": None if number is None else str(number)})
    return 0


COMMANDS = {
    "probe": _probe,
    "jobs": _jobs,
    "history": _history,
    "nodes": _nodes,
    "queues": _queues,
    "show": _show,
    "usage": _usage,
    "script": _script,
    "find": _find,
}
