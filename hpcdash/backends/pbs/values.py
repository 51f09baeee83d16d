"""Times, sizes and places of PBS and Torque, as Arrow columns of numbers and words.

Null stays null, and what cannot be read becomes null.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc

from hpcdash.backends.queries import Native
from hpcdash.domain.columns import (
    MOST,
    Column,
    as_array,
    dictionary_text,
    digits,
    per_distinct,
    utc_instants,
    whole_numbers,
)
from hpcdash.domain.nodelist import compress

# PBS prints the byte b as ^ and b + 64 wherever it is not printable, so all of UTF-8 that is not
# ASCII comes in pairs: a lead byte C2..F4 as 02..34, each byte that follows it as C0..FF.
_SHOWN_UTF8 = re.compile(
    rb"\^[\x02-\x1f]\^[\xc0-\xff]|\^[\x20-\x2f]\^[\xc0-\xff]\^[\xc0-\xff]"
    rb"|\^[\x30-\x34]\^[\xc0-\xff]\^[\xc0-\xff]\^[\xc0-\xff]"
)


def restored(raw: bytes) -> bytes:
    """With the UTF-8 that PBS wrote in pairs of ^ and a byte; only what such pairs can mean is
    changed.
    """
    return raw if raw.isascii() else _SHOWN_UTF8.sub(_utf8, raw)


def _utf8(found: re.Match[bytes]) -> bytes:
    selected = bytes((byte - 64) & 0xFF for byte in found[0][1::2])
    try:
        selected.decode()
    except UnicodeDecodeError:
        return found[0]
    return selected


def unescaped(value: bytes) -> bytes:
    """A value of qstat's DSV as PBS keeps it: its newlines and backslashes again.

    pbsnodes escapes nothing.
    """
    return _ESCAPED.sub(lambda found: _MEANT[found[1]], value)


# As ctime() writes it: Sat Nov 21 04:01:41 2026
_CTIME = "%a %b %d %H:%M:%S %Y"
_SIGNED = re.compile(r"([+-]?)([0-9]{1,19})")
# [days:]hours:minutes:seconds, the front ones left out, perhaps with a fraction.
_CLOCK = re.compile(r"([0-9]{1,12}(?::[0-9]{1,9}){0,3})(?:\.[0-9]{0,9})?")
_SIZE = re.compile(r"([0-9]{1,19})(\.[0-9]{1,18})?[ ]?([kmgtpe]?)([bw]?)", re.IGNORECASE)
_SHIFT = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40, "p": 50, "e": 60}
# PBS's word, in which sizes may be given (8gw), has 8 bytes.
_WORD_SHIFT = 3
# What qstat's DSV writes for a backslash, a newline and a form feed; a comma's backslash is
# Variable_List's own.
_ESCAPED = re.compile(rb"\\([\\nf])")
_MEANT = {b"\\": b"\\", b"n": b"\n", b"f": b"\f"}
# What a vnode adds to its host's name: gpu01[0]
_VNODE = re.compile(r"\[[^\[\]]*\]$")


def integers(column: Column) -> pa.Array:
    """Whole numbers, perhaps negative."""
    return as_array(whole_numbers(column, _whole_number))


def _whole_number(text: str) -> int | None:
    found = _SIGNED.fullmatch(text)
    number = digits(found[2]) if found else None
    return number if number is None or found is None or found[1] != "-" else -number


def instants(column: Column) -> pa.Array:
    """Instants: `Sat Nov 21 04:01:41 2026`, which is UTC as we ask for it, or epoch seconds; 0 is
    no time.
    """
    texts = as_array(column)
    read = pc.strptime(texts, format=_CTIME, unit="s", error_is_null=True)
    if read.null_count > texts.null_count:
        read = pc.coalesce(read.cast(pa.int64()), integers(texts))
    return utc_instants(read.cast(pa.int64()))


def ctime(text: str) -> datetime | None:
    """Return an instant that ctime() wrote, in UTC; None for what is none."""
    try:
        return datetime.strptime(text.strip(), _CTIME).replace(tzinfo=UTC)
    except ValueError:
        return None


def duration_seconds(text: str) -> int | None:
    """'168:00:00', '02:30' (minutes first), '30' or '1:00:00:00' (a day); None for what is no
    time.
    """
    found = _CLOCK.fullmatch(text)
    if found is None:
        return None
    parts = [int(part) for part in found[1].split(":")]
    days = parts.pop(0) if len(parts) == 4 else 0
    seconds = 0
    for part in parts:
        seconds = seconds * 60 + part
    seconds += 86400 * days
    return seconds if seconds <= MOST else None


def format_walltime(seconds: int) -> str:
    """`26:00:00`: hours, minutes and seconds, as qsub takes a limit; it has no days."""
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def durations(column: Column) -> pa.Array:
    """Seconds, as duration_seconds."""
    return per_distinct(column, duration_seconds, pa.int64())


def size_bytes(text: str) -> int | None:
    """'8gb', '7128kb', '0b', '100' (bytes) or '2gw' (words); units are binary.

    None for what is no size.
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        return None
    number, fraction, unit, kind = found.groups()
    shift = _SHIFT[unit.lower()] + (_WORD_SHIFT if kind.lower() == "w" else 0)
    size = int(float(number + fraction) * (1 << shift)) if fraction else int(number) << shift
    return size if size <= MOST else None


def sizes(column: Column) -> pa.Array:
    """Bytes, as size_bytes."""
    return per_distinct(column, size_bytes, pa.int64())


def entity_limits(limits: str) -> list[tuple[str, str, str]]:
    """('u', 'PBS_GENERIC', '3') of `[u:PBS_GENERIC=3],[g:"my group"=10],[o:PBS_ALL=100]`."""
    found = []
    for part in limits.split("]"):
        kind, _, rest = part.strip(" ,[").partition(":")
        name, is_limit, amount = rest.rpartition("=")
        if is_limit and kind in ("u", "g", "p", "o"):
            found.append((kind, name.strip("\"' "), amount.strip()))
    return found


def resources_under(native: Native, attribute: str) -> dict[str, str]:
    """Return the resources under an attribute: {'ncpus': '4'} of resources_max.ncpus=4."""
    start = f"{attribute}."
    return {
        name.removeprefix(start): value for name, value in native.items() if name.startswith(start)
    }


def parse_hosts(places: str) -> list[str]:
    """The hosts of an exec_host (`cn01/0*4+cn02/1`) or an exec_vnode
    (`(cn01:ncpus=4)+(gpu01[0]:ncpus=1)`).

    Each once, in order; the host of a vnode is its name without the brackets.
    """
    hosts: dict[str, None] = {}
    for place in places.split("+"):
        name = place.strip().strip("()").partition("/")[0].partition(":")[0]
        name = _VNODE.sub("", name)
        if name:
            hosts[name] = None
    return list(hosts)


def exec_hosts(hosts: Column) -> tuple[pa.Array, pa.Array]:
    """(node lists as domain.nodelist writes them, how many nodes) of the jobs' exec_host."""
    encoded = dictionary_text(hosts)
    named = [None if text is None else parse_hosts(text) for text in encoded.dictionary.to_pylist()]
    lists = pa.array([compress(names) if names else None for names in named], pa.string())
    counts = pa.array([len(names) if names else None for names in named], pa.int64())
    return lists.take(encoded.indices), counts.take(encoded.indices)
