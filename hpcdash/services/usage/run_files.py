"""Runs on this machine's disk: a file for each week in which any ended, with the spans of it that
are known.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct, field

from hpcdash.domain.columns import as_array
from hpcdash.domain.runs import JOINED_BY, joined_runs
from hpcdash.domain.schema import RUNS
from hpcdash.domain.spans import Span
from hpcdash.domain.units import DAY, WEEK
from hpcdash.services.arrow_files import read_schema, read_table, write_table

_FORMAT, _COVERED, _ASKER, _SCHEDULER, _SEES_OTHERS = (
    b"hpcdash.format",
    b"hpcdash.covered",
    b"hpcdash.asker",
    b"hpcdash.scheduler",
    b"hpcdash.sees-others",
)
# Raised when the schema, or what its columns mean, changes: older files are then not read.
_FORMAT_VERSION = b"1"
# The first day of the epoch was a Thursday.
_BEFORE_MONDAY_SECONDS = 3 * DAY
_WEEK = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


class _Week(Struct):
    """The runs that ended in a week (from Monday, UTC), and what of the week is known.

    `tables` are those that are not in the week's file; they and the file may share some runs.
    """

    tables: list[pa.Table] = field(default_factory=list)
    covered: list[Span] = field(default_factory=list)
    # Whether all of that was queried while the cluster showed everyone's jobs.
    sees_others: bool = False
    has_file: bool = False
    is_new: bool = False


class RunFiles:
    """Stored runs of a scope on a cluster, as `asker` may see them.

    `scope` is 'mine', 'everyone' or 'user NAME'; `folder` is the cluster's, None if nothing is
    stored. Answers to another account, or from another scheduler, are not read ('' is unknown, and
    not compared); a damaged file counts as missing, and is rewritten.
    """

    def __init__(self, folder: Path | None, scope: str, *, asker: str, scheduler: str) -> None:
        self._folder = folder
        self._name = (
            scope
            if scope in ("mine", "everyone")
            else hashlib.sha256(scope.encode()).hexdigest()[:12]
        )
        self._asker = asker
        self._scheduler = scheduler
        self._sees_others = False
        self._weeks: dict[str, _Week] = {}

    def see(self, *, others: bool) -> None:
        """Note whether the cluster shows everyone's jobs now.

        If it does, spans that were queried while it did not become unknown.
        """
        self._sees_others = others
        for week in self._weeks.values():
            if others and not week.sees_others:
                week.covered, week.sees_others = [], True

    def load(self, span: Span | None) -> None:
        """Load the known weeks from the start of a span on (None: all) that are not loaded yet."""
        if self._folder is None:
            return
        since = "" if span is None else _week_name(span.since)
        for path in sorted(self._folder.glob(f"runs-{self._name}-*.arrow")):
            week = path.stem[-10:]
            if _WEEK.fullmatch(week) and week >= since and week not in self._weeks:
                self._weeks[week] = self._known(read_schema(path))

    def _known(self, schema: pa.Schema | None) -> _Week:
        """Return the known part of a file's week; empty if it was written for another scope."""
        metadata = (schema.metadata or {}) if schema is not None else {}
        requested = {
            _FORMAT: _FORMAT_VERSION,
            _ASKER: self._asker.encode(),
            _SCHEDULER: self._scheduler.encode(),
        }
        if schema is None or any(
            value and metadata.get(key) != value for key, value in requested.items()
        ):
            return _Week()
        if not schema.remove_metadata().equals(RUNS):
            return _Week()
        try:
            covered = [
                Span(int(since), int(until)) for since, until in json.loads(metadata[_COVERED])
            ]
        except (KeyError, TypeError, ValueError):
            return _Week()
        return _Week(covered=covered, sees_others=metadata.get(_SEES_OTHERS) == b"1", has_file=True)

    def _path(self, week: str) -> Path | None:
        return None if self._folder is None else self._folder / f"runs-{self._name}-{week}.arrow"

    def _tables(self, name: str, week: _Week, columns: Sequence[str]) -> list[pa.Table]:
        """A week's runs, what is newer first: of two alike it is the one that stays."""
        tables = [table.select(columns) for table in week.tables]
        if week.has_file and (path := self._path(name)) is not None:
            table = read_table(path, columns)
            if table is None:
                # It existed, and is missing or damaged: all but the part in memory is queried
                # again.
                week.covered, week.has_file = [], False
            else:
                tables.append(table.replace_schema_metadata(None).select(columns))
        return tables

    def save(self) -> None:
        """Write the weeks that changed, one after the other.

        What a disk would not have stays in memory.
        """
        for name, week in self._weeks.items():
            if not week.is_new:
                continue
            week.is_new = False
            table = joined_runs(
                [*self._tables(name, week, RUNS.names), RUNS.empty_table()]
            ).combine_chunks()
            covered = json.dumps([[span.since, span.until] for span in week.covered])
            metadata: dict[bytes, bytes | str] = {
                _FORMAT: _FORMAT_VERSION,
                _ASKER: self._asker,
                _SCHEDULER: self._scheduler,
                _COVERED: covered,
                _SEES_OTHERS: b"1" if week.sees_others else b"",
            }
            path = self._path(name)
            week.has_file = path is not None and write_table(path, table, metadata)
            week.tables = [] if week.has_file else [table]

    def add(self, runs: pa.Table, span: Span | None) -> None:
        """Take in runs; what ended in `span` is now known."""
        ends = as_array(runs["ends_at"]).cast(pa.int64())
        numbers = pc.divide(pc.add(ends, _BEFORE_MONDAY_SECONDS), WEEK)
        for number in pc.unique(numbers).drop_null().to_pylist():
            week = self._week(_week_name(number * WEEK - _BEFORE_MONDAY_SECONDS))
            # Newer rows come first: of two alike the first stays.
            week.tables.insert(0, runs.filter(pc.equal(numbers, number)))
            week.is_new = True
        for part in _split_weeks(span) if span is not None else ():
            week = self._week(_week_name(part.since))
            week.sees_others = week.sees_others and self._sees_others
            week.covered = _joined([*week.covered, part])
            week.is_new = True

    def _week(self, name: str) -> _Week:
        return self._weeks.setdefault(name, _Week(sees_others=self._sees_others))

    def missing(self, span: Span, also: Iterable[Span] = ()) -> list[Span]:
        """The parts of a span that are not known and not in `also`, oldest first."""
        gaps: list[Span] = []
        at = span.since
        for known in _joined(
            [*also, *(part for week in self._weeks.values() for part in week.covered)]
        ):
            if known.until <= at or known.since >= span.until:
                continue
            if known.since > at:
                gaps.append(Span(at, known.since))
            at = known.until
        if at < span.until:
            gaps.append(Span(at, span.until))
        return gaps

    def read(self, span: Span, columns: Sequence[str], also: Sequence[pa.Table] = ()) -> pa.Table:
        """The runs that ended in the weeks of a span and later, and those of `also`, as joined_runs
        has them.

        The columns are these, and those of JOINED_BY. What is gone from the disk by now is
        `missing` from then on.
        """
        since = _week_name(span.since)
        names = list(dict.fromkeys([*columns, *JOINED_BY]))
        weeks = sorted(self._weeks.items(), reverse=True)
        tables = [
            table
            for name, week in weeks
            if name >= since
            for table in self._tables(name, week, names)
        ]
        return joined_runs(
            [*tables, *(table.select(names) for table in (*also, RUNS.empty_table()))]
        )

    def release(self) -> None:
        """Forget what is known of weeks that are on the disk: it is looked up again when it is
        wanted.
        """
        self._weeks = {
            name: week for name, week in self._weeks.items() if not week.has_file or week.tables
        }


def _week_name(epoch: int) -> str:
    """The Monday of the week that a moment is in."""
    return (
        f"{datetime.fromtimestamp(epoch - (epoch + _BEFORE_MONDAY_SECONDS) % WEEK, UTC):%Y-%m-%d}"
    )


def _split_weeks(span: Span) -> list[Span]:
    """The parts of a span in each week."""
    parts = []
    since = span.since
    while since < span.until:
        until = min(span.until, since + WEEK - (since + _BEFORE_MONDAY_SECONDS) % WEEK)
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
