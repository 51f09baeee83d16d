"""Conversion of squeue's and sinfo's bytes to Arrow columns; no field of a row can forge another.

Fields that only Slurm itself fills come first, one unit separator after each; the last of them and
every field that a person may fill end with the poll's random token. Split at the token, the k-th
piece of each row is therefore one column, whatever bytes it holds; the joined first pieces are CSV,
a row a line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.csv as pa_csv
from msgspec import Struct

from hpcdash.backends.queries import decoded, row_excerpt
from hpcdash.domain.columns import text_column

SEPARATOR = "\x1f"
# In a thread, each call on a chunk holds the interpreter for about a millisecond at this size.
_CHUNK_BYTES = 1 << 20
# Slurm's output for an absent value.
NOTHING = ["N/A", "(null)", "Unknown", "None", "NONE", "n/a", "UNKNOWN", "INVALID", "NOT_SET", ""]


class Layout(Struct, frozen=True):
    """The fields of a row in `-O` names: `plain` are Slurm's own, `hostile` may hold any byte."""

    plain: tuple[str, ...]
    hostile: tuple[str, ...]

    @property
    def with_cluster(self) -> Layout:
        """The layout of rows of several clusters, each of which names its own."""
        return Layout((*self.plain, "cluster"), self.hostile)

    def option(self, token: str) -> str:
        """The argument of `-O` that prints such rows: untruncated fields, each with its own
        ending.
        """
        plain = [f"{name}:{SEPARATOR}" for name in self.plain[:-1]]
        ended_by_token = [f"{name}:{token}" for name in (self.plain[-1], *self.hostile)]
        return ",".join([*plain, *ended_by_token])


class Columns(Struct, frozen=True):
    """Text columns named as in the layout, and rejected rows.

    Plain ones are null without a value.
    """

    table: pa.Table
    rejected: tuple[str, ...]


def _pieces(raw: bytes, token: bytes, per_row: int) -> Iterator[tuple[list[bytes], bytes]]:
    """Yield whole rows as flat lists of pieces, chunk by chunk.

    The last list is empty and comes with the remaining bytes.
    """
    parts: list[bytes] = []
    start = 0
    while (found := raw.find(token, start)) >= 0:
        # The chunk ends with a token: a field may be longer than a chunk.
        end = max(found, raw.rfind(token, start, start + _CHUNK_BYTES))
        parts += raw[start:end].split(token)
        start = end + len(token)
        whole = len(parts) // per_row * per_row
        if whole:
            yield parts[:whole], b""
            parts = parts[whole:]
    yield [], token.join((*parts, raw[start:]))


def _valid_utf8(raw: bytes) -> bytes:
    if raw.isascii():
        return raw
    return decoded(raw).encode()


def read_csv(
    lines: bytes, names: Sequence[str], delimiter: str, nulls: Sequence[str] = ()
) -> tuple[pa.Table, bool]:
    """Return lines of valid UTF-8 as text columns, and whether each had the right number of fields.

    A text among `nulls` is null.
    """
    is_whole = True

    def refuse(_row: pa_csv.InvalidRow) -> str:
        nonlocal is_whole
        is_whole = False
        return "skip"

    table = pa_csv.read_csv(
        pa.BufferReader(lines),
        read_options=pa_csv.ReadOptions(
            column_names=names,
            use_threads=False,
            block_size=max(len(lines) + 1, 1 << 16),
            encoding="utf8",
        ),
        parse_options=pa_csv.ParseOptions(
            delimiter=delimiter,
            quote_char=False,
            ignore_empty_lines=False,
            invalid_row_handler=refuse,
        ),
        convert_options=pa_csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            null_values=list(nulls),
            strings_can_be_null=bool(nulls),
            check_utf8=False,
        ),
    )
    return table, is_whole


def _good_lines(
    firsts: list[bytes], expected_separators: int
) -> tuple[list[int], list[bytes], list[str]]:
    """Return the indices of rows with all plain fields, their lines, and the rejected text."""
    remaining: list[int] = []
    lines: list[bytes] = []
    refused: list[str] = []
    for index, first in enumerate(firsts):
        # Output of a wrapper or a warning before a row ends with a newline; no plain field has one.
        noise, _, line = first.rpartition(b"\n")
        if noise and not noise.isspace():
            refused.append(row_excerpt(noise))
        if line.count(SEPARATOR.encode()) == expected_separators and b"\r" not in line:
            remaining.append(index)
            lines.append(line)
        else:
            refused.append(row_excerpt(line) or "a row without its first fields")
    return remaining, lines, refused


def _chunk(parts: list[bytes], layout: Layout) -> tuple[pa.Table | None, list[str]]:
    per_row = len(layout.hostile) + 1
    firsts = parts[0::per_row]
    hostile = [parts[1 + k :: per_row] for k in range(len(layout.hostile))]
    refused: list[str] = []
    clean = False
    lines = _valid_utf8(b"".join(firsts)).lstrip(b"\n")
    # One row whose plain part is empty is no CSV to Arrow.
    if lines and lines.count(b"\n") == len(firsts) - 1 and b"\r" not in lines:
        plain, clean = read_csv(lines, layout.plain, SEPARATOR, NOTHING)
    if not clean or plain.num_rows != len(firsts):
        remaining, good, refused = _good_lines(firsts, len(layout.plain) - 1)
        if not remaining:
            return None, refused
        rows = _valid_utf8(b"\n".join(good))
        plain, _ = read_csv(rows, layout.plain, SEPARATOR, NOTHING)
        hostile = [[pieces[index] for index in remaining] for pieces in hostile]
    for name, pieces in zip(layout.hostile, hostile, strict=True):
        plain = plain.append_column(name, text_column(pieces))
    return plain, refused


def read_rows(raw: bytes, token: str, layout: Layout) -> Columns | None:
    """All rows of `raw`; None when it holds text but no row at all (it is something else)."""
    separator = token.encode()
    chunks: list[pa.Table] = []
    rejected: list[str] = []
    left = b""
    for parts, rest in _pieces(raw, separator, len(layout.hostile) + 1):
        left = rest
        if parts:
            table, refused = _chunk(parts, layout)
            rejected.extend(refused)
            if table is not None:
                chunks.append(table)
    # Other output may be hundreds of megabytes: it is not copied.
    if left and not left.isspace():
        if not chunks and not rejected and separator not in left:
            return None
        rejected.append(f"the output ended in the middle of a row: {row_excerpt(left, separator)}")
    names = (*layout.plain, *layout.hostile)
    schema = pa.schema([(name, pa.string()) for name in names])
    return Columns(pa.concat_tables(chunks) if chunks else schema.empty_table(), tuple(rejected))
