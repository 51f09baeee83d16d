"""Values between the client and a job as files: base64 pickles going in, a plain pickle coming out.

A pickle runs code when it is read: read only what was written by oneself.
"""

from __future__ import annotations

import base64
import pickle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Sequence


def packed(value: object) -> bytes:
    """A value as a base64 pickle, for a file that the runner reads.

    Raises what pickle raises for a lambda or a lock.

    Protocol 4, which every Python from 3.4 on reads: the job's may be older than the client's.
    """
    return base64.b64encode(pickle.dumps(value, protocol=4)) + b"\n"


def unpacked(content: bytes) -> object:
    """Return the object that `packed` packed; a plain pickle is read too.

    Raises ValueError for other content.
    """
    # A plain pickle begins with 0x80, which is no letter of base64.
    if not content.startswith(b"\x80"):
        content = base64.b64decode(b"".join(content.split()), validate=True)
    return pickle.loads(content)


def read_packed(path: str) -> object:
    """The value in a file.

    Raises OSError, ValueError, and what a pickle raises whose classes are not there.
    """
    with open(path, "rb") as file:
        return unpacked(file.read())


def call_packed(content: bytes) -> object:
    """Calls a function with its arguments, all three in one pickle: one that cannot be read takes
    no other with it.
    """
    function, args, kwargs = pickle.loads(content)
    return function(*args, **kwargs)


class CallEach:
    """Calls a function for several tuples of arguments: so many calls in one task."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, each: Sequence[Sequence[Any]]) -> list[Any]:
        return [self.function(*args) for args in each]
