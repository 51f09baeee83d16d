"""Results of jobs: read in few commands, from folders that nobody else can write to.

A result is written by an account on the cluster, and reading a pickle runs the code in it. So a
pickle is read only by `result()` and similar calls, and only from a launch folder that belongs to
the submitting account, with mode 0700: whoever could change it can run programs as that account
already. If you would not trust a cluster's administrators with this machine, use JSON results:
`result_format="json"`.
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

# So much of each file comes with the first command; the rest of a larger one in pieces.
_FIRST_BYTES = 64 << 10
_PIECE_BYTES = 16 << 20
# The length of a command's arguments is limited in all.
_TASKS_A_COMMAND = 500
_NOT_PRIVATE = 21
# $1 is the folder. Once entered it is the folder that was checked, whatever is renamed.
_ENTER = """\
cd -P -- "$1" 2>/dev/null && test -O . && test -z "$(find . -prune "(" -perm -040 -o -perm -020 -o -perm -010 -o \
-perm -04 -o -perm -02 -o -perm -01 ")")" || exit 21
shift
"""


class JobFailed(HpcdashError):
    """A job that gave no result. `state` is of hpcdash.domain.states.

    `exception_type` and `remote_traceback` are the function's, '' where it did not get that far.
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
    """Traceback of an exception in the job: its cause here."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


class CallOutcome(Struct, frozen=True):
    """Files of a function's runner: `content` is the result's bytes, `failure` a failure's (JSON).

    Both None: neither file exists.
    """

    form: str
    content: bytes | None = None
    failure: bytes | None = None

    @property
    def is_whole(self) -> bool:
        return self.content is not None or self.failure is not None


def result_names(form: str, index: int | None) -> tuple[str, str]:
    """The files of a task's result and of its failure."""
    stem = "result" if index is None else f"result-{index}"
    name = f"{stem}.{'json' if form == JSON else 'pkl'}"
    return name, f"{name}.error"


async def fetch_outcomes(
    store: ClusterStore, folder: str, form: str, indices: Sequence[int | None]
) -> dict[int | None, CallOutcome]:
    """Fetch the results of a launch's tasks, a few hundred per command.

    Raises UsageError where others may have written to the folder, and what keeps the cluster from
    answering.
    """
    found: dict[int | None, CallOutcome] = {}
    for start in range(0, len(indices), _TASKS_A_COMMAND):
        some = indices[start : start + _TASKS_A_COMMAND]
        names = [name for index in some for name in result_names(form, index)]
        contents = iter(await _read_files(store, folder, names))
        found |= {index: CallOutcome(form, next(contents), next(contents)) for index in some}
    return found


async def find_forms(store: ClusterStore, folder: str, index: int | None = None) -> tuple[str, ...]:
    """The formats of the results in a launch's folder: of a task, or of its first one where it is
    an array.
    """
    names = {
        result_names(form, at)[0]: form
        for form in FORMATS
        for at in (index, 0 if index is None else index)
    }
    chunks = await store.run_query(
        _private_query(folder, [FileRange(name, 0, 0) for name in names])
    )
    there = [
        form for form, chunk in zip(names.values(), chunks, strict=True) if chunk.stat.is_there
    ]
    return tuple(dict.fromkeys(there))


async def _read_files(store: ClusterStore, folder: str, names: Sequence[str]) -> list[bytes | None]:
    """Each file whole, None for one that is not there."""
    chunks = await store.run_query(
        _private_query(folder, [FileRange(name, 0, _FIRST_BYTES) for name in names])
    )
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
            (chunk,) = await store.run_query(
                _private_query(folder, [FileRange(name, chunk.end, _PIECE_BYTES)])
            )
            parts.append(chunk.content)
        contents.append(b"".join(parts))
    return contents


def _private_query(folder: str, ranges: Iterable[FileRange]) -> Query[tuple[Chunk, ...]]:
    query = files_query(list(ranges))
    shell, option, script, name, *parts = query.argv

    def parse(answer: Answer) -> tuple[Chunk, ...]:
        if answer.status == _NOT_PRIVATE and not answer.stdout:
            raise UsageError(
                f"{folder} is not a folder of your own that is closed to others (mode 0700): no "
                "result is read from it",
                "Check who may have written there before you read it.",
            )
        if answer.status and not answer.stdout:
            raise SchedulerRefused(
                f"the results in {folder} cannot be read",
                argv=answer.argv,
                status=answer.status,
                output=excerpt(answer.stderr),
            )
        return query.parse(answer)

    return Query(
        (shell, option, _ENTER + script, name, folder, *parts), parse, query.limit_seconds, ("cat",)
    )


def call_value(outcome: CallOutcome, *, job_id: str, state: str) -> Any:
    """The result, read; raises the function's own exception, its cause the traceback there, else
    JobFailed.
    """
    # Objects of the program itself were pickled under this name.
    sys.modules.setdefault("__mp_main__", sys.modules["__main__"])
    if outcome.content is not None:
        return parse_result(outcome.content, outcome.form)
    if outcome.failure is not None:
        raise build_exception(
            outcome.failure, job_id=job_id, state=state, may_unpickle=outcome.form == PICKLE
        )
    raise JobFailed(
        f"job {job_id} left no result: {state.replace('_', ' ')}",
        "Its logs may tell why: job.logs(stderr=True), job.logs()",
        job_id=job_id,
        state=state,
    )


def build_exception(
    failure: bytes, *, job_id: str, state: str, may_unpickle: bool
) -> BaseException:
    """Build the exception that a function raised, with its traceback there as the cause."""
    try:
        noted = json.loads(failure)
        kind, message, text = (str(noted[name]) for name in ("type", "message", "traceback"))
        pickled = str(noted.get("pickle") or "") if may_unpickle else ""
    except (ValueError, KeyError, TypeError):
        return JobFailed(
            f"job {job_id} failed, and what it left cannot be read", job_id=job_id, state=state
        )
    error: BaseException | None = None
    if pickled:
        try:
            found = pickle.loads(base64.b64decode(pickled))
            error = found if isinstance(found, Exception) else None
        except Exception:
            # Its class may exist only there, or need other arguments; the message is still shown.
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
