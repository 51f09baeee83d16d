"""Parsers of the embedded queue's output, into the schema's columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
import pyarrow as pa

from hpcdash.backends.queries import Answer, ParsedTable
from hpcdash.domain.schema import JOBS, RUNS, UsageSource
from hpcdash.errors import (
    CommandMissing,
    ControllerDown,
    NoSuchJob,
    SchedulerRefused,
    UnreadableOutput,
    excerpt,
)

_MISSING = (126, 127)
T = TypeVar("T")


def require_success(answer: Answer) -> None:
    """Raises the error of an answer that ended badly, in the queue's own words.

    What it refuses it tells a person itself; its command and status are told only of what should
    not happen.
    """
    if answer.status == 0:
        return
    text = excerpt(answer.stderr) or excerpt(answer.stdout)
    message, _, next_step = text.partition("\n")
    if answer.status in _MISSING or "No module named" in text:
        raise CommandMissing(
            "cannot start the embedded queue",
            "Reinstall hpcdash.",
            argv=answer.argv,
            status=answer.status,
            output=text,
        )
    if "no such job" in text:
        raise NoSuchJob(message, next_step)
    if (
        "queue.db" in message
        or "HPCDASH_QUEUE" in next_step
        or "queue cannot be written" in message
    ):
        raise ControllerDown(message, next_step, argv=answer.argv, status=answer.status)
    if not text or message.startswith("Traceback"):
        raise SchedulerRefused(
            "the embedded queue's program failed",
            "This is a bug in hpcdash; please report it.",
            argv=answer.argv,
            status=answer.status,
            output=text,
        )
    raise SchedulerRefused(message, next_step)


def decoded(raw: bytes) -> dict[str, Any]:
    """A JSON object; {} for what is none."""
    try:
        found = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def read_object(answer: Answer, made: Callable[[dict[str, Any]], T]) -> T:
    """Return `made` of the one JSON object of an answer; raises UnreadableOutput for anything
    else.
    """
    require_success(answer)
    if found := decoded(answer.stdout):
        with suppress(
            AttributeError, KeyError, OverflowError, TypeError, ValueError, pa.ArrowException
        ):
            return made(found)
    raise UnreadableOutput(
        "unexpected output from the embedded queue",
        "Check for another version of hpcdash on the PATH.",
        argv=answer.argv,
        status=answer.status,
        output=excerpt(answer.stdout[:400]) or excerpt(answer.stderr),
    )


def read_table(
    schema: pa.Schema, finish: Callable[[dict[str, Any]], None] = lambda columns: None
) -> Callable[[Answer], ParsedTable]:
    """Return a parser of answers into a schema; `finish` adds what the command does not print."""

    def made(found: dict[str, Any]) -> ParsedTable:
        columns: dict[str, Any] = found.get("columns") or {}
        if not columns:
            return ParsedTable(schema.empty_table())
        finish(columns)
        rows = len(next(iter(columns.values())))
        columns = {name: [None] * rows for name in schema.names if name.startswith("_")} | columns
        return ParsedTable(
            pa.table([_column(columns[field.name], field.type) for field in schema], schema=schema)
        )

    return lambda answer: read_object(answer, made)


def _column(values: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(kind):
        return pa.array(values, pa.string()).dictionary_encode().cast(kind)
    return pa.array(values, kind)


def with_numbers(columns: dict[str, Any]) -> None:
    """The columns of JOBS that serve sorting and folding."""
    ids = [one.partition("_") for one in columns["id"]]
    columns["_number"] = [int(number) for number, _, _ in ids]
    columns["_task"] = [int(task) if task else None for _, _, task in ids]
    columns["_tasks"] = [1] * len(ids)
    columns["_expected_start_at"] = columns["_other_id"] = [None] * len(ids)


read_jobs = read_table(JOBS, with_numbers)


def _as_runs(columns: dict[str, Any]) -> None:
    """The columns of RUNS that the command does not print, or calls by those of JOBS."""
    with_numbers(columns)
    used = zip(columns["cpu_seconds_used"], columns["memory_peak_bytes"], strict=True)
    source = str(UsageSource.ACCOUNTING)
    columns["usage_source"] = [None if pair == (None, None) else source for pair in used]
    columns["_reason"], columns["_comment"] = columns["reason"], columns["comment"]
    for name in ("suspended_seconds", "gpu_use", "gpu_memory_peak_bytes"):
        columns[name] = [None] * len(columns["id"])


read_runs = read_table(RUNS, _as_runs)


def read_native(answer: Answer) -> Mapping[str, str]:
    """One job in the queue's own words."""
    return read_object(answer, lambda found: {str(key): str(value) for key, value in found.items()})
