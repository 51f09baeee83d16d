"""The result of a launch that calls a function: its JSON, unchanged; a pickle is never read."""

from __future__ import annotations

import asyncio

import msgspec

from hpcdash.errors import HpcdashError, UnreadableOutput
from hpcdash.services.logs.file import LogFile
from hpcdash.services.submit.launch_service import CallFiles, NoResult, ResultTooLarge
from hpcdash.web.api.answers import CallFailure

MAX_RESULT_BYTES = 8 << 20
_MAX_FAILURE_BYTES = 1 << 20


class PickledResult(HpcdashError):
    """Raised for a result that is a pickle: reading it would run its content."""


async def read_result(files: CallFiles, cluster: str) -> msgspec.Raw | CallFailure:
    """Return the function's result, or its failure.

    Raises NoResult if it has written neither, PickledResult, ResultTooLarge, and UnreadableOutput
    for invalid JSON.
    """
    if files.is_pickle:
        check = await files.result.stat()
        if check.is_there:
            raise PickledResult(
                f"the result is a Python pickle, which the API does not read: {files.result.place}",
                "Read it in Python as the job's account: "
                f'hpcdash.connect("{cluster}").attach("{files.job_id}").result(). '
                'Launched with call.result_format = "json" the API would return it.',
            )
        if not check.is_missing:
            raise NoResult(f"{files.result.place}: {check.problem}")
    elif (content := await _read(files.result, MAX_RESULT_BYTES)) is not None:
        return await asyncio.to_thread(_check_json, content, files.result.place)
    failure = await _read(files.failure, _MAX_FAILURE_BYTES)
    if failure is None:
        step = (
            f"GET /launches/{files.launch_id} shows whether the launch has ended; its log shows why it "
            "left none."
        )
        raise NoResult("the function produced no result", step)
    try:
        # A pickle there stays unread.
        return msgspec.json.decode(failure, type=CallFailure)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UnreadableOutput(f"{files.failure.place} is not a failure file: {error}") from None


async def _read(file: LogFile, most_bytes: int) -> bytes | None:
    """Read a whole file; return None if it is missing."""
    chunk = await file.read(0, most_bytes + 1)
    if chunk.stat.is_missing:
        return None
    if chunk.stat.problem:
        raise NoResult(f"{file.place}: {chunk.stat.problem}")
    if chunk.stat.size > most_bytes:
        raise ResultTooLarge(
            f"the result is larger than {most_bytes >> 20} MiB: {file.place}",
            "Read the file itself, or have the function write large data to a separate file.",
        )
    if not chunk.ends_the_file:
        raise UnreadableOutput(f"{file.place} was cut short", "Ask again.")
    return chunk.content


def _check_json(content: bytes, place: str) -> msgspec.Raw:
    try:
        msgspec.json.decode(content)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UnreadableOutput(
            f"{place} is not JSON: {error}",
            "NaN and Infinity are not valid JSON: have the function return None or text instead.",
        ) from None
    return msgspec.Raw(content)
