"""To be somebody without rights for a while: root may read and write everything."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

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
