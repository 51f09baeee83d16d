"""The queue: one qstat for everyone's jobs, narrowed on the login node, read into the columns of domain.schema.JOBS."""

from __future__ import annotations

from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from hpcdash.backends.pbs import job_columns
from hpcdash.backends.pbs.arrays import spread
from hpcdash.backends.pbs.dialects import Dialect
from hpcdash.backends.pbs.listing import Listing, Want, is_asked, listing, read_listing
from hpcdash.backends.pbs.records import Form
from hpcdash.backends.queries import Answer, JobScope, ParsedTable, Query
from hpcdash.domain.columns import as_array, row_numbers
from hpcdash.domain.states import ENDED
from hpcdash.errors import NoSuchJob

# How long ago a job may have ended that a scope with `ended` is to show.
RECENT_SECONDS = 3600
QUEUE_LIMIT_SECONDS = 60.0
_GOOD_ID = r"^[0-9]{1,12}(\[[0-9,:-]*\])?(\.[A-Za-z0-9._:-]*)?$"


def jobs_query(dialect: Dialect, scope: JobScope) -> Query[ParsedTable]:
    """qstat for a scope, after qselect where it is one person's: who has no jobs does not cost the server a list."""
    want = Want.NAMED if scope.job_ids else Want.RECENT if scope.ended else Want.NOW
    question = listing(dialect, want, scope.user, RECENT_SECONDS if want is Want.RECENT else 0, scope.job_ids)
    parse = partial(parse_jobs, question=question, dialect=dialect, want=want)
    return Query(question.argv, parse, limit_seconds=QUEUE_LIMIT_SECONDS, command=question.command)


def parse_jobs(answer: Answer, *, question: Listing, dialect: Dialect, want: Want) -> ParsedTable:
    """Rows of domain.schema.JOBS; raises what the answer's failure stands for, NoSuchJob where none was found by id."""
    parsed, clock_epoch_seconds = read_jobs(answer, question, dialect)
    table = parsed.table
    if want is Want.NOW:
        table = table.filter(pc.invert(is_ended(table)))
    elif want is Want.RECENT:
        # One that moved to another server is neither in this queue nor has it ended.
        has_moved = pc.equal(as_array(table["native_state"]).cast(pa.string()), "M")
        is_old = pc.and_(is_ended(table), ended_before(table, clock_epoch_seconds - RECENT_SECONDS))
        table = table.filter(pc.invert(pc.or_(pc.fill_null(has_moved, False), is_old)))
    if question.job_ids and not table.num_rows and not parsed.rejected:
        raise NoSuchJob(
            "PBS does not know this job (any more)",
            "Finished jobs: `hpcdash history`, or key 4 in the app.",
            argv=question.command,
            status=answer.status,
        )
    return ParsedTable(table, parsed.rejected)


def is_ended(table: pa.Table) -> pa.Array:
    """Which rows of domain.schema.JOBS hold a job that ended."""
    return pc.is_in(as_array(table["state"]).cast(pa.string()), value_set=pa.array(sorted(ENDED), pa.string()))


def ended_before(table: pa.Table, epoch_seconds: int) -> pa.Array:
    """Which rows have an end before an instant; one whose end is not told has none."""
    return pc.fill_null(pc.less(as_array(table["ends_at"]).cast(pa.int64()), epoch_seconds), False)


def read_jobs(answer: Answer, question: Listing, dialect: Dialect) -> tuple[ParsedTable, int]:
    """All jobs of an answer that were asked for, living or not; and the login node's clock, in epoch seconds."""
    frame, places, rejected, clock_epoch_seconds = _read_frame(answer, question, dialect)
    frame, places = spread(frame, places)
    keys = pa.table({"place": places, "task": frame["_task"]})
    order = pc.sort_indices(keys, sort_keys=[("place", "ascending"), ("task", "ascending")])
    table = job_columns.in_schema(frame.take(order), dialect)
    return ParsedTable(_asked_for(table, question), rejected), clock_epoch_seconds


def _read_frame(answer: Answer, question: Listing, dialect: Dialect) -> tuple[pa.Table, pa.Array, tuple[str, ...], int]:
    """(a row a record that is shown, the place of each, what was rejected, the clock); the texts end with this call."""
    listed = read_listing(answer, question, job_columns.WANTED)
    raw, rejected = _good_ids(listed.records.table)
    raw, places = _one_a_job(raw)
    if listed.owner and question.form is not Form.DSV:
        is_own = pc.fill_null(pc.starts_with(as_array(raw["Job_Owner"]), f"{listed.owner}@"), False)
        raw, places = raw.filter(is_own), places.filter(is_own)
    frame = job_columns.frame(raw, dialect, listed.clock_epoch_seconds)
    waits = _waits_with_its_array(frame)
    if pc.any(waits).as_py():
        frame, places = frame.filter(pc.invert(waits)), places.filter(pc.invert(waits))
    return frame, places, (*listed.records.rejected, *rejected), listed.clock_epoch_seconds


def _good_ids(raw: pa.Table) -> tuple[pa.Table, list[str]]:
    ids = as_array(raw["id"])
    good = pc.fill_null(pc.match_substring_regex(ids, _GOOD_ID), False)
    if pc.all(good, min_count=0).as_py():
        return raw, []
    refused = [f"no job's id: {text!r}" for text in ids.filter(pc.invert(good)).to_pylist()]
    return raw.filter(good), refused


def _one_a_job(raw: pa.Table) -> tuple[pa.Table, pa.Array]:
    """Each id's last record, and the place of its first: an array's parent comes once more with its subjobs."""
    codes = as_array(raw["id"]).dictionary_encode()
    numbers = row_numbers(raw.num_rows)
    if len(codes.dictionary) == raw.num_rows:
        return raw, numbers
    grouped = pa.table({"id": codes.indices, "at": numbers}).group_by("id", use_threads=False)
    found = grouped.aggregate([("at", "min"), ("at", "max")]).combine_chunks()
    return raw.take(as_array(found["at_max"])), as_array(found["at_min"])


def _waits_with_its_array(frame: pa.Table) -> pa.Array:
    """Which subjobs are in the row of their array's waiting tasks."""
    ids = as_array(frame["id"])
    is_shown = pc.is_in(as_array(frame["array_id"]), value_set=ids.filter(pc.match_substring(ids, "[]")))
    waits = pc.and_(pc.equal(as_array(frame["native_state"]), "Q"), pc.is_valid(as_array(frame["_task"])))
    return pc.fill_null(pc.and_(is_shown, waits), False)


def _asked_for(table: pa.Table, question: Listing) -> pa.Table:
    if not question.job_ids:
        return table
    wanted = [is_asked(question, row_id) for row_id in table["id"].to_pylist()]
    return table.filter(pa.array(wanted, pa.bool_()))
