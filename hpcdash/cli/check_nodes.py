"""`hpcdash check-nodes`: submits a job that checks nodes, waits for it, and shows what it found on
each.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hpcdash.backends.script.node_checks import CHECKS, CheckResult, parse_names
from hpcdash.cli.jobs import with_session
from hpcdash.cli.options import CommonOptions
from hpcdash.cli.submit import print_commands, print_sentences
from hpcdash.cli.terminal import is_agreed, print_json, print_text
from hpcdash.config.problems import did_you_mean
from hpcdash.config.read import load_settings
from hpcdash.domain.tables import Kind
from hpcdash.domain.text import align_cells, counted, visible
from hpcdash.domain.units import parse_duration
from hpcdash.errors import EXIT_REFUSED, Declined, UsageError
from hpcdash.services.session import ClusterSession
from hpcdash.services.state.database import StateUnusable
from hpcdash.services.submit.node_checks import CheckJob, plan_checks, select_nodes
from hpcdash.services.submit.node_findings import (
    NodeCheckRecords,
    SubmittedCheck,
    find_ended,
    format_result,
    read_check,
)

# Shortest interval between queries of a queue.
_POLL_SECONDS = 5.0


def run_check_nodes(
    common: CommonOptions,
    *,
    where: str,
    checks: str | None,
    queue: str | None,
    limit: str,
    form: str,
) -> None:
    """Ends the process with 1 where a check failed or a node is not known to be well."""
    settings = load_settings(common.config)
    if common.read_only or settings.read_only:
        raise UsageError("check-nodes is refused: hpcdash is read-only", "It would submit a job.")
    names = _names(checks)
    seconds = _limit(limit)
    can_prompt = sys.stdin.isatty() and sys.stderr.isatty()
    if not common.yes and not can_prompt:
        raise UsageError(
            "check-nodes needs confirmation, but there is no terminal",
            "Use --yes to skip the question.",
        )

    async def work(
        session: ClusterSession,
    ) -> tuple[list[CheckResult], dict[str, str], Sequence[CheckJob], ClusterSession]:
        launches = session.launches
        await session.store.open(force=True)
        snapshot = await session.store.fetch(Kind.NODES)
        await launches.queues.learn()
        queues = [one.name for one in launches.queues.known()]
        selection = select_nodes(where, snapshot.table.to_pylist(), queue or "", queues)
        print_sentences(*selection.left_out[:10])
        planned = await plan_checks(selection, names, launches, seconds)
        for one in planned:
            print_sentences(*one.plan.notes)
            print(f"{', '.join(one.names)} on {visible(', '.join(one.nodes))}", file=sys.stderr)
            print_commands("submit", session.name, one.plan.plan)
        if not common.yes and not await is_agreed():
            raise Declined
        records = NodeCheckRecords(launches.state_folder, session.name)
        for one in planned:
            await _submit(session, records, one)
        return *await _collect(session, records, planned), planned, session

    results, known, planned, session = with_session(common, work)
    if form == "json":
        _write_json(results, known, planned, session)
    else:
        _write_table(results, known)
    sys.stdout.flush()
    if any(one.state not in ("ok", "skipped") for one in results):
        sys.exit(EXIT_REFUSED)


def _names(checks: str | None) -> tuple[str, ...]:
    if not checks:
        return ()
    try:
        return tuple(
            parse_names([word.strip() for word in checks.split(",") if word.strip()]).split(",")
        )
    except ValueError as error:
        word = str(error)
        raise UsageError(
            f"--checks: unknown check {word!r}{did_you_mean(word, CHECKS)}", ", ".join(CHECKS)
        ) from None


def _limit(text: str) -> int:
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise UsageError(f"--time: {error}", "Write it as in 10m.") from None
    if not seconds:
        raise UsageError(f"--time: {text} is not a time limit", "Write it as in 10m.")
    return seconds


async def _submit(session: ClusterSession, records: NodeCheckRecords, one: CheckJob) -> None:
    result = await session.launches.submit(one.plan, session.actions, print_sentences)
    outcome = result.outcome
    print_sentences(result.journal_problem)
    if outcome.done:
        one.job_id = outcome.new_job
        with _remembered():
            await asyncio.to_thread(
                records.submitted, SubmittedCheck(one.job_id, one.nodes, one.names)
            )
        nodes = ", ".join(one.nodes)
        print_sentences(
            f"job {outcome.new_job} checks {nodes}; you can interrupt this, and see the result in "
            "the dashboard"
        )
    else:
        one.problem = outcome.text
        print_sentences(outcome.text)


async def _collect(
    session: ClusterSession, records: NodeCheckRecords, planned: Sequence[CheckJob]
) -> tuple[list[CheckResult], dict[str, str]]:
    """Once all jobs have ended: by job, node and check, and what was found before in GPUs that
    failed.
    """
    waiting = {
        one.job_id: SubmittedCheck(one.job_id, one.nodes, one.names)
        for one in planned
        if one.job_id
    }
    by_job: dict[str, Sequence[CheckResult]] = {}
    known: dict[str, str] = {}
    while waiting:
        for check in await find_ended(session.store, waiting.values()):
            found = await read_check(session.store, waiting.pop(check.job_id))
            by_job[check.job_id] = found.results
            with _remembered():
                known |= await asyncio.to_thread(records.note, found, session.store.clock.now())
        if waiting:
            await asyncio.sleep(_POLL_SECONDS)
    results = [
        result
        for one in planned
        for result in by_job.get(one.job_id)
        or [
            CheckResult(node, name, "unknown", one.problem)
            for node in one.nodes
            for name in one.names
        ]
    ]
    return results, known


@contextmanager
def _remembered() -> Iterator[None]:
    """Print a warning where something could not be stored."""
    try:
        yield
    except StateUnusable as error:
        print_sentences(f"the results were not saved: {error.message}")


def _write_table(results: Sequence[CheckResult], known: dict[str, str]) -> None:
    lines = [("NODE", "CHECK", "RESULT", "FINDING")]
    for one in results:
        lines.append((one.node, one.name, one.state, format_result(one, known)))
    print_text("".join(f"{line}\n" for line in align_cells(lines)))
    bad = {one.node for one in results if one.state not in ("ok", "skipped")}
    nodes = {one.node for one in results}
    print_sentences(
        f"{counted(len(nodes), 'node')}, {len(bad)} failed"
        if bad
        else f"{counted(len(nodes), 'node')}, all ok"
    )


def _write_json(
    results: Sequence[CheckResult],
    known: dict[str, str],
    planned: Sequence[CheckJob],
    session: ClusterSession,
) -> None:
    checks: list[dict[str, Any]] = [
        {
            "node": one.node,
            "check": one.name,
            "state": one.state,
            "finding": one.text or None,
            "gpus": list(one.gpus),
            "before": [known[uuid] for uuid in one.gpus if uuid in known],
        }
        for one in results
    ]
    print_json(
        {
            "schema": 1,
            **session.envelope(time.time()),
            "jobs": [one.job_id or None for one in planned],
            "checks": checks,
        }
    )
