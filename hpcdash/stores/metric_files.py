"""Finds the metrics file that a job names in HPCDASH_METRICS: in its launch's request, what the scheduler tells of its
environment, or its script.
"""

from __future__ import annotations

import asyncio
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from hpcdash.backends.job_detail import JobDetail
from hpcdash.domain.job_ids import array_of, number_of
from hpcdash.domain.switches import (
    NamedSwitch,
    absolute_path,
    path_in_script,
    path_problem,
    unknown_words,
    variables_in_list,
)
from hpcdash.errors import CommandTimedOut, HpcdashError, UnreachableError
from hpcdash.stores.cluster import ClusterStore
from hpcdash.stores.launch_records import LaunchRecords
from hpcdash.stores.scripts import fetch_script
from hpcdash.stores.switch_jobs import known_values
from hpcdash.stores.switch_names import RECORDS_NAME, TOLD_OF_ENVIRONMENT
from hpcdash.stores.switch_scripts import values_query

Row = Mapping[str, Any]
METRICS = "HPCDASH_METRICS"


class NamedMetricsFiles:
    """The metrics files of a cluster's jobs; each job's launch, details and script are read once."""

    def __init__(self, store: ClusterStore) -> None:
        self._store = store
        # Where the path is written, and in which text, by job or array; None: nowhere.
        self._texts: dict[str, tuple[str, str] | None] = {}
        self._environment: dict[str, str] | None = None

    async def find(self, rows: Sequence[Row], detail: JobDetail | None = None) -> tuple[dict[str, str], str]:
        """Absolute paths by the ids of jobs that name one, each path once, for the last of those that share it; and in
        words why one that is named is not known, '' where none is. Raises what keeps the cluster from answering.

        `detail` is that of the one row where it is known already.
        """
        by_path: dict[str, str] = {}
        problem = ""
        for row in rows:
            named = await self._named(row, detail)
            if named is None:
                continue
            path = absolute_path(named.path, row["work_dir"])
            if named.unknown:
                problem = unknown_words(named)
            elif wrong := path_problem(path):
                problem = f"{path!r} ({named.whence}) is no metrics file: {wrong}"
            else:
                by_path[path] = str(row["id"])
        return {job_id: path for path, job_id in by_path.items()}, problem

    async def _named(self, row: Row, detail: JobDetail | None) -> NamedSwitch | None:
        unit = array_of(str(row["id"]))
        if unit not in self._texts:
            self._texts[unit] = await self._text(str(row["id"]), str(row["name"] or ""), detail)
        found = self._texts[unit]
        if found is None:
            return None
        whence, text = found
        if whence:
            return NamedSwitch(text, whence)
        known = known_values(row, self._store.backend)
        named = path_in_script((METRICS,), text, known)
        names = [name for name in named.unknown if name.isidentifier()] if named is not None else []
        if not names or row["user"] != self._store.user:
            return named
        if self._environment is None or not self._environment.keys() >= set(names):
            # One's own login environment is what sbatch hands to a job.
            values = await self._store.ask(values_query(names))
            self._environment = {**(self._environment or {}), **dict.fromkeys(names, ""), **values}
        own = {name: value for name, value in self._environment.items() if value}
        return path_in_script((METRICS,), text, {**own, **known})

    async def _text(self, job_id: str, name: str, detail: JobDetail | None) -> tuple[str, str] | None:
        """(where it is named, the path), or ('', the script)."""
        if path := await asyncio.to_thread(self._launched, job_id, name):
            return "its request", path
        try:
            detail = detail or await self._store.fetch_detail(job_id)
            if path := _told(detail):
                return "what the scheduler tells of its environment", path
            script = await fetch_script(self._store, job_id, detail=detail)
        except (UnreachableError, CommandTimedOut):
            raise
        except HpcdashError:
            # Another's script, or one that is kept nowhere.
            return None
        return ("", script.text) if METRICS in script.text else None

    def _launched(self, job_id: str, name: str) -> str:
        number, scripts = number_of(job_id), self._store.scripts
        if scripts is None or not number:
            return ""
        try:
            # What is remembered of launches stands beside the scripts that are kept.
            records = LaunchRecords(scripts.folder.parent / RECORDS_NAME, self._store.name).all()
        except OSError:
            return ""
        for record in reversed(records):
            if number_of(record.job_id) == number and record.name in ("", name):
                return _requested(record.request)
        return ""


def _told(detail: JobDetail) -> str:
    for field in TOLD_OF_ENVIRONMENT:
        if path := variables_in_list(detail.native.get(field, ""), (METRICS,)).get(METRICS, ""):
            return path
    return ""


def _requested(text: str) -> str:
    try:
        request = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return ""
    environment = request.get("environment")
    path = str(environment.get(METRICS, "")) if isinstance(environment, dict) else ""
    return absolute_path(path, str(request.get("work_dir", "")) or None) if path else ""
