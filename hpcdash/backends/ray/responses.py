"""Reads the dashboard's responses: JSON bodies behind frames, and refusals.

Source: the REST API of Ray Jobs and the State API,
https://docs.ray.io/en/releases-2.60.0/cluster/running-applications.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import Struct

from hpcdash.backends.queries import Answer
from hpcdash.domain.units import format_memory
from hpcdash.errors import (
    CommandError,
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
_MAX_TRACEBACK_BYTES = 64 * 1024
# Resources that count as GPUs, by the names that Ray gives the devices it detects.
ACCELERATORS = ("GPU", "TPU", "NPU", "HPU", "neuron_cores")
# Limit of the State API: RAY_MAX_LIMIT_FROM_API_SERVER of ray/util/state/common.py.
MAX_ROWS = 10_000
# Values of the State API's filter_predicates.
_IS = "%3D"
IS_NOT = "%21%3D"
_MAX_MILLISECONDS = 253_402_300_799_999


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

    Raises UnreadableOutput, or CommandMissing if no server was queried.
    """
    if answer.status in (126, 127):
        raise CommandMissing(
            "Ray is reached over HTTP, not by commands",
            "Pass the dashboard's URL: hpcdash --ray http://127.0.0.1:8265",
            argv=answer.argv,
            status=answer.status,
        )
    responses = []
    position = 0
    while frame := _FRAME.match(answer.stdout, position):
        end = frame.end() + int(frame[2])
        epoch_seconds = None if frame[3] == b"-" else float(frame[3])
        responses.append(Response(int(frame[1]), answer.stdout[frame.end() : end], epoch_seconds))
        position = end
    if not responses or position != len(answer.stdout):
        raise unreadable(answer, "the answer was cut short")
    return tuple(responses)


def require_success(answer: Answer) -> tuple[Response, ...]:
    """Return the responses of a command.

    Raises the error of a refusal, with Ray's own message.
    """
    responses = read_responses(answer)
    for response in responses:
        if not response.is_success:
            raise _error(answer, response)
    return responses


def require_first(answer: Answer) -> tuple[Response, ...]:
    """Return the responses of a command, of which the others may be refusals.

    Raises the error of the first one's refusal, with Ray's own message.
    """
    responses = read_responses(answer)
    if not responses[0].is_success:
        raise _error(answer, responses[0])
    return responses


def _error(answer: Answer, response: Response) -> CommandError:
    """Build the error of a refusal."""
    kind: type[CommandError] = SchedulerRefused
    message = "Ray refused"
    next_step = ""
    output = refusal(response.body)
    if response.status == _NOT_FOUND and "does not exist" in output:
        kind = NoSuchJob
        message = "Ray does not know this job"
    elif response.status == _NOT_FOUND:
        kind = UnreadableOutput
        message = "this server has no Ray dashboard, or one that is too old"
        next_step = (
            "Check the URL. hpcdash needs Ray 2.9 or later with its dashboard (ray[default])."
        )
    elif response.status == _TOO_MANY:
        kind = ControllerDown
        message = "the Ray dashboard is overloaded"
        next_step = "Try again a little later."
    elif response.status >= 500:
        kind = ControllerDown
        message = "the Ray dashboard failed to answer"
        next_step = "`ray status` on the head node shows whether Ray is running."
    return kind(message, next_step, argv=answer.argv, status=response.status, output=output)


def refusal(body: bytes) -> str:
    """Return the message of a refusal; for a traceback, its last line with text."""
    text = _message(body) or body[-_MAX_TRACEBACK_BYTES:].decode("utf-8", "replace")
    if "Traceback" not in text:
        return excerpt(text.encode())
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[A-Za-z_.]+(Error|Exception): ", line)]
    return excerpt((errors or lines or [text])[-1].encode())


def _message(body: bytes) -> str:
    """Return the State API's message on a failure; '' for any other body."""
    if not body.startswith(b"{"):
        return ""
    try:
        return text(table(msgspec.json.decode(body.decode("utf-8", "replace"))).get("msg")) or ""
    except (msgspec.DecodeError, RecursionError):
        return ""


