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
    """Raise the error of a failed command, with the queue's message.

    The command and its status are added only to errors that should not happen.
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
    is_unusable = "queue.db" in message or "queue cannot be written" in message
    if is_unusable or "HPCDASH_QUEUE" in next_step:
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
    """Return a JSON object; {} for anything else."""
    try:
        found = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def read_object(answer: Answer, build: Callable[[dict[str, Any]], T]) -> T:
    """Build a value from the JSON object of an answer; raises UnreadableOutput for other output."""
    require_success(answer)
    if found := decoded(answer.stdout):
        with suppress(
            AttributeError, KeyError, OverflowError, TypeError, ValueError, pa.ArrowException
        ):
            return build(found)
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
    """Return a parser of answers into a schema; `finish` adds columns that are not printed."""

    def build(found: dict[str, Any]) -> ParsedTable:
        columns: dict[str, Any] = found.get("columns") or {}
        if not columns:
            return ParsedTable(schema.empty_table())
        finish(columns)
        rows = len(next(iter(columns.values())))
        for name in schema.names:
            if name.startswith("_"):
                columns.setdefault(name, [None] * rows)
        arrays = [_column(columns[field.name], field.type) for field in schema]
        return ParsedTable(pa.table(arrays, schema=schema))

    return lambda answer: read_object(answer, build)


def _column(values: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(kind):
        return pa.array(values, pa.string()).dictionary_encode().cast(kind)
    return pa.array(values, kind)


def with_numbers(columns: dict[str, Any]) -> None:
    """Add the columns of JOBS for sorting and folding."""
    columns["_number"] = []
    columns["_task"] = []
    for job_id in columns["id"]:
        number, _, task = job_id.partition("_")
        columns["_number"].append(int(number))
        columns["_task"].append(int(task) if task else None)
    columns["_tasks"] = [1] * len(columns["id"])


read_jobs = read_table(JOBS, with_numbers)


def _as_runs(columns: dict[str, Any]) -> None:
    """Add the columns of RUNS that the command does not print, or prints as those of JOBS."""
    with_numbers(columns)
    used = zip(columns["cpu_seconds_used"], columns["memory_peak_bytes"], strict=True)
    source = str(UsageSource.ACCOUNTING)
    columns["usage_source"] = [None if pair == (None, None) else source for pair in used]
    columns["_reason"] = columns["reason"]
    columns["_comment"] = columns["comment"]
    for name in ("suspended_seconds", "gpu_use", "gpu_memory_peak_bytes"):
        columns[name] = [None] * len(columns["id"])


read_runs = read_table(RUNS, _as_runs)


def read_native(answer: Answer) -> Mapping[str, str]:
    """Return the queue's facts of a job."""
    return read_object(answer, lambda found: {str(key): str(value) for key, value in found.items()})
