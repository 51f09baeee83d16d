"""Values in files between client and job: base64 pickles go in, a plain pickle comes out.

A pickle runs code when it is read: read only your own files.
"""

from __future__ import annotations

import base64
import pickle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Sequence


def packed(value: object) -> bytes:
    """Return a value as a base64 pickle, for a file that the runner reads.

    Raises pickle's errors, for a lambda or a lock.
    """
    # Protocol 4: the job's Python may be older than the client's.
    return base64.b64encode(pickle.dumps(value, protocol=4)) + b"\n"


def unpacked(content: bytes) -> object:
    """Return the value of `packed`'s content, or of a plain pickle.

    Raises ValueError for other content.
    """
    # A plain pickle begins with 0x80, which is no letter of base64.
    if not content.startswith(b"\x80"):
        content = base64.b64decode(b"".join(content.split()), validate=True)
    return pickle.loads(content)


def read_packed(path: str) -> object:
    """Return the value in a file.

    Raises OSError, ValueError, and pickle's errors, for missing classes.
    """
    with open(path, "rb") as file:
        return unpacked(file.read())


def call_packed(content: bytes) -> object:
    """Call a function with its arguments, which are together in a pickle of their own: if it cannot
    be read, other calls still can.
    """
    function, args, kwargs = pickle.loads(content)
    return function(*args, **kwargs)


class CallEach:
    """Function that is called with several tuples of arguments in one task."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, each: Sequence[Sequence[Any]]) -> list[Any]:
        return [self.function(*args) for args in each]