def decode(answer: Answer, response: Response) -> Any:
    """Decode the JSON of a body; raises UnreadableOutput."""
    if answer.truncated:
        raise UnreadableOutput(
            "the dashboard's answer is too large: only the first "
            f"{format_memory(len(answer.stdout))} were read",
            "Delete ended jobs (hpcdash delete JOB), or view a single job: hpcdash show JOB",
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
    """Format text as it is, anything else as JSON."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False, sort_keys=True)
    except RecursionError:
        return "…"


def truncation_note(answer: Answer, response: Response, title: str) -> str:
    """Return a note on missing rows of the State API's list; '' if it is complete, or failed."""
    if not response.is_success:
        return ""
    result = nested_table(decode(answer, response), "data", "result")
    total = number(result.get("total"))
    examined = number(result.get("num_after_truncation"))
    filtered = number(result.get("num_filtered"))
    count = len(list_items(result.get("result")))
    if total is not None and examined is not None and examined < total:
        return f"{title}: Ray examined {examined} of {total}"
    if filtered is None or count >= filtered:
        return ""
    return f"{title}: {count} of {filtered} are listed"


def state_filter(key: str, value: str, predicate: str = _IS) -> str:
    """Return a filter of the State API, as a part of a query string."""
    return f"filter_keys={key}&filter_predicates={predicate}&filter_values={quote(value, safe='')}"


def state_rows(answer: Answer, response: Response) -> list[dict[str, Any]]:
    """Return the rows of the State API's list; [] if it failed, as without its agents."""
    if not response.is_success:
        return []
    result = nested_table(decode(answer, response), "data", "result")
    return [row for row in list_items(result.get("result")) if isinstance(row, dict)]


def unreadable(answer: Answer, message: str) -> UnreadableOutput:
    return UnreadableOutput(
        message,
        "Is this the URL of a Ray dashboard (by default port 8265 of the head node)?",
        argv=answer.argv,
        status=answer.status,
        output=excerpt(_FRAME.sub(b"", answer.stdout[:400])),
    )


def text(value: object) -> str | None:
    """Return a text that is not empty; None for any other value."""
    return value if isinstance(value, str) and value else None


def table(value: object) -> Mapping[str, Any]:
    """Return a JSON object; {} for any other value."""
    return value if isinstance(value, dict) else {}


def nested_table(value: object, *keys: str) -> Mapping[str, Any]:
    """Return the JSON object under keys of nested objects; {} if any of them is missing."""
    for key in keys:
        value = table(value).get(key)
    return table(value)


def json_table(content: str) -> Mapping[str, Any]:
    """Parse a JSON object that anyone may have written; {} for any other text."""
    try:
        return table(json.loads(content))
    except (ValueError, RecursionError):
        return {}


def list_items(value: object) -> list[Any]:
    """Return a JSON array; [] for any other value."""
    return value if isinstance(value, list) else []


def amount(value: object) -> float | None:
    """Return a finite number; None for any other value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        finite = float(value)
    except OverflowError:
        return None
    return finite if math.isfinite(finite) else None


def number(value: object) -> int | None:
    """Return a whole number of at least 0, which the State API may write as text."""
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= 18:
        return int(value)
    finite = amount(value)
    return int(finite) if finite is not None and 0 <= finite < 1 << 62 else None


def seconds(milliseconds: object) -> int | None:
    """Return epoch seconds of epoch milliseconds; None for 0, which Ray writes for no time."""
    finite = amount(milliseconds)
    return int(finite // 1000) if finite is not None and 0 < finite <= _MAX_MILLISECONDS else None


def resources(value: object) -> Mapping[str, float]:
    """Return amounts by resource, without the resources that only identify nodes."""
    return {
        str(name): total
        for name, value in table(value).items()
        if not str(name).lower().startswith("node:") and (total := amount(value)) is not None
    }
