"""Reads what the dashboard answers: JSON bodies behind frames, and its refusals.

Source: the REST API of Ray Jobs and the State API,
https://docs.ray.io/en/releases-2.60.0/cluster/running-applications.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from hpcdash.backends.queries import Answer
from hpcdash.domain.units import format_memory
from hpcdash.errors import (
    CommandMissing,
    ControllerDown,
    NoSuchJob,
    SchedulerRefused,
    UnreadableOutput,
    excerpt,
)

_FRAME = re.compile(rb"([0-9]{3}) ([0-9]{1,12}) ([0-9]{1,15}|-)\n")
_NOT_FOUND = 404
_TOO_MANY = 429
# Searched part of a traceback.
_MAX_WORDS = 64 * 1024
# Resources that count as GPUs, as Ray names those that it finds itself.
ACCELERATORS = ("GPU", "TPU", "NPU", "HPU", "neuron_cores")
# The most that the State API lists: RAY_MAX_LIMIT_FROM_API_SERVER of ray/util/state/common.py.
MAX_ROWS = 10_000
_LAST_MILLISECOND = 253_402_300_799_999


class Response(Struct, frozen=True):
    """One response of several; `epoch_seconds` is the server's clock."""

    status: int
    body: bytes
    epoch_seconds: float | None

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300


def read_responses(answer: Answer) -> tuple[Response, ...]:
    """Return the responses of a command, one per path.

    Raises UnreadableOutput, or CommandMissing where no server was queried.
    """
    if answer.status in (126, 127):
        raise CommandMissing(
            "Ray is reached over HTTP, not by commands",
            "Pass the dashboard's URL: hpcdash --ray http://127.0.0.1:8265",
            argv=answer.argv,
            status=answer.status,
        )
    found = []
    position = 0
    while frame := _FRAME.match(answer.stdout, position):
        end = frame.end() + int(frame[2])
        reported = None if frame[3] == b"-" else float(frame[3])
        found.append(Response(int(frame[1]), answer.stdout[frame.end() : end], reported))
        position = end
    if not found or position != len(answer.stdout):
        raise unreadable(answer, "the answer was cut short")
    return tuple(found)


def require_success(answer: Answer) -> tuple[Response, ...]:
    """Return the responses of `read_responses`.

    Raises the error of a refusal, with Ray's own message.
    """
    responses = read_responses(answer)
    for response in responses:
        if response.is_success:
            continue
        text = refusal(response.body)
        if response.status == _NOT_FOUND and "does not exist" in text:
            raise NoSuchJob(
                "Ray does not know this job", argv=answer.argv, status=_NOT_FOUND, output=text
            )
        if response.status == _NOT_FOUND:
            raise UnreadableOutput(
                "this server has no Ray dashboard, or one that is too old",
                "Check the URL. hpcdash needs Ray 2.9 or later with its dashboard (ray[default]).",
                argv=answer.argv,
                status=_NOT_FOUND,
                output=text,
            )
        if response.status == _TOO_MANY:
            raise ControllerDown(
                "the Ray dashboard is overloaded",
                "Try again a little later.",
                argv=answer.argv,
                status=response.status,
                output=text,
            )
        if response.status >= 500:
            raise ControllerDown(
                "the Ray dashboard failed to answer",
                "`ray status` on the head node shows whether Ray is running.",
                argv=answer.argv,
                status=response.status,
                output=text,
            )
        raise SchedulerRefused("Ray refused", argv=answer.argv, status=response.status, output=text)
    return responses


def refusal(body: bytes) -> str:
    """Return the message of a refusal: of a traceback its last line with text."""
    text = _message(body) or body[-_MAX_WORDS:].decode("utf-8", "replace")
    if "Traceback" not in text:
        return excerpt(text.encode())
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[A-Za-z_.]+(Error|Exception): ", line)]
    return excerpt((errors or lines or [text])[-1].encode())


def _message(body: bytes) -> str:
    """Return the State API's message on a failure; '' where this is not one of its answers."""
    if not body.startswith(b"{"):
        return ""
    try:
        return text(table(msgspec.json.decode(body.decode("utf-8", "replace"))).get("msg")) or ""
    except (msgspec.DecodeError, RecursionError):
        return ""


