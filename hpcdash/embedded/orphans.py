"""Makes this process the parent of descendants whose own parent ends.

Apart because ctypes is slow to import.
"""

from __future__ import annotations

import ctypes
import sys

_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> bool:
    """Adopt all descendants of this process from now on; returns False if this is not Linux."""
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
