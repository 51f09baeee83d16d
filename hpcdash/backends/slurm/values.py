"""Slurm's times, sizes, TRES and exit codes as Arrow columns of numbers.

Each distinct text of a column is parsed once, not once per row.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa

from hpcdash.backends.queries import row_excerpt
from hpcdash.domain.columns import (
    MOST,
    digits,
    pairs_per_distinct,
    per_distinct,
    utc_instants,
    whole_numbers,
)
from hpcdash.domain.rfc3339 import format_utc
from hpcdash.domain.units import parse_memory

_MEMORY = re.compile(r"(?:^|,)mem=([^,]*)")
_CPUS = re.compile(r"(?:^|,)cpu=([0-9]{1,18})(?=,|$)")
_GPUS = re.compile(r"(?:^|,)gres/gpu=([^,]*)")
_GPU_TYPED = re.compile(r"(?:^|,)gres/gpu:[^=,]+=([0-9]{1,9})(?=,|$)")
# Parts of a GPU; a job has those of one GPU on each of its nodes.
_GPU_PARTS = re.compile(r"(?:^|,)gres/(?:shard|mps)(?::[^=,]+)?=0*[1-9]")
_NODES = re.compile(r"(?:^|,)node=([0-9]{1,9})(?=,|$)")
# 'gres:gpu', 'gres:gpu:2', 'gres:gpu:a100:2', 'gres/gpu=2', 'gres/gpu:a100=2', 'gres:shard:3'
_REQUESTED = re.compile(r"(?:^|,)gres[:/](gpu|shard|mps)((?::[^:=,]*)*)(?:=([0-9]{1,9}))?(?=,|$)")
_COUNT = re.compile(r"[0-9]{1,9}")
_DECIMAL = re.compile(r"[0-9]{1,18}(?:\.[0-9]{0,18})?")
_CLOCK = re.compile(r"(?:([0-9]{1,9})-)?([0-9]{1,9}(?::[0-9]{1,9}){0,2})")
_EXIT = re.compile(r"([0-9]{1,10})(?::([0-9]{1,10}))?")
# Until the year 2286.
_EPOCH_DIGITS = 10
# The eighth bit means that a core was dumped.
_SIGNAL_MASK = 0x7F


def integers(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as whole numbers; null where a text is none.

    Falls back to one parse per distinct text when any row is odd ('1.5K').
    """
    return whole_numbers(column, whole_number)


def whole_number(text: str) -> int | None:
    """'12', '1.5K' (Slurm counts in 1024s) or a range '2-4' (its least); None for anything else."""
    head = text.split("-")[0]
    factor = 1
    if head[-1:] in "KM" and head:
        factor = 1024 if head[-1] == "K" else 1024 * 1024
        head = head[:-1]
    if not _DECIMAL.fullmatch(head):
        return None
    number = int(float(head) * factor) if "." in head else int(head) * factor
    return number if number <= MOST else None


def instants(column: pa.ChunkedArray) -> pa.Array:
    """Epoch seconds as UTC timestamps; 0 and negative stand for no time, and so does one past the
    year 9999.
    """
    return utc_instants(integers(column))


def duration_seconds(text: str) -> int | None:
    """'[D-]HH:MM:SS', 'MM:SS'; None for UNLIMITED, infinite, Partition_Limit and what is no
    time.
    """
    found = _CLOCK.fullmatch(text)
    if found is None:
        return None
    seconds = 0
    for part in found.group(2).split(":"):
        seconds = seconds * 60 + int(part)
    return seconds + 86400 * int(found.group(1) or 0)


def durations(column: pa.ChunkedArray) -> pa.Array:
    return per_distinct(column, duration_seconds, pa.int64())


def tres(text: str) -> tuple[int | None, int | None]:
    """(GPUs, memory in bytes) of 'cpu=4,mem=4G,node=1,gres/gpu=2'.

    GPUs are the untyped count, else the sum of the typed ones, else one a node for shards or MPS,
    and None where none is named; memory's units are binary, a bare number is MiB, and no memory is
    None.
    """
    found = _MEMORY.search(text)
    memory = memory_bytes(found[1], bare_unit_bytes=1 << 20) if found else None
    if "gres/" not in text:
        return None, memory
    counted = _GPUS.search(text)
    typed = _GPU_TYPED.findall(text)
    gpus = digits(counted[1]) if counted else None
    if counted is None and typed:
        gpus = sum(map(int, typed))
    if not gpus and _GPU_PARTS.search(text):
        nodes = _NODES.search(text)
        gpus = int(nodes[1]) if nodes else 1
    return gpus, memory


