"""Provides a log to a program on this machine: the file itself, or a copy of its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from hpcdash.services.files import Chunk
from hpcdash.services.logs.file import LogFile

# A slow connection needs a few minutes for this.
COPIED_BYTES = 64 << 20
_READ_BYTES = 4 << 20
_COMPARED_BYTES = 512


async def same_file_here(file: LogFile) -> Path | None:
    """Return the path if it is the same file on this machine, else None."""
    chunk = await file.read_end(_COMPARED_BYTES)
    return await asyncio.to_thread(_same_file, Path(file.path), chunk)


def _same_file(path: Path, chunk: Chunk) -> Path | None:
    # Another machine's file may have the same name and identity, but other bytes.
    try:
        with path.open("rb") as here:
            status = os.fstat(here.fileno())
            here.seek(chunk.offset)
            same = here.read(len(chunk.content)) == chunk.content
    except (OSError, ValueError):
        return None
    return path if same and f"{status.st_dev}:{status.st_ino}" == chunk.stat.identity else None


async def copy_end(
    file: LogFile, on_output: Callable[[int, int], None], most_bytes: int = COPIED_BYTES
) -> Path:
    """Copy the end of the log to a new file on this machine, which only the user can read.

    The caller deletes it. `on_output` receives the number of copied and of all bytes. Raises the
    errors of LogFile, and OSError if the disk is full.
    """
    check = await file.stat()
    begin = max(0, check.size - most_bytes)
    offset = begin
    descriptor, name = tempfile.mkstemp(prefix="hpcdash-log-", suffix=".log")
    try:
        with os.fdopen(descriptor, "wb") as out:
            while offset < check.size:
                chunk = await file.read(offset, min(_READ_BYTES, check.size - offset))
                if not chunk.content:
                    break
                await asyncio.to_thread(out.write, chunk.content)
                offset = chunk.end
                on_output(offset - begin, check.size - begin)
    except BaseException:  # also if cancelled
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise
    return Path(name)
