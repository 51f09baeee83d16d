"""`hpcdash stacks`: where the Python processes of a running job stand, each line with its node before it."""

from __future__ import annotations

import sys

from hpcdash.backends.stacks import Stacks
from hpcdash.cli.oneshot import with_session
from hpcdash.cli.options import CommonOptions
from hpcdash.domain.job_ids import holds_many
from hpcdash.domain.states import ACTIVE
from hpcdash.domain.text import visible
from hpcdash.errors import SchedulerRefused, UsageError
from hpcdash.services.session import ClusterSession


def run_stacks(common: CommonOptions, job: str) -> None:
    """Print what each node tells. Raises UsageError for a whole array, and where the scheduler has no way there."""

    async def work(session: ClusterSession) -> Stacks:
        store = session.store
        if holds_many(job):
            raise UsageError(f"{visible(job)} is many jobs", "Name one task: hpcdash stacks 88_3")
        row = (await store.fetch_detail(job)).job.to_pylist()[0]
        if (row["_tasks"] or 1) > 1:
            raise UsageError(f"{visible(job)} is an array", f"Name one of its tasks: hpcdash stacks {visible(job)}_1")
        if row["state"] not in ACTIVE:
            raise UsageError(f"{visible(job)} does not run: it is {row['state']}", "`hpcdash log` shows its log.")
        query = store.backend.stacks_query(row)
        if query is None:
            where = f" ({visible(row['node_list'])})" if row["node_list"] else ""
            raise UsageError(
                f"{store.backend.title} starts nothing beside a running job",
                f"Where the site lets you onto the job's nodes{where}: ssh NODE py-spy dump --pid PID",
            )
        return await store.ask(query)

    found = with_session(common, work)
    for node in found.nodes:
        for line in node.lines:
            print(f"{visible(node.node)}: {visible(line)}".rstrip())
    if found.problem:
        sys.stdout.flush()
        raise SchedulerRefused("not all of the job's nodes may have told", "Ask again.", words=found.problem)
