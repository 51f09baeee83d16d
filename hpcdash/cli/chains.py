"""`hpcdash chain`: a job's chain as a picture and a table; `hpcdash stub`: a script that reads
another.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa

from hpcdash.backends.script.stub import stub_script
from hpcdash.cli.jobs import with_session
from hpcdash.cli.options import CommonOptions
from hpcdash.cli.submit import read_script
from hpcdash.cli.tables import print_rows
from hpcdash.cli.terminal import print_json, print_notes, print_text, terminal_width
from hpcdash.domain.chains import (
    TOLD_STATE,
    JobChain,
    chain_notes,
    class_counts,
    format_wait,
    latest_end,
    living_targets,
    picture,
)
from hpcdash.domain.impact import choose
from hpcdash.domain.rfc3339 import format_utc, table_to_json_rows
from hpcdash.domain.schema import JOBS, public_names
from hpcdash.domain.states import JobState
from hpcdash.domain.tables import HISTORY
from hpcdash.errors import HpcdashError, NoSuchJob, UsageError
from hpcdash.services.chains import ChainReader
from hpcdash.services.session import ClusterSession
from hpcdash.ui.widgets.cells import short_instant, signs

_COLUMNS = ("id", "name", "state", "started_at", "elapsed_seconds", "exit", "dependency")


def run_chain(common: CommonOptions, *, job: str, form: str) -> None:
    """Print the chain of a job."""

    async def work(
        session: ClusterSession,
    ) -> tuple[JobChain, tuple[str, ...], float, ClusterSession]:
        reader, chain = await _read(session, job)
        return chain, reader.notes, session.store.clock.now(), session

    chain, past_notes, taken_at, session = with_session(common, work)
    notes = (*chain_notes(chain), *past_notes)
    now = datetime.fromtimestamp(taken_at, UTC)
    end = latest_end(chain, now)
    if form == "json":
        order = []
        for unit in chain.units:
            after = list(chain.before[unit.number])
            order.append({"job_id": unit.job_id, "after": after, "by_name": unit.by_name})
        jobs = pa.Table.from_pylist(list(map(dict, chain.rows)), JOBS)
        answer = {
            **session.envelope(taken_at),
            "rejected_rows": 0,
            "counts": class_counts(chain.rows),
            "ends_by": None if end is None else format_utc(end),
            "order": order,
            "notes": list(notes),
            "jobs": table_to_json_rows(jobs, public_names(JOBS)),
        }
        print_json(answer)
        return
    print(picture(chain.rows, signs().states, (terminal_width() or 80) - 1))
    if end is not None:
        is_held = any(row["state"] == JobState.HELD for row in chain.living)
        release = " and is released now" if is_held else ""
        print(
            f"ends by {short_instant(end, now, session.zone)} if each job runs to its time "
            f"limit{release}"
        )
    sys.stdout.flush()
    rows = []
    for unit in chain.units:
        dependency = format_wait(unit, chain)
        rows += [{**row, "dependency": dependency} for row in unit.rows]
    table = pa.Table.from_pylist(rows, JOBS)
    print_rows(HISTORY, table, "table", utc_now=taken_at, columns=_COLUMNS)
    print_notes(*notes)


async def _read(session: ClusterSession, job: str) -> tuple[ChainReader, JobChain]:
    """Read the chain of a job; an array's task may be given by its own job number."""
    reader = ChainReader(session.store, job)
    try:
        return reader, await reader.read()
    except NoSuchJob as unknown:
        try:
            in_full = (await session.store.fetch_detail(job)).job["id"][0].as_py()
        except HpcdashError as error:
            # The history's own message does not name the job.
            raise (unknown if error.exit_status == 1 else error) from None
        if in_full == job:
            raise
    reader = ChainReader(session.store, in_full)
    return reader, await reader.read()


async def chain_ids(session: ClusterSession, verb: str, jobs: Sequence[str]) -> tuple[str, ...]:
    """Return the IDs in some jobs' chains that a verb applies to. Raises UsageError for none."""
    ids: dict[str, None] = {}
    for job in jobs:
        _, chain = await _read(session, job)
        living, rows = living_targets(chain)
        if verb == "release":
            rows = tuple({**row, "state": row.get(TOLD_STATE, row["state"])} for row in rows)
        choice = choose(verb, living, rows)
        if choice.verb == verb:
            ids.update(dict.fromkeys(choice.job_ids))
    if not ids:
        raise UsageError(
            f"nothing to {verb} in the chain of {', '.join(jobs)}", "hpcdash chain JOB shows it."
        )
    return tuple(ids)


def run_stub(script: str, at: str | None) -> None:
    """Print a stub of a script that reads `at`, by default the script's own file."""
    if at is None and script == "-":
        raise UsageError(
            "a stub needs a script path, and stdin has none", "Specify it with --at PATH."
        )
    text = read_script(script).decode("utf-8", "surrogateescape")
    stub = stub_script(text, at or str(Path(script).resolve()))
    print_text(stub)