def decode(answer: Answer, response: Response) -> Any:
    """The JSON of a body; raises UnreadableOutput."""
    if answer.truncated:
        raise UnreadableOutput(
            "the dashboard's answer is too large: only the first "
            f"{format_memory(len(answer.stdout))} were read",
            "Delete ended jobs (hpcdash delete JOB), or look at one job: hpcdash show JOB",
            argv=answer.argv,
            status=answer.status,
        )
    body = response.body.decode("utf-8", "replace")
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError:
        pass
    except RecursionError:
        raise unreadable(answer, "this is not a response from a Ray dashboard") from None
    try:
        # Ray's own JSON may hold what no JSON does: NaN and lone surrogates, which anyone can write
        # into a job.
        return json.loads(
            json.dumps(json.loads(body), ensure_ascii=False).encode("utf-8", "replace")
        )
    except (ValueError, RecursionError):
        raise unreadable(answer, "this is not a response from a Ray dashboard") from None


def format_value(value: object) -> str:
    """Text as it is, anything else as JSON."""
    try:
        return (
            value
            if isinstance(value, str)
            else json.dumps(value, ensure_ascii=False, sort_keys=True)
        )
    except RecursionError:
        return "…"


def truncation_note(answer: Answer, response: Response, title: str) -> str:
    """Return what a list of the State API leaves out, '' where it is complete, or failed."""
    if not response.is_success:
        return ""
    found = table(table(table(decode(answer, response)).get("data")).get("result"))
    total = number(found.get("total"))
    listed = found.get("result")
    count = len(listed) if isinstance(listed, list) else 0
    shown = number(found.get("num_after_truncation"))
    filtered = number(found.get("num_filtered"))
    if total is not None and shown is not None and shown < total:
        return f"{title}: Ray looked at {shown} of {total}"
    if filtered is None or count >= filtered:
        return ""
    return f"{title}: {count} of {filtered} are listed"


def state_rows(answer: Answer, response: Response) -> list[dict[str, Any]]:
    """The rows of a list of the State API; [] where it failed, as it does without its agents."""
    if not response.is_success:
        return []
    found = decode(answer, response)
    for key in ("data", "result", "result"):
        found = found.get(key) if isinstance(found, dict) else None
    return [row for row in found if isinstance(row, dict)] if isinstance(found, list) else []


def state_summary(found: Any) -> tuple[list[Mapping[str, Any]], str]:
    """Return the rows of the State API's summary, and its note on missing ones; '' for none."""
    result = table(table(table(found).get("data")).get("result"))
    cluster = table(table(table(result.get("result")).get("node_id_to_summary")).get("cluster"))
    rows = [table(row) for row in table(cluster.get("summary")).values()]
    return rows, text(result.get("partial_failure_warning")) or ""


def unreadable(answer: Answer, why: str) -> UnreadableOutput:
    return UnreadableOutput(
        why,
        "Is this the URL of a Ray dashboard (by default port 8265 of the head node)?",
        argv=answer.argv,
        status=answer.status,
        output=excerpt(_FRAME.sub(b"", answer.stdout[:400])),
    )


def text(value: object) -> str | None:
    """Text that is one, and not empty."""
    return value if isinstance(value, str) and value else None


def table(value: object) -> Mapping[str, Any]:
    """A JSON object; {} for anything else."""
    return value if isinstance(value, dict) else {}


def amount(value: object) -> float | None:
    """A finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def number(value: object) -> int | None:
    """A whole number that is not negative; the State API writes some as text."""
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= 18:
        return int(value)
    found = amount(value)
    return int(found) if found is not None and 0 <= found < 1 << 62 else None


def seconds(milliseconds: object) -> int | None:
    """Epoch seconds of epoch milliseconds; None for 0, which Ray writes where there is no time."""
    found = amount(milliseconds)
    return int(found // 1000) if found is not None and 0 < found <= _LAST_MILLISECOND else None


def resources(value: object) -> Mapping[str, float]:
    """Return names and amounts, without the resources that only identify nodes."""
    if not isinstance(value, dict):
        return {}
    found = ((str(name), amount(held)) for name, held in value.items())
    return {
        name: held
        for name, held in found
        if held is not None and not name.lower().startswith("node:")
    }


def pairs(value: object) -> Mapping[str, Sequence[float]]:
    """Resource → (used, total), as the dashboard's cluster status has them."""
    if not isinstance(value, dict):
        return {}
    return {
        str(name): (used, total)
        for name, both in value.items()
        if isinstance(both, list) and len(both) == 2
        if (used := amount(both[0])) is not None and (total := amount(both[1])) is not None
    }
