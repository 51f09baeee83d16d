"""The commands that ask: jobs, history, nodes, queues, one job's words, usage and script. They change no job."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from hpcdash import __version__
from hpcdash.errors import HpcdashError, UsageError
from hpcdash.local import processes, rows
from hpcdash.local.finding import find_jobs
from hpcdash.local.job import ACTIVE, IS_ACTIVE, Job
from hpcdash.local.machine import this_machine, user_name
from hpcdash.local.record import Record, records
from hpcdash.local.start import ensure_supervisor
from hpcdash.local.store import QueueStore, readable
from hpcdash.local.wake import supervisor_pid

# As long as a scheduler keeps what ended in its own list.
_RECENT_SECONDS = 300.0
_MOST_NAMED = 5


def write(answer: object) -> None:
    """One line of JSON."""
    sys.stdout.write(json.dumps(answer, separators=(",", ":")) + "\n")


def _probe(folder: Path, words: list[str]) -> int:
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
    """After a reboot nobody is there to go on, or to tidy up: whoever looks starts the supervisor again."""
    store = QueueStore(folder)
    if (store.has_work() or records(folder)) and supervisor_pid(folder) is None:
        ensure_supervisor(folder)
    return store


def _write_jobs(store: QueueStore, jobs: Iterable[Job]) -> None:
    now = time.time()
    columns = rows.job_columns(store, list(jobs), machine=this_machine(store.folder), user=user_name(), now=now)
    write({"now": now, "columns": columns})


def _named(store: QueueStore, ids: list[str]) -> list[Job]:
    found = {job.id: job for text in ids for job in find_jobs(store, text)}
    if not found:
        named = ", ".join(ids[:_MOST_NAMED])
        raise HpcdashError(f"no such job in this queue: {named}", "`hpcdash jobs` and `hpcdash history` list them.")
    return list(found.values())


def _jobs(folder: Path, words: list[str]) -> int:
    """[--ended[=SECONDS]] [ID…]: what waits and runs; with --ended or by id also what ended."""
    store = _opened(folder)
    ended = [word for word in words if word == "--ended" or word.startswith("--ended=")]
    if ids := [word for word in words if word not in ended]:
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


def _history(folder: Path, words: list[str]) -> int:
    """--since SECONDS, or ID…"""
    store = _opened(folder)
    if words[:1] != ["--since"]:
        _write_jobs(store, _named(store, words))
        return 0
    try:
        since = time.time() - float(words[1])
    except (IndexError, ValueError):
        raise UsageError("--since needs a number of seconds") from None
    _write_jobs(store, store.jobs("ended_at >= ?", (since,), order="ended_at DESC, id DESC"))
    return 0


def _nodes(folder: Path, words: list[str]) -> int:
    write({"now": time.time(), "columns": rows.node_columns(_opened(folder), this_machine(folder))})
    return 0


def _queues(folder: Path, words: list[str]) -> int:
    write({"now": time.time(), "columns": rows.queue_columns(_opened(folder), this_machine(folder))})
    return 0


def _show(folder: Path, words: list[str]) -> int:
    store = _opened(folder)
    job = _named(store, words)[0]
    write(rows.native(job, store.submission(job.number), this_machine(folder), user_name()))
    return 0


def _usage(folder: Path, words: list[str]) -> int:
    """What one job uses or used."""
    job = _named(_opened(folder), words)[0]
    cpu_seconds, peak_bytes = job.cpu_seconds, job.peak_bytes
    if job.state in ACTIVE:
        begun, _ = Record(folder, job.id, job.attempt).read()
        if begun is not None:
            cpu_seconds, peak_bytes = processes.usage(processes.descendants(begun.keeper))
    write({"cpu_seconds": cpu_seconds, "memory_peak_bytes": peak_bytes})
    return 0


def _script(folder: Path, words: list[str]) -> int:
    store = _opened(folder)
    sys.stdout.buffer.write(store.script(_named(store, words)[0].number))
    return 0


def _find(folder: Path, words: list[str]) -> int:
    """TOKEN: the number of the submission that carries it."""
    if len(words) != 1:
        raise UsageError("find needs one token")
    number = _opened(folder).number_of(words[0])
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
