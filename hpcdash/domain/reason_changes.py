"""Which waiting jobs wait for another reason than at the last look."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from hpcdash.domain.columns import as_array
from hpcdash.domain.states import WAITING
from hpcdash.domain.triage import normalised

OLD_STATE, OLD_REASON = "_old_state", "_old_reason"
_OF_EACH = ("id", "name", "state", "reason")
MOST_TOLD = 200


def reason_changes(before: pa.Table, after: pa.Table) -> list[Mapping[str, Any]]:
    """Of two tables of JOBS, at most MOST_TOLD rows that waited then and wait now, for another reason.

    Each has id, name, state, reason, `_old_state` and `_old_reason`. A reason that differs in its figures alone, as
    PBS's do from cycle to cycle, is the same; one that is not told any more is none.
    """
    old, new = _waiting(before), _waiting(after)
    at = pc.index_in(as_array(new["id"]), value_set=as_array(old["id"]), skip_nulls=True)
    old_reasons = as_array(old["reason"]).cast(pa.string()).take(at)
    reasons = as_array(new["reason"]).cast(pa.string())
    differs = pc.and_(at.is_valid(), pc.fill_null(pc.not_equal(reasons, pc.fill_null(old_reasons, "")), False))
    if not pc.any(differs).as_py():
        return []
    told = new.select(_OF_EACH).append_column(OLD_REASON, old_reasons)
    told = told.append_column(OLD_STATE, as_array(old["state"]).cast(pa.string()).take(at)).filter(differs)
    rows = told.slice(0, 5 * MOST_TOLD).to_pylist()
    return [row for row in rows if normalised(row["reason"]) != normalised(row[OLD_REASON] or "")][:MOST_TOLD]


def _waiting(table: pa.Table) -> pa.Table:
    states = as_array(table["state"]).cast(pa.string())
    return table.filter(pc.is_in(states, value_set=pa.array(sorted(WAITING), pa.string())))
