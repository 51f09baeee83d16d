"""Reads a recorded case through the backend and gives what its expected.json must hold."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pyarrow as pa

from hpcdash.backends.base import Backend, Capability
from hpcdash.backends.queries import JobScope, ParsedTable, Query
from hpcdash.backends.registry import load_backend
from hpcdash.domain import schema
from hpcdash.domain.rfc3339 import table_to_json_rows
from hpcdash.errors import HpcdashError, NotRecorded
from hpcdash.recorded import Case, load_case
from hpcdash.transport import replay
from hpcdash.transport.replay import ReplayTransport

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
HISTORY_SECONDS = 604800
T = TypeVar("T")


def parse_cases_once() -> None:
    """Have a case of fixtures/ parsed once a process, whoever replays it: most of what a test over
    all cases takes.
    """
    parsed = cache(load_case)

    def load(directory: Path) -> Case:
        return parsed(directory) if directory.is_relative_to(FIXTURES) else load_case(directory)

    replay.load_case = load


def play(transport: ReplayTransport, query: Query[T]) -> T:
    """What is read from the recorded answer to a query."""
    return query.parse(asyncio.run(transport.run(query.argv, limit_seconds=query.limit_seconds)))


def backend_of(transport: ReplayTransport) -> Backend:
    """The backend of a case as its probe tells, where this answered."""
    backend = load_backend(transport.backend)
    try:
        return backend.for_probe(play(transport, backend.probe.query()))
    except NotRecorded:
        raise
    except HpcdashError:
        return backend


# What the cases that were recorded before did not ask.
LATER = ("shares", "limits", "reservations")


def table_questions(
    backend: Backend, user: str, cluster: str = ""
) -> dict[str, tuple[pa.Schema, Callable[[], Query[ParsedTable]]]]:
    """The tables of a case, by their key in expected.json."""
    return {
        "jobs": (schema.JOBS, lambda: backend.queue.jobs(JobScope())),
        "jobs_and_ended": (schema.JOBS, lambda: backend.queue.jobs(JobScope(ended=True))),
        "jobs_mine": (schema.JOBS, lambda: backend.queue.jobs(JobScope(user))),
        "nodes": (schema.NODES, backend.queue.nodes),
        "queues": (schema.QUEUES, backend.queue.queues),
        "history": (schema.JOBS, lambda: backend.history.jobs(user, HISTORY_SECONDS)),
        "shares": (schema.SHARES, lambda: backend.policy.shares(user)),
        "limits": (schema.LIMITS, lambda: backend.policy.limits(user, cluster)),
        "reservations": (schema.RESERVATIONS, lambda: backend.policy.reservations(user)),
    }


def expected_of(directory: Path) -> dict[str, Any]:
    """The content of expected.json: `probe`, the tables as the contract's rows, `rejected` rows and
    `errors` by key.
    """
    transport = ReplayTransport(directory)
    backend = backend_of(transport)
    found: dict[str, Any] = {"schema": 1}
    rejected: dict[str, list[str]] = {}
    errors: dict[str, dict[str, str]] = {}

    def attempt(key: str, read: Callable[[], Any]) -> None:
        try:
            found[key] = read()
        except NotRecorded:
            if key not in LATER:
                raise
        except HpcdashError as error:
            errors[key] = {
                "kind": type(error).__name__,
                "message": error.message,
                "next_step": error.next_step,
            }

    def read_table(key: str, kind: pa.Schema, query: Query[ParsedTable]) -> list[dict[str, Any]]:
        parsed = play(transport, query)
        if parsed.rejected:
            rejected[key] = list(parsed.rejected)
        return table_to_json_rows(parsed.table, schema.public_names(kind))

    attempt(
        "probe",
        lambda: msgspec.json.decode(msgspec.json.encode(play(transport, backend.probe.query()))),
    )
    cluster = found["probe"]["cluster"] if "probe" in found else ""
    for key, (kind, build) in table_questions(backend, transport.user, cluster).items():
        if key not in LATER or Capability(key) in backend.capabilities:
            attempt(key, partial(read_table, key, kind, build()))
    return {**found, "rejected": rejected, "errors": errors}
