"""What lists of processes showed while something ran: each command line that any process of this
machine had.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_LOOK_SECONDS = 0.1


@contextmanager
def seen_command_lines(*wanted: str) -> Iterator[set[str]]:
    """Those that hold one of the `wanted` words, as any user could have seen them; complete once
    the block ends.
    """
    words = [word.encode() for word in wanted]
    found: set[str] = set()
    over = threading.Event()

    def look() -> None:
        while not over.wait(_LOOK_SECONDS):
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                with suppress(OSError):
                    line = path.read_bytes()
                    if any(word in line for word in words):
                        found.add(line.replace(b"\0", b" ").decode("utf-8", "replace"))

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    try:
        yield found
    finally:
        over.set()
        looking.join()
