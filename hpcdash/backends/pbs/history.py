"""Ended jobs: `qstat -x` where the server keeps a history; with Torque those that it has not
forgotten yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pyarrow.compute as pc

from hpcdash.backends.base import HistoryPart, HistoryScope
from hpcdash.backends.pbs.dialects import Dialect, DialectPart, pbs_script
from hpcdash.backends.pbs.errors import has_no_history, no_history, require_success
from hpcdash.backends.pbs.jobs import ended_before, is_ended, read_jobs, read_runs
from hpcdash.backends.pbs.listing import Listing, Want, listing, read_whole
from hpcdash.backends.pbs.records import Form, read_attributes, record_query
from hpcdash.backends.pbs.values import duration_seconds
from hpcdash.backends.queries import TEXT_BYTES, Answer, Native, ParsedTable, Query, decoded
from hpcdash.domain.columns import digits
from hpcdash.domain.units import DAY
from hpcdash.errors import NoSuchJob

# Source: SVR_JOBHIST_DEFAULT of OpenPBS.
_USUAL_HISTORY_SECONDS = 14 * DAY
_NO_HISTORY = (
    "history is off here (job_history_enable): only finished jobs that hpcdash saw are listed"
)
_NO_HISTORY_OF_TORQUE = (
    "Torque does not keep history: ended jobs stay visible for a few minutes only (keep_completed)"
)
# All that the server keeps at once.
RUNS_LIMIT_SECONDS = 180.0


def parse_history(answer: Answer, *, question: Listing, since_seconds: int) -> ParsedTable:
    """Rows of domain.schema.JOBS, newest end first; those asked for by id whether they ended or
    not.
    """
    _require_history(answer, question)
    parsed, clock_epoch_seconds = read_jobs(answer, question)
    table = parsed.table
    if not question.job_ids:
        table = table.filter(is_ended(table))
        if question.dialect is Dialect.TORQUE:
            # PBS itself was asked for what went into its history since then, which may be later
            # than the end.
            table = table.filter(
                pc.invert(ended_before(table, clock_epoch_seconds - since_seconds))
            )
    order = pc.sort_indices(table, sort_keys=[("ends_at", "descending"), ("_number", "descending")])
    return ParsedTable(table.take(order).combine_chunks(), parsed.rejected)


def parse_newly_ended(answer: Answer) -> tuple[str, ...]:
    """The ids; raises AccountingUnavailable where the server keeps no history."""
    if has_no_history(answer):
        raise no_history(answer, ("qselect", "-x"))
    require_success(answer, ("qselect", "-x"))
    return tuple(decoded(answer.stdout).split())


def parse_runs(answer: Answer, *, question: Listing) -> ParsedTable:
    """Rows of domain.schema.RUNS that ended; raises AccountingUnavailable where the server keeps
    none.
    """
    _require_history(answer, question)
    parsed = read_runs(answer, question)
    ended = pc.and_(is_ended(parsed.table), pc.is_valid(parsed.table["ends_at"]))
    return ParsedTable(
        parsed.table.filter(ended).combine_chunks(), parsed.rejected, is_cut=answer.truncated
    )


def parse_history_native(answer: Answer, *, question: Listing) -> Native:
    """Attribute → what PBS says of it, in its order."""
    _require_history(answer, question)
    native = read_whole(answer, question)
    if not native:
        raise NoSuchJob("job not found in the history", argv=question.command, status=answer.status)
    return native


def parse_scope(answer: Answer, *, form: Form, token: str, user: str) -> HistoryScope:
    require_success(answer, ("qstat", "-Bf"))
    for _, native in read_attributes(answer.stdout, form, token=token):
        seconds = digits(native.get("keep_completed"))
        if native.get("job_history_enable", "").lower() == "true":
            # qstat prints no duration that nobody set.
            duration = duration_seconds(native.get("job_history_duration", ""))
            seconds = duration or _USUAL_HISTORY_SECONDS
        return HistoryScope(_hides_others(native, user), seconds)
    return HistoryScope()


def _hides_others(native: Native, user: str) -> bool | None:
    reported = native.get("query_other_jobs", "").lower()
    # root of the server's own host manages it, and of no other host that is not named.
    if reported == "false" and user != "root":
        named = ",".join(native.get(name, "") for name in ("managers", "operators"))
        return user not in {one.partition("@")[0].strip() for one in named.split(",")}
    return False if reported == "true" else None


def _require_history(answer: Answer, question: Listing) -> None:
    if has_no_history(answer):
        raise no_history(answer, question.command)


class PbsHistory(DialectPart, HistoryPart):
    """Ended jobs as the server keeps them."""

    forgotten = "PBS no longer knows the job (after qdel -x, for example)"

    def __init__(self, dialect: Dialect) -> None:
        super().__init__(dialect)
        self.keeps_ended = dialect is not Dialect.TORQUE
        self.no_history = _NO_HISTORY_OF_TORQUE if dialect is Dialect.TORQUE else _NO_HISTORY

    def jobs(
        self, user: str | None, since_seconds: int, job_ids: Sequence[str] = ()
    ) -> Query[ParsedTable]:
        """Query each ended task of one's own arrays, and of those of `job_ids`; an array of others
        is one row.
        """
        want = Want.NAMED if job_ids else Want.ENDED
        question = listing(self.dialect, want, user, since_seconds, job_ids)
        return question.rows_query(
            partial(parse_history, question=question, since_seconds=since_seconds)
        )

    def runs(self, user: str | None, since: int, until: int, now: int) -> Query[ParsedTable]:
        """To this day, as the server's history can be narrowed at its beginning alone."""
        question = listing(self.dialect, Want.ENDED, user, max(1, now - since), for_hours=True)
        parse = partial(parse_runs, question=question)
        return Query(
            question.argv, parse, limit_seconds=RUNS_LIMIT_SECONDS, command=question.command
        )

    def native(self, job_id: str) -> Query[Native]:
        question = listing(self.dialect, Want.WHOLE, job_ids=(job_id,))
        return question.query(partial(parse_history_native, question=question))

    def scope(self, user: str) -> Query[HistoryScope]:
        """The server's query_other_jobs, and how long it keeps ended jobs."""
        return record_query(self.dialect, ("qstat", "-Bf"), partial(parse_scope, user=user))

    def newly_ended(self, user: str, seconds: int) -> Query[tuple[str, ...]] | None:
        """None for dialects whose qselect does not know ended jobs."""
        if self.dialect is Dialect.TORQUE:
            return None
        argv = pbs_script("backends/pbs/newly_ended.sh", str(seconds), user)
        return Query(argv, parse_newly_ended, command=("qselect", "-x"), cap_bytes=TEXT_BYTES)
