"""Use of file systems and quotas: of the home, of launches, of jobs' folders, of named paths."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from hpcdash.backends.queries import Query
from hpcdash.config.watch_settings import StorageRule
from hpcdash.domain.schema import STORAGE
from hpcdash.domain.tables import Kind
from hpcdash.domain.text import decode
from hpcdash.services.session import ClusterSession
from hpcdash.services.watch.disks import DiskUsage
from hpcdash.services.watch.facts import DiskQuery, FactsRequest, facts_query
from hpcdash.services.watch.rules.places import lies_in

# The most paths of one query.
MAX_PATHS = 40
_HOME = Query(
    ("sh", "-c", 'printf %s "$HOME"'), lambda answer: decode(answer.stdout).strip(), 10.0, ("sh",)
)


async def fetch_storage(
    session: ClusterSession, paths: Sequence[str] = (), rules: Iterable[StorageRule] = ()
) -> pa.Table:
    """Fetch rows of domain.schema.STORAGE, one for each file system or quota.

    Without `paths` they are the user's home, the folder of launches, the working directories of
    pending and running jobs, and the paths of `rules` for the cluster. Raises the errors of an
    unreachable cluster.
    """
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
        folders = [home, session.launches.settings.site.storage_root]
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
    places: set[tuple[str, str]] = set()
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
            places.add(place)
            rows.append(_storage_row(query.path, usage))
    return pa.Table.from_pylist(rows, STORAGE)


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
