"""Use of file systems and quotas: of the home, of launches, of jobs' folders, of named paths."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from msgspec import Struct

from hpcdash.backends.queries import Query
from hpcdash.config.watch_settings import StorageRule
from hpcdash.domain.columns import has_state
from hpcdash.domain.schema import STORAGE
from hpcdash.domain.states import ACTIVE
from hpcdash.domain.tables import Kind
from hpcdash.domain.text import decode
from hpcdash.errors import CommandError, HpcdashError, UnreachableError
from hpcdash.services.session import ClusterSession
from hpcdash.services.submit.launch_records import LaunchedCheckpoints
from hpcdash.services.usage.saves import saves_query
from hpcdash.services.usage.site_quota import SiteQuota, quota_query
from hpcdash.services.usage.storage_growth import FILE, find_growth, keep_readings
from hpcdash.services.watch.disks import DiskUsage
from hpcdash.services.watch.facts import DiskQuery, FactsRequest, facts_query
from hpcdash.services.watch.rules.places import lies_in

# The most paths of one query.
MAX_PATHS = 40
# The paths of a row, while rows are built.
_FOLDERS = "_folders"
_HOME = Query(
    ("sh", "-c", 'printf %s "$HOME"'), lambda answer: decode(answer.stdout).strip(), 10.0, ("sh",)
)


class StorageUse(Struct, frozen=True):
    """Rows of domain.schema.STORAGE, and why the site's own quotas are missing, if they are."""

    table: pa.Table
    problem: HpcdashError | None = None


async def fetch_storage(
    session: ClusterSession, paths: Sequence[str] = (), rules: Iterable[StorageRule] = ()
) -> StorageUse:
    """Fetch the use of file systems and quotas, the site's own command first, and keep the reading.

    Without `paths` they are the user's home, the folder of launches, the working directories and
    checkpoints of pending and running jobs, the paths of `rules` for the cluster, and all quotas of
    the site's command. Raises the errors of an unreachable cluster.
    """
    store = session.store
    await store.open()
    quotas: Sequence[SiteQuota] = ()
    problem: HpcdashError | None = None
    own = session.settings.quota_command if session.settings is not None else ()
    command = own or store.site.quota_command
    if command:
        try:
            quotas = await store.run_query(quota_query(command))
        except UnreachableError:
            raise
        except HpcdashError as error:
            problem = error
    saves = {} if paths else await _fetch_saves(session)
    rows = await _fetch_rows(session, paths, rules, tuple(saves))
    rows = _with_quotas(rows, quotas, paths)
    now = store.clock.now()
    file = store.cache_file(FILE)
    used = {_place(row): row["used_bytes"] for row in rows if row.get("used_bytes") is not None}
    readings = await asyncio.to_thread(keep_readings, file, used, now)
    for row in rows:
        growth = find_growth(readings.get(_place(row), ()), row.get("limit_bytes"), now)
        if growth is not None:
            row["daily_growth_bytes"] = growth.bytes_a_day
            row["full_at"] = (
                None if growth.full_at is None else datetime.fromtimestamp(growth.full_at, UTC)
            )
        saved = [rate for folder, rate in saves.items() if _find_row(folder, rows) is row]
        row["daily_checkpoint_bytes"] = sum(saved) if saved else None
        row.pop(_FOLDERS, None)
    return StorageUse(pa.Table.from_pylist(rows, STORAGE), problem)


async def _fetch_saves(session: ClusterSession) -> dict[str, int]:
    """Fetch the bytes a day of the checkpoints of running launches, by folder."""
    store = session.store
    mine = store.table(Kind.MINE)
    if mine is None:
        mine = (await store.fetch(Kind.MINE)).table
    known = LaunchedCheckpoints(session.launches.state_folder, session.name)
    running = mine.filter(has_state(mine, ACTIVE)).to_pylist()
    folders = list(dict.fromkeys(filter(None, map(known.folder, running))))
    if not folders:
        return {}
    with contextlib.suppress(CommandError):
        return await store.run_query(saves_query(folders))
    return {}


