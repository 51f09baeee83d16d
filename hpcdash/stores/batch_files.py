"""Reads a batch script that is to be submitted as it is: a file here, or one on the cluster."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

from hpcdash.backends.queries import Answer, Query
from hpcdash.errors import UsageError, excerpt
from hpcdash.stores.cluster import ClusterStore

# Slurm's own limit for a batch script (SchedulerParameters=max_script_size).
_MOST_BYTES = 4 << 20
_LIMIT_SECONDS = 15.0


async def read_here(path: str) -> bytes:
    """A file of this machine, `~` for the home. Raises UsageError."""
    return await asyncio.to_thread(_read, path)


async def read_there(store: ClusterStore, path: str) -> bytes:
    """A file of the cluster. Raises UsageError where it cannot be read, and what keeps the cluster from answering."""
    await store.open()
    where = path_there(path)
    argv = ("head", "-c", str(_MOST_BYTES + 1), "--", where)
    return await store.ask(Query(argv, partial(_parse, path=path), limit_seconds=_LIMIT_SECONDS))


def path_there(path: str) -> str:
    """A path as commands on the cluster take it, which run in the home."""
    return "." if path == "~" else path.removeprefix("~/")


def _read(path: str) -> bytes:
    try:
        file = Path(path).expanduser()
        if not file.is_file():
            raise UsageError(f"{path}: {'a folder' if file.is_dir() else 'there is no such file here'}")
        with file.open("rb") as stream:
            return _fitting(stream.read(_MOST_BYTES + 1), path)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    except (RuntimeError, ValueError) as error:
        # The home of nobody, or a NUL.
        raise UsageError(f"{path}: no path") from error


def _parse(answer: Answer, *, path: str) -> bytes:
    if answer.status != 0:
        said = excerpt(answer.stderr).rpartition(": ")[2]
        raise UsageError(f"{path}: {said or 'it cannot be read'} (on the cluster)")
    return _fitting(answer.stdout, path)


def _fitting(content: bytes, path: str) -> bytes:
    if len(content) > _MOST_BYTES:
        raise UsageError(f"{path}: more than {_MOST_BYTES >> 20} MiB: is it a batch script?")
    return content
