"""`hpcdash storage`: use of file systems and quotas."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from hpcdash.cli.jobs import print_table, with_session
from hpcdash.cli.options import CommonOptions
from hpcdash.config.read import load_settings
from hpcdash.domain.tables import STORAGE, Kind
from hpcdash.errors import EXIT_REFUSED, UsageError
from hpcdash.services.cluster.snapshots import Snapshot
from hpcdash.services.session import ClusterSession
from hpcdash.services.usage.storage import fetch_storage


def run_storage(common: CommonOptions, paths: Sequence[str], form: str) -> None:
    """Print the use of paths; exits with 1 if that of one is unknown."""
    if relative := [path for path in paths if not path.startswith("/")]:
        raise UsageError(f"{relative[0]}: not an absolute path", "Paths are on the cluster.")
    rules = load_settings(common.config).watch.storage

    async def work(session: ClusterSession) -> tuple[Snapshot, ClusterSession]:
        table = await fetch_storage(session, paths, rules)
        return Snapshot(Kind.MINE, table, session.store.clock.now()), session

    snapshot, session = with_session(common, work)
    print_table(STORAGE, snapshot, form, session)
    if snapshot.table["problem"].null_count < snapshot.table.num_rows:
        sys.exit(EXIT_REFUSED)