def requested_gpus(text: str) -> int | None:
    """GPUs of a tres-per-… field, such as 'gres:gpu:a100:2'; one for shards or MPS, and None where
    it names none.
    """
    found = _REQUESTED.findall(text)
    gpus = [count or label.rpartition(":")[2] for kind, label, count in found if kind == "gpu"]
    if gpus:
        return sum(int(count) if _COUNT.fullmatch(count) else 1 for count in gpus)
    return 1 if found else None


def memory_bytes(text: str, *, bare_unit_bytes: int = 1) -> int | None:
    """Bytes of '367864K', '1.00M', '31936'; None for '' and what is no amount of memory."""
    try:
        size = parse_memory(text, bare_unit_bytes=bare_unit_bytes)
    except ValueError:
        return None
    return size if size <= MOST else None


def tres_cpus(text: str) -> int | None:
    """CPUs of 'cpu=4,mem=4G'; None where none are named."""
    found = _CPUS.search(text)
    return int(found[1]) if found else None


def tres_columns(column: pa.ChunkedArray) -> tuple[pa.Array, pa.Array]:
    """(GPUs, memory in bytes) of a TRES column."""
    return pairs_per_distinct(column, tres)


def pairs(text: str) -> dict[str, str]:
    """Return the KEY=VALUE words of scontrol by key; the first of a repeated key."""
    found: dict[str, str] = {}
    for word in text.split():
        key, is_pair, value = word.partition("=")
        if is_pair:
            found.setdefault(key, value)
    return found


def piped_rows(text: str, fields: Sequence[str]) -> tuple[list[dict[str, str]], tuple[str, ...]]:
    """(rows by field, rejected lines) of a command with -P, which takes no separator but `|`.

    A line with another number of fields is rejected.
    """
    lines = [(line, line.split("|")) for line in text.split("\n") if line.strip()]
    rows = [dict(zip(fields, row, strict=True)) for _, row in lines if len(row) == len(fields)]
    rejected = [row_excerpt(line.encode()) for line, row in lines if len(row) != len(fields)]
    return rows, tuple(rejected)


def account_parents(accounts: Iterable[str], parents: Mapping[str, str]) -> list[str]:
    """The accounts and all above them, the nearest first, each once."""
    found: dict[str, None] = {}
    for account in accounts:
        while account and account not in found:
            found[account] = None
            account = parents.get(account, "")
    return list(found)


def wait_status(text: str) -> tuple[int, int] | None:
    """(exit code, signal) from a raw wait status ('768': exit 3) or from Slurm's own
    'code:signal'.
    """
    found = _EXIT.fullmatch(text)
    if found is None:
        return None
    if found.group(2) is not None:
        return int(found.group(1)), int(found.group(2))
    status = int(found.group(1))
    number = status & _SIGNAL_MASK
    return (0, number) if number else (status >> 8 & 0xFF, 0)


# Slurm's fields that hold an instant, of scontrol and of sacct; others ending so hold durations.
_INSTANT_FIELDS = frozenset(
    {
        "AccrueTime",
        "Deadline",
        "EligibleTime",
        "EndTime",
        "LastSchedEval",
        "PreemptEligibleTime",
        "PreemptTime",
        "StartTime",
        "SubmitTime",
        "SuspendTime",
        "Eligible",
        "End",
        "Start",
        "Submit",
    }
)


def readable_instant(field: str, text: str) -> str:
    """Return a field's text for people: epoch seconds as RFC 3339 in UTC, all else unchanged."""
    if (
        field in _INSTANT_FIELDS
        and text.isascii()
        and text.isdigit()
        and len(text) <= _EPOCH_DIGITS
    ):
        return format_utc(int(text))
    return text
