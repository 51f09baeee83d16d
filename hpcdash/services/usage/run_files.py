"""Runs on this machine's disk: a file a month in which they ended, with the spans of it that are known."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct, field

from hpcdash.domain.columns import as_array
from hpcdash.domain.runs import joined_runs
from hpcdash.domain.schema import RUNS
from hpcdash.domain.spans import Span
from hpcdash.services.arrow_files import read_table, write_table

_FORMAT, _COVERED, _ASKER, _SCHEDULER, _SEES_OTHERS = (
    b"hpcdash.format",
    b"hpcdash.covered",
    b"hpcdash.asker",
    b"hpcdash.scheduler",
    b"hpcdash.sees-others",
)
# Raised when the schema, or what its columns mean, changes: older files are then not read.
_FORMAT_VERSION = b"1"
_MONTH = re.compile(r"([0-9]{4})-([0-9]{2})")


class _Month(Struct):
    """The runs that ended in a month (UTC), in tables that may share some, and what of the month is known."""

    tables: list[pa.Table] = field(default_factory=list)
    covered: list[Span] = field(default_factory=list)
    # Whether all of that was asked for when the cluster hid nobody's jobs.
    sees_others: bool = False
    is_new: bool = False
    is_kept: bool = False


class RunFiles:
    """What is known of the runs of a scope on a cluster, as `asker` may see them.

    `scope` is 'mine', 'everyone' or 'user NAME'; `folder` is the cluster's, None where nothing is kept. What another
    account was told, or by another scheduler, is not read ('' is not known, and not compared); a file that is damaged
    is as if it were not there, and written anew.
    """

    def __init__(self, folder: Path | None, scope: str, *, asker: str, scheduler: str) -> None:
        self._folder = folder
        self._name = scope if scope in ("mine", "everyone") else hashlib.sha256(scope.encode()).hexdigest()[:12]
        self._asker = asker
        self._scheduler = scheduler
        self._sees_others = False
        self._months: dict[str, _Month] = {}

    def see(self, *, others: bool) -> None:
        """Whether the cluster shows everyone's jobs now: what was asked for while it did not is not known then."""
        self._sees_others = others
        for month in self._months.values():
            if others and not month.sees_others:
                month.covered, month.sees_others = [], True

    def load(self, span: Span | None) -> None:
        """Read the files of the months from the beginning of a span on (None: all) that were not read yet."""
        if self._folder is None:
            return
        since = "" if span is None else _month_of(span.since)
        for path in sorted(self._folder.glob(f"runs-{self._name}-*.arrow")):
            month = path.stem[-7:]
            if _MONTH.fullmatch(month) and month >= since and month not in self._months:
                self._months[month] = self._read(path)

    def _read(self, path: Path) -> _Month:
        table = read_table(path)
        metadata = (table.schema.metadata or {}) if table is not None else {}
        wanted = {_FORMAT: _FORMAT_VERSION, _ASKER: self._asker.encode(), _SCHEDULER: self._scheduler.encode()}
        if table is None or any(value and metadata.get(key) != value for key, value in wanted.items()):
            return _Month()
        table = table.replace_schema_metadata(None)
        if not table.schema.equals(RUNS):
            return _Month()
        try:
            covered = [Span(int(since), int(until)) for since, until in json.loads(metadata[_COVERED])]
        except (KeyError, TypeError, ValueError):
            return _Month()
        return _Month([table], covered, sees_others=metadata.get(_SEES_OTHERS) == b"1", is_kept=True)

    def save(self) -> None:
        """Write the months that changed. A disk that would not have them leaves them to be asked for again."""
        for name, month in self._months.items():
            if not month.is_new:
                continue
            month.tables = [joined_runs(month.tables)]
            month.is_new = False
            if self._folder is not None:
                covered = json.dumps([[span.since, span.until] for span in month.covered])
                metadata: dict[bytes, bytes | str] = {
                    _FORMAT: _FORMAT_VERSION,
                    _ASKER: self._asker,
                    _SCHEDULER: self._scheduler,
                    _COVERED: covered,
                    _SEES_OTHERS: b"1" if month.sees_others else b"",
                }
                path = self._folder / f"runs-{self._name}-{name}.arrow"
                month.is_kept = write_table(path, month.tables[0], metadata)

    def add(self, runs: pa.Table, span: Span | None) -> None:
        """Take in runs; what ended in `span` is now known."""
        ends = as_array(runs["ends_at"])
        names = pc.strftime(ends.cast(pa.timestamp("s")), "%Y-%m").dictionary_encode()
        for name in names.dictionary.to_pylist():
            month = self._month(name)
            # What is newer comes first: it is the one that stays of two alike.
            month.tables.insert(0, runs.filter(pc.equal(names.cast(pa.string()), name)))
            month.is_new, month.is_kept = True, False
        for part in _months_of(span) if span is not None else ():
            month = self._month(_month_of(part.since))
            month.sees_others = month.sees_others and self._sees_others
            month.covered = _joined([*month.covered, part])
            month.is_new, month.is_kept = True, False

    def _month(self, name: str) -> _Month:
        return self._months.setdefault(name, _Month(sees_others=self._sees_others))

    def missing(self, span: Span, also: Iterable[Span] = ()) -> list[Span]:
        """The parts of a span that are not known and not in `also`, oldest first."""
        gaps: list[Span] = []
        at = span.since
        for known in _joined([*also, *(part for month in self._months.values() for part in month.covered)]):
            if known.until <= at or known.since >= span.until:
                continue
            if known.since > at:
                gaps.append(Span(at, known.since))
            at = known.until
        if at < span.until:
            gaps.append(Span(at, span.until))
        return gaps

    def tables(self, span: Span | None = None) -> list[pa.Table]:
        """The runs that ended in the months of a span and later, the newest month first; tables may share some."""
        since = "" if span is None else _month_of(span.since)
        months = sorted(self._months.items(), reverse=True)
        return [table for name, month in months if name >= since for table in month.tables]

    def release(self) -> None:
        """Forget what is on the disk: it is read again when it is wanted."""
        self._months = {name: month for name, month in self._months.items() if not month.is_kept}


def _month_of(epoch: int) -> str:
    return f"{datetime.fromtimestamp(epoch, UTC):%Y-%m}"


def _months_of(span: Span) -> list[Span]:
    """The parts of a span in each month (UTC)."""
    parts = []
    since = span.since
    while since < span.until:
        begin = datetime.fromtimestamp(since, UTC)
        year, month = (begin.year, begin.month + 1) if begin.month < 12 else (begin.year + 1, 1)
        until = min(span.until, int(datetime(year, month, 1, tzinfo=UTC).timestamp()))
        parts.append(Span(since, until))
        since = until
    return parts


def _joined(spans: Iterable[Span]) -> list[Span]:
    """The same, in order, where those that meet are one."""
    joined: list[Span] = []
    for span in sorted(spans, key=lambda span: span.since):
        if joined and span.since <= joined[-1].until:
            joined[-1] = Span(joined[-1].since, max(joined[-1].until, span.until))
        else:
            joined.append(span)
    return joined
