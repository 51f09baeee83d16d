"""How PBS shows bytes that are not printable, undone where it can be."""

from __future__ import annotations

import re

# PBS prints the byte b as ^ and b + 64 wherever it is not printable, so all of UTF-8 that is not ASCII comes in pairs:
# a lead byte C2..F4 as 02..34, each byte that follows it as C0..FF.
_SHOWN_UTF8 = re.compile(
    rb"\^[\x02-\x1f]\^[\xc0-\xff]|\^[\x20-\x2f]\^[\xc0-\xff]\^[\xc0-\xff]"
    rb"|\^[\x30-\x34]\^[\xc0-\xff]\^[\xc0-\xff]\^[\xc0-\xff]"
)


def restored(raw: bytes) -> bytes:
    """With the UTF-8 that PBS wrote in pairs of ^ and a byte; only what such pairs can mean is changed."""
    return raw if raw.isascii() else _SHOWN_UTF8.sub(_utf8, raw)


def _utf8(found: re.Match[bytes]) -> bytes:
    meant = bytes((byte - 64) & 0xFF for byte in found[0][1::2])
    try:
        meant.decode()
    except UnicodeDecodeError:
        return found[0]
    return meant


def as_text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
