"""Which other runs one may want to see over a run: its array's tasks, marked jobs, earlier ones of its name. Asks
nothing of the cluster."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from hpcdash.domain.states import WAITING
from hpcdash.domain.words import state_word
from hpcdash.services.cluster.snapshots import Kind
from hpcdash.services.cluster.store import ClusterStore

MOST_OTHERS = 60
_LISTS = (Kind.MINE, Kind.HISTORY, Kind.EVERYONE, Kind.HISTORY_EVERYONE)
_COLUMNS = ["id", "array_id", "name", "state", "started_at", "_number", "_task", "_tasks"]


def other_runs(store: ClusterStore, row: Mapping[str, Any], marked: Collection[str]) -> list[tuple[str, str]]:
    """Ids and words of jobs that have begun: the marked first, then tasks of its array, then its namesakes, each
    the newest first."""
    found: dict[str, tuple[int, int, int, str]] = {}
    for kind in _LISTS:
        snapshot = store.snapshots.get(kind)
        if snapshot is None:
            continue
        for other in _near(snapshot.table, row, marked).select(_COLUMNS).to_pylist():
            number = str(other["id"])
            if number in found or number == row["id"] or other["_tasks"] != 1:
                continue
            if str(other["state"]) in WAITING and number not in marked:
                continue
            is_task = row["array_id"] is not None and other["array_id"] == row["array_id"]
            rank = 0 if number in marked else 1 if is_task else 2
            why = ("marked", "same array", "same name")[rank]
            words = f"{number:<12} {other['name'] or ''}  {state_word(str(other['state']))}, {why}"
            found[number] = (rank, -(other["_number"] or 0), -(other["_task"] or 0), words)
    ranked = sorted(found.items(), key=lambda one: one[1][:3])
    return [(number, ranks[3]) for number, ranks in ranked[:MOST_OTHERS]]


def _near(table: pa.Table, row: Mapping[str, Any], marked: Collection[str]) -> pa.Table:
    wanted = pc.is_in(table["id"], pa.array(list(marked), pa.string()))
    if row["name"]:
        wanted = pc.or_(wanted, pc.equal(table["name"], row["name"]))
    if row["array_id"] is not None:
        wanted = pc.or_kleene(wanted, pc.equal(table["array_id"], row["array_id"]))
    return table.filter(wanted)
