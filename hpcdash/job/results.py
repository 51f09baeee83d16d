"""Results of jobs' functions, as files of the launch's folder: written, and read by later jobs."""

from __future__ import annotations

import json
import os
import pickle
import stat

from hpcdash.job.on_disk import write_whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PICKLE = "pickle"
JSON = "json"
FORMATS = (PICKLE, JSON)


def write_result(path: str, value: object, form: str = PICKLE) -> None:
    """Write a result to a file that is complete or absent.

    Raises the errors of pickle or json for an unsupported value.
    """
    # Protocol 4: the client's Python may be older.
    content = pickle.dumps(value, protocol=4) if form == PICKLE else json.dumps(value).encode()
    with write_whole(path) as beside:
        beside.write_bytes(content)


def parse_result(content: bytes, form: str) -> Any:
    """Parse a result. A pickle runs code when it is read: parse only results of your own jobs."""
    return pickle.loads(content) if form == PICKLE else json.loads(content.decode("utf-8"))


def load_result(path: str, form: str = PICKLE) -> Any:
    """Load the result of a job that this one waited for.

    Raises FileNotFoundError if that job left none, and PermissionError if its folder belongs to
    another account or is open to others.
    """
    folder = os.path.dirname(path)
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        status = os.fstat(number)
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
            raise PermissionError(
                f"{folder}: others may have written to it, so its results are not read"
            )
        try:
            file = os.open(os.path.basename(path), os.O_RDONLY | os.O_NOFOLLOW, dir_fd=number)
        except FileNotFoundError:
            raise FileNotFoundError(f"the previous job has no result: {path}") from None
    finally:
        os.close(number)
    with os.fdopen(file, "rb") as stream:
        return parse_result(stream.read(), form)


def load_results(paths: list[str], form: str = PICKLE) -> list[Any]:
    """Load the results of all tasks of an array."""
    return [load_result(path, form) for path in paths]
