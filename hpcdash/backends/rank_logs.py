"""Logs of a job's ranks: files beside its own log in the folder of its launch, which another user
may own.
"""

from __future__ import annotations

import posixpath
import re

from hpcdash.backends.job_detail import JobDetail, LogFiles, OtherLog
from hpcdash.backends.queries import TEXT_BYTES, Answer, Query
from hpcdash.errors import CommandError, excerpt

_JOB_ID = re.compile(r"[0-9]+(_[0-9]+)?")
# After its job's id.
_OWN = ".out"
_OF_RANK = re.compile(r"\.rank-(0|[1-9][0-9]{0,8})\.out")
_MAX_RANKS = 100_000


def rank_logs_query(detail: JobDetail, files: LogFiles) -> Query[tuple[OtherLog, ...]] | None:
    """The logs of a job's ranks, by number; None for a job whose log is not called as that of a
    launch is.

    `files` are the job's own or those of one of its ranks.
    """
    job_id = str(detail.job["id"][0].as_py())
    folder, name = posixpath.split(files.stdout or "")
    ending = name.removeprefix(job_id)
    if not folder.startswith("/") or not _JOB_ID.fullmatch(job_id) or ending == name:
        return None
    if ending != _OWN and not _OF_RANK.fullmatch(ending):
        return None
    # A folder that is a link is looked into; what is a link in it is not listed.
    argv = (
        "find",
        "-H",
        folder,
        "-maxdepth",
        "1",
        "-type",
        "f",
        "-name",
        f"{job_id}.rank-*.out",
        "-print0",
    )
    return Query(
        argv, lambda answer: _parse(answer, posixpath.join(folder, job_id)), cap_bytes=TEXT_BYTES
    )


def _parse(answer: Answer, start: str) -> tuple[OtherLog, ...]:
    if answer.status != 0 and not answer.stdout:
        raise CommandError(
            "cannot search for the logs of the job's ranks",
            "They are in the job's launch folder, which may belong to another user.",
            argv=answer.argv,
            status=answer.status,
            output=excerpt(answer.stderr),
        )
    paths = answer.stdout.decode("utf-8", "surrogateescape").split("\0")
    endings = [path.removeprefix(start) for path in paths if path.startswith(start)]
    ranks = sorted({int(found[1]) for ending in endings if (found := _OF_RANK.fullmatch(ending))})
    return tuple(_log(rank, f"{start}.rank-{rank}") for rank in ranks[:_MAX_RANKS])


def _log(rank: int, path: str) -> OtherLog:
    return OtherLog(
        f"rank-{rank}", f"rank {rank}", LogFiles(f"{path}.out", f"{path}.err"), (str(rank),)
    )
