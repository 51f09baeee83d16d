"""The log file of --debug, with tracebacks."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from hpcdash.private_files import close_to_others, make_folder


def log_file() -> Path:
    """Return the path of the log that --debug writes."""
    import platformdirs

    return platformdirs.user_log_path("hpcdash") / "hpcdash.log"


def log_traceback(error: BaseException) -> Path | None:
    """Write a traceback to the log file; return its path, None if it cannot be written."""
    path = log_file()
    try:
        make_folder(path.parent)
        close_to_others(path)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        # Arguments may be invalid UTF-8.
        with os.fdopen(descriptor, "a", errors="backslashreplace") as stream:
            print(*sys.argv, file=stream)
            import traceback

            traceback.print_exception(error, file=stream)
    except OSError:
        return None
    return path
