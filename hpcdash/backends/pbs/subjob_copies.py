"""Subjobs that PBS keeps no record of: it shows their array's attributes in place of their own. Knows no command.

Until 2021, and later where the server keeps no history, that is every subjob that ended; else those that were deleted
before they began. Only state and comment are the subjob's own (status_subjob() in src/server/stat_job.c).
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from hpcdash.backends.pbs.states import ENDED_LETTERS
from hpcdash.domain.columns import as_array

_SUBJOB = r"^([0-9]+\[)[0-9]+\]"
_COMMENT = r"^Subjob (finished|failed|terminated)$"
_TERMINATED, _FINISHED, _FAILED = "91", "92", "93"


def with_own_words(table: pa.Table) -> tuple[pa.Table, pa.Array]:
    """(qstat's text columns, with what such subjobs are known to have come to as their substate and without the exit
    status of their array; which rows they are)."""
    ids, comments = as_array(table["id"]), as_array(table["comment"])
    is_subjob = pc.match_substring_regex(ids, _SUBJOB)
    has_words = pc.fill_null(pc.match_substring_regex(comments, _COMMENT), False)
    is_copy = pc.and_(pc.and_(is_subjob, has_words), pc.is_null(table["exec_host"]))
    is_copy = as_array(is_copy)
    if not pc.any(is_copy, min_count=0).as_py():
        return table, is_copy
    has_ended = pc.is_in(table["job_state"], value_set=pa.array(sorted(ENDED_LETTERS)))
    arrays = as_array(pc.replace_substring_regex(ids, _SUBJOB, r"\1]"))
    is_record = pc.and_(pc.and_(is_subjob, has_ended), pc.invert(is_copy))
    # Where others that ended have their records, one without was deleted before it began.
    has_records = pc.is_in(arrays, value_set=arrays.filter(as_array(is_record)))
    ended_well = pc.fill_null(pc.equal(table["Exit_status"], "0"), False)
    finished = pc.if_else(has_records, _TERMINATED, pc.if_else(ended_well, _FINISHED, pa.scalar(None, pa.string())))
    words = pc.replace_substring_regex(comments, _COMMENT, r"\1")
    substates = pc.if_else(
        pc.equal(words, "failed"), _FAILED, pc.if_else(pc.equal(words, "terminated"), _TERMINATED, finished)
    )
    changed = {
        "substate": pc.if_else(is_copy, substates, table["substate"]),
        "Exit_status": pc.if_else(is_copy, pa.scalar(None, pa.string()), table["Exit_status"]),
    }
    columns = [changed.get(name, table[name]) for name in table.column_names]
    return pa.table(columns, names=table.column_names), is_copy
