"""`hpcdash storage`: use of file systems and quotas."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from hpcdash.cli.jobs import print_table, with_session
from hpcdash.cli.options import CommonOptions
from hpcdash.cli.tables import print_rows
from hpcdash.config.read import load_settings
from hpcdash.domain.tables import STORAGE, Kind
from hpcdash.errors import EXIT_REFUSED, UsageError
from hpcdash.services.cluster.snapshots import Snapshot
from hpcdash.services.session import ClusterSession
from hpcdash.services.usage.storage import StorageUse, fetch_storage

# Columns that are printed only with values.
_IF_KNOWN = ("full", "growth", "saves")


def run_storage(common: CommonOptions, paths: Sequence[str], form: str) -> None:
    """Print the use of paths; exits with 1 if that of one is unknown."""
    if relative := [path for path in paths if not path.startswith("/")]:
        raise UsageError(f"{relative[0]}: not an absolute path", "Paths are on the cluster.")
    rules = load_settings(common.config).watch.storage

    async def work(session: ClusterSession) -> tuple[StorageUse, Snapshot, ClusterSession]:
        use = await fetch_storage(session, paths, rules)
        return use, Snapshot(Kind.MINE, use.table, session.store.clock.now()), session

    use, snapshot, session = with_session(common, work)
    if form == "table":
        columns = [
            name
            for name in STORAGE.printed
            if name not in _IF_KNOWN
            or use.table[STORAGE.sort_field(name)].null_count < use.table.num_rows
        ]
        print_rows(STORAGE, use.table, form, utc_now=snapshot.taken_at, columns=columns)
    else:
        print_table(STORAGE, snapshot, form, session)
    if use.problem is not None:
        raise use.problem
    if snapshot.table["problem"].null_count < snapshot.table.num_rows:
        sys.exit(EXIT_REFUSED)
