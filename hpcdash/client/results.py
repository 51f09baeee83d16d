"""Results of jobs: read in few commands, from folders that nobody else can write to.

Reading a pickle runs the code in it. So a pickle is read only by `result()` and similar calls, and
only from a launch folder that belongs to the submitting account, with mode 0700: whoever can change
it can run programs as that account already. If you would not trust a cluster's administrators with
this machine, use JSON results: `result_format="json"`.
"""

from __future__ import annotations

import base64
import json
import pickle
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct

from hpcdash.backends.queries import Answer, Query
from hpcdash.errors import HpcdashError, SchedulerRefused, UsageError, excerpt
from hpcdash.job.results import FORMATS, JSON, PICKLE, parse_result
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.files import Chunk, FileRange, files_query

# The first command reads this much of each file; the rest of a larger one is read in pieces.
_FIRST_BYTES = 64 << 10
_PIECE_BYTES = 16 << 20
# The total length of a command's arguments is limited.
_TASKS_PER_COMMAND = 500
_NOT_PRIVATE = 21
# $1 is the folder. It is entered before it is checked, so that a rename cannot replace it.
_ENTER = """\
cd -P -- "$1" 2>/dev/null && test -O . && test -z "$(find . -prune "(" -perm -040 -o -perm -020 \
-o -perm -010 -o -perm -04 -o -perm -02 -o -perm -01 ")")" || exit 21
shift
"""


class JobFailed(HpcdashError):
    """A job without a result; `state` is of hpcdash.domain.states.

    `exception_type` and `remote_traceback` are the function's, '' if it did not raise.
    """

    def __init__(
        self,
        message: str,
        next_step: str = "",
        *,
        job_id: str = "",
        state: str = "",
        exception_type: str = "",
        remote_traceback: str = "",
    ) -> None:
        super().__init__(message, next_step)
        self.job_id = job_id
        self.state = state
        self.exception_type = exception_type
        self.remote_traceback = remote_traceback


class RemoteTraceback(Exception):
    """Traceback of an exception in the job, as the exception's cause in this program."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


class CallOutcome(Struct, frozen=True):
    """Files of a function's runner: `content` is the result, `failure` a failure in JSON.

    Each is None if the file does not exist.
    """

    form: str
    content: bytes | None = None
    failure: bytes | None = None

    @property
    def is_whole(self) -> bool:
        return self.content is not None or self.failure is not None


def result_names(form: str, index: int | None) -> tuple[str, str]:
    """Return the file names of a task's result and failure."""
    stem = "result" if index is None else f"result-{index}"
    name = f"{stem}.{'json' if form == JSON else 'pkl'}"
    return name, f"{name}.error"


async def fetch_outcomes(
    store: ClusterStore, folder: str, form: str, indices: Sequence[int | None]
) -> dict[int | None, CallOutcome]:
    """Fetch the results of a launch's tasks, a few hundred per command.

    Raises UsageError if others may have written to the folder, and errors of the cluster.
    """
    found: dict[int | None, CallOutcome] = {}
    for start in range(0, len(indices), _TASKS_PER_COMMAND):
        some = indices[start : start + _TASKS_PER_COMMAND]
        names: list[str] = []
        for index in some:
            names += result_names(form, index)
        contents = iter(await _read_files(store, folder, names))
        for index in some:
            found[index] = CallOutcome(form, next(contents), next(contents))
    return found


async def find_forms(store: ClusterStore, folder: str, index: int | None = None) -> tuple[str, ...]:
    """Return the formats of a task's results; None: a job's, or the first task's of an array."""
    names: dict[str, str] = {}
    for form in FORMATS:
        names[result_names(form, index)[0]] = form
        names[result_names(form, index or 0)[0]] = form
    query = _private_query(folder, [FileRange(name, 0, 0) for name in names])
    chunks = await store.run_query(query)
    forms = zip(names.values(), chunks, strict=True)
    return tuple(dict.fromkeys(form for form, chunk in forms if chunk.stat.is_there))


async def _read_files(store: ClusterStore, folder: str, names: Sequence[str]) -> list[bytes | None]:
    """Return the complete content of each file, None for missing files."""
    query = _private_query(folder, [FileRange(name, 0, _FIRST_BYTES) for name in names])
    chunks = await store.run_query(query)
    contents: list[bytes | None] = []
    for name, chunk in zip(names, chunks, strict=True):
        if chunk.stat.is_missing:
            contents.append(None)
            continue
        parts = [chunk.content]
        while True:
            if chunk.stat.problem:
                raise UsageError(f"{folder}/{name}: {chunk.stat.problem}")
            if chunk.ends_the_file:
                break
            query = _private_query(folder, [FileRange(name, chunk.end, _PIECE_BYTES)])
            (chunk,) = await store.run_query(query)
            parts.append(chunk.content)
        contents.append(b"".join(parts))
    return contents


def _private_query(folder: str, ranges: Iterable[FileRange]) -> Query[tuple[Chunk, ...]]:
    query = files_query(list(ranges))
    shell, option, script, name, *parts = query.argv

    def parse(answer: Answer) -> tuple[Chunk, ...]:
        if answer.status == _NOT_PRIVATE and not answer.stdout:
            raise UsageError(
                f"{folder} is not your own folder with mode 0700, so results are not read from it",
                "Check who else may have written to it before you read it.",
            )
        if answer.status and not answer.stdout:
            raise SchedulerRefused(
                f"the results in {folder} cannot be read",
                argv=answer.argv,
                status=answer.status,
                output=excerpt(answer.stderr),
            )
        return query.parse(answer)

    argv = (shell, option, _ENTER + script, name, folder, *parts)
    return Query(argv, parse, query.limit_seconds, ("cat",))


def call_value(outcome: CallOutcome, *, job_id: str, state: str) -> Any:
    """Parse the result; raises the function's own exception, or JobFailed."""
    # Objects of the program itself were pickled under this name.
    sys.modules.setdefault("__mp_main__", sys.modules["__main__"])
    if outcome.content is not None:
        return parse_result(outcome.content, outcome.form)
    if outcome.failure is not None:
        raise build_exception(
            outcome.failure, job_id=job_id, state=state, may_unpickle=outcome.form == PICKLE
        )
    raise JobFailed(
        f"job {job_id} has no result: {state.replace('_', ' ')}",
        "Check its logs: job.logs(stderr=True), job.logs()",
        job_id=job_id,
        state=state,
    )


def build_exception(
    failure: bytes, *, job_id: str, state: str, may_unpickle: bool
) -> BaseException:
    """Build the exception that a function raised, with the job's traceback as the cause."""
    try:
        recorded = json.loads(failure)
        kind = str(recorded["type"])
        message = str(recorded["message"])
        text = str(recorded["traceback"])
        pickled = str(recorded.get("pickle") or "") if may_unpickle else ""
    except (ValueError, KeyError, TypeError, AttributeError):
        return JobFailed(
            f"job {job_id} failed, and its failure file cannot be read", job_id=job_id, state=state
        )
    error: BaseException | None = None
    if pickled:
        try:
            found = pickle.loads(base64.b64decode(pickled))
            error = found if isinstance(found, Exception) else None
        except Exception:
            # Its class may exist only in the job, or need other arguments; the message is shown.
            error = None
    if error is None:
        error = JobFailed(
            f"job {job_id}: {kind}: {message}",
            job_id=job_id,
            state=state,
            exception_type=kind,
            remote_traceback=text,
        )
    error.__cause__ = RemoteTraceback(text)
    return error