def _with_quotas(
    rows: list[dict[str, Any]], quotas: Sequence[SiteQuota], paths: Sequence[str]
) -> list[dict[str, Any]]:
    """Replace what the site's quotas cover: of named paths the figures, else the rows."""
    if not paths:
        covered = [quota.path for quota in quotas]
        others = [row for row in rows if not lies_in(row["path"], covered)]
        return [*(_quota_row(quota.path, quota) for quota in quotas), *others]
    found = []
    for row in rows:
        over = [quota for quota in quotas if lies_in(row["path"], (quota.path,))]
        quota = max(over, key=lambda quota: len(quota.path), default=None)
        found.append(row if quota is None else _quota_row(row["path"], quota))
    return found


def _quota_row(path: str, quota: SiteQuota) -> dict[str, Any]:
    usage = DiskUsage(
        "site",
        quota.name or quota.path,
        quota.owner or "",
        bytes_used=quota.used_bytes,
        bytes_limit=quota.limit_bytes,
        inodes_used=quota.used_inodes,
        inodes_limit=quota.limit_inodes,
    )
    return _storage_row(path, usage)


def _place(row: Mapping[str, Any]) -> str:
    """Return the key of a row's readings: a file system or quota, whatever path leads to it."""
    return json.dumps([row.get(name) or "" for name in ("source", "name", "owner")])


def _find_row(folder: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the row of the file system or quota that a folder is in, as far as it is listed."""
    for row in rows:
        if folder in row.get(_FOLDERS, ()):
            return row
    over = [row for row in rows if lies_in(folder, (row["path"],))]
    return max(over, key=lambda row: len(row["path"]), default=None)


async def _fetch_rows(
    session: ClusterSession,
    paths: Sequence[str],
    rules: Iterable[StorageRule],
    checkpoint_folders: Sequence[str],
) -> list[dict[str, Any]]:
    """Fetch a row for each file system or quota; its _FOLDERS are the queried paths on it."""
    store = session.store
    probe = await store.open()
    known: dict[str, DiskQuery] = {}
    named = set(paths)
    home = ""
    if paths:
        known = {path: DiskQuery(path) for path in paths}
    else:
        home = await store.run_query(_HOME)
        mine = store.table(Kind.MINE)
        if mine is None:
            mine = (await store.fetch(Kind.MINE)).table
        folders = [home, session.launches.settings.site.storage_root, *checkpoint_folders]
        folders += [path for path in mine["work_dir"].to_pylist() if path]
        for path in folders:
            if path.startswith("/"):
                known.setdefault(path, DiskQuery(path))
        for rule in rules:
            if not rule.selector.is_on(session.name):
                continue
            known[rule.path] = DiskQuery(rule.path, rule.quota, rule.quota_of)
            named.add(rule.path)
    queries = tuple(known.values())[:MAX_PATHS]
    facts = await store.run_query(facts_query(FactsRequest(disks=queries), probe.user))
    rows: list[dict[str, Any]] = []
    places: dict[tuple[str, str], dict[str, Any]] = {}
    for query in queries:
        check = facts.disks.get(query.path)
        usage = None if check is None else check.usage
        if usage is None:
            if query.path not in named and query.path != home:
                # A job's folder may be gone, and no launch be made yet.
                continue
            is_silent = lies_in(query.path, facts.silent)
            problem = "does not respond" if is_silent else "no such folder, or no permission"
            rows.append({"path": query.path, "problem": problem})
            continue
        # Folders of jobs are mostly on one file system.
        place = (usage.name, usage.owner)
        if paths or place not in places:
            places[place] = {**_storage_row(query.path, usage), _FOLDERS: []}
            rows.append(places[place])
        places[place][_FOLDERS].append(query.path)
    return rows


def _storage_row(path: str, usage: DiskUsage) -> dict[str, Any]:
    used = usage.bytes_used
    limit = usage.bytes_limit
    return {
        "path": path,
        "name": usage.name,
        "owner": usage.owner or None,
        "used_bytes": used,
        "limit_bytes": limit,
        "free_bytes": None if used is None or limit is None else max(0, limit - used),
        "used_inodes": usage.inodes_used,
        "limit_inodes": usage.inodes_limit,
        "source": usage.source,
    }
