"""From the bytes of `qstat -f` and `pbsnodes` to text columns; no value can forge another.

Knows no attribute's meaning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa


class Form(StrEnum):
    """How the records are written."""

    # A line a record, NAME=VALUE fields, a random token between them (`-F dsv -D TOKEN`).
    DSV = "dsv"
    # A head line, then `    NAME = VALUE` lines; long values go on after a newline and a tab.
    TEXT = "text"
    # Torque's <Data><Job>…</Job></Data>.
    XML = "xml"


@dataclass(frozen=True, slots=True)
class Records:
    """Text columns: `id`, then the attributes asked for, null where a record has none; and what was rejected, in words.

    A resource is an attribute of its own: Resource_List.walltime.
    """

    table: pa.Table
    rejected: tuple[str, ...]


def read_records(raw: bytes, form: Form, wanted: Sequence[str], *, token: str = "") -> Records | None:
    """All records of `raw`; None where it holds text but no record at all (it is something else).

    Bytes that are no UTF-8 become U+FFFD. What DSV writes for newlines, and the carets it writes for control bytes,
    stay as they are.
    """
    raise NotImplementedError


def read_attributes(raw: bytes, form: Form, *, token: str = "") -> list[tuple[str, Mapping[str, str]]]:
    """(id, every attribute in the order it was printed) of each record: for details of few of them."""
    raise NotImplementedError
