"""Reads a file on the cluster by byte offset, in constant memory, over the cluster's own transport. Knows no screen."""

from __future__ import annotations

from dataclasses import dataclass

from hpcdash.transport.base import Transport


@dataclass(frozen=True, slots=True)
class Look:
    """What a file was at one moment: `identity` tells files apart (device and inode), '' where there is none.

    `problem` is '' or says in words why it cannot be read (it is not there, no permission, a folder); `path` is the
    file's.
    """

    identity: str = ""
    size: int = 0
    modified_at: float = 0.0
    problem: str = ""

    @property
    def is_there(self) -> bool:
        return bool(self.identity)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Bytes of a file from `offset` on, and what the file was when they were read."""

    look: Look
    offset: int
    content: bytes

    @property
    def end(self) -> int:
        return self.offset + len(self.content)


class LogFile:
    """One file. Every method raises UnreachableError or CommandTimedOut when the line fails, and nothing else."""

    def __init__(self, transport: Transport, path: str) -> None:
        self.transport = transport
        self.path = path

    async def look(self) -> Look:
        """What the file is now."""
        raise NotImplementedError

    async def read(self, offset: int, length: int) -> Chunk:
        """At most `length` bytes from `offset` on (fewer at the end), with a look, in one command."""
        raise NotImplementedError

    async def read_end(self, length: int) -> Chunk:
        """The last `length` bytes, with a look, in one command."""
        raise NotImplementedError

    async def find(self, wanted: str, offset: int, *, backwards: bool = False, span_bytes: int = 1 << 28) -> int | None:
        """The offset of the line with the next match at or after `offset` (the last before it, backwards).

        Looks at no more than `span_bytes`; None where there is none in them. Upper and lower case differ only where
        `wanted` has an upper-case letter.
        """
        raise NotImplementedError

    async def count_lines(self, offset: int, *, limit_seconds: float = 20.0) -> int:
        """How many newlines come before `offset`; raises CommandTimedOut where counting takes longer."""
        raise NotImplementedError
