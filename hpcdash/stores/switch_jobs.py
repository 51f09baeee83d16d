"""What rows and requests tell of jobs that have switches: which live, how they ended, what their environment holds.

Asks nothing.
"""

from __future__ import annotations

import math
import tomllib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from hpcdash.backends.base import Backend
from hpcdash.domain.columns import as_array
from hpcdash.domain.schema import JOBS
from hpcdash.domain.states import ENDED, JobState
from hpcdash.domain.switch_progress import Progress
from hpcdash.domain.switches import NamedSwitch, SwitchKind, absolute_path, switch_in_environment
from hpcdash.domain.words import state_word
from hpcdash.stores.cluster import ClusterStore
from hpcdash.stores.snapshots import Kind

Row = Mapping[str, Any]
_COLUMNS = ("id", "array_id", "name", "user", "state", "work_dir", "_tasks")
# Clocks of a file server and a controller are this far apart at the most, or an end is taken for one before the drop.
CLOCKS_APART_SECONDS = 2.0


def living_table(store: ClusterStore) -> pa.Table:
    """What lives of one's own jobs and of everyone's, each once, with its job or array as `_unit`."""
    parts: list[pa.Table] = []
    for kind in (Kind.MINE, Kind.EVERYONE):
        table = store.table(kind)
        if table is None:
            continue
        plain = pa.table(
            {
                name: as_array(table[name]).cast(JOBS.field(name).type if name == "_tasks" else pa.string())
                for name in _COLUMNS
            }
        )
        plain = plain.append_column("_unit", pc.coalesce(plain["array_id"], plain["id"]))
        plain = plain.filter(pc.invert(pc.is_in(plain["state"], pa.array([str(state) for state in ENDED]))))
        parts.append(plain.filter(pc.invert(pc.is_in(plain["id"], as_array(parts[0]["id"])))) if parts else plain)
    if not parts:
        columns = {name: pa.array([], pa.int64() if name == "_tasks" else pa.string()) for name in _COLUMNS}
        return pa.table({**columns, "_unit": pa.array([], pa.string())})
    return pa.concat_tables(parts)


def progress_of(rows: Iterable[Row], dropped_at: float | None, were_living: Collection[str] = ()) -> Progress:
    """Counts jobs that live, that ended since `dropped_at` (epoch seconds), and of those that ended with status 0.

    Those whose ids are among `were_living` lived when it was dropped, whatever the clocks say.
    """
    since = math.inf if dropped_at is None else dropped_at - CLOCKS_APART_SECONDS
    living = ended = clean = 0
    badly: Counter[str] = Counter()
    ids = []
    for row in rows:
        count = row.get("_tasks") or 1
        if row["state"] not in ENDED:
            living += count
            ids.append(str(row["id"]))
            continue
        ends_at = row["ends_at"]
        is_since = ends_at is not None and ends_at.timestamp() >= since
        if not is_since and row["id"] not in were_living:
            continue
        ended += count
        ids.append(str(row["id"]))
        is_clean = row["state"] == JobState.COMPLETED and not row["exit_code"] and not row["exit_signal"]
        clean += count if is_clean else 0
        if not is_clean:
            badly[_end_words(row)] += count
    one = ids[0] if living + ended == 1 else ""
    told = ", ".join(words if one else f"{count} {words}" for words, count in badly.most_common())
    return Progress(living, ended, clean, told, one)


def _end_words(row: Row) -> str:
    word = state_word(str(row["state"]))
    return f"{word}, status {row['exit_code']}" if row["exit_code"] else word


def requested_switch(kind: SwitchKind, text: str) -> NamedSwitch | None:
    """The switch of a launch's request."""
    try:
        request = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None
    environment = request.get("environment")
    given = {str(name): str(value) for name, value in environment.items()} if isinstance(environment, dict) else {}
    named = switch_in_environment(kind, given, "its request")
    if named is None and (path := str(request.get(f"{kind}_switch", ""))):
        named = NamedSwitch(path, f"{kind}_switch in its request")
    work_dir = str(request.get("work_dir", ""))
    return None if named is None else NamedSwitch(absolute_path(named.path, work_dir or None), named.whence)


def known_values(row: Row, backend: Backend) -> dict[str, str]:
    """What of a job's environment its row tells."""
    known = {"USER": row["user"], "LOGNAME": row["user"], "PWD": row["work_dir"], **backend.job_variables(row)}
    return {name: str(value) for name, value in known.items() if value}
