"""What a test does to a file while the program looks at it, and as whom."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


def put(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def append(path: Path, content: bytes) -> None:
    with path.open("ab") as file:
        file.write(content)


def put_sparse(path: Path, first: bytes, size: int, last: bytes) -> None:
    """A file whose middle is a hole."""
    with path.open("wb") as file:
        file.write(first)
        file.truncate(size)
        file.seek(0, 2)
        file.write(last)


def rename(path: Path, to: Path) -> None:
    path.rename(to)


def remove(path: Path) -> None:
    path.unlink()


def make_folder(path: Path) -> None:
    path.mkdir()


def remove_folder(path: Path) -> None:
    path.rmdir()


def size_of(path: Path) -> int:
    return path.stat().st_size


def bytes_of(path: Path) -> bytes:
    return path.read_bytes()


# Debian's user without rights.
NOBODY = 65534


@contextlib.contextmanager
def as_somebody_else() -> Iterator[None]:
    """Nobody, where this is root; whoever runs the tests otherwise."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
