"""`hpcdash check-nodes`: submits a job that checks nodes, waits for it, and prints its findings."""

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
from hpcdash.cli.submit import print_commands
from hpcdash.cli.terminal import confirm, print_json, print_notes, print_text, require_prompt
from hpcdash.config.problems import did_you_mean
from hpcdash.config.read import load_settings
from hpcdash.domain.tables import Kind
from hpcdash.domain.text import align_cells, counted, visible
from hpcdash.domain.units import parse_duration
from hpcdash.errors import EXIT_REFUSED, UsageError
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
    """Check nodes; exits with 1 if a check failed or its result is unknown."""
    settings = load_settings(common.config)
    if common.read_only or settings.read_only:
        raise UsageError("check-nodes is disabled: hpcdash is read-only", "It would submit a job.")
    names = _names(checks)
    seconds = _limit(limit)
    if not common.yes:
        require_prompt("check-nodes")

    async def work(
        session: ClusterSession,
    ) -> tuple[list[CheckResult], dict[str, str], list[str], ClusterSession]:
        launches = session.launches
        await session.store.open(force=True)
        snapshot = await session.store.fetch(Kind.NODES)
        await launches.queues.fetch()
        queues = [entry.name for entry in launches.queues.known()]
        selection = select_nodes(where, snapshot.table.to_pylist(), queue or "", queues)
        print_notes(*selection.skipped[:10])
        planned = await plan_checks(selection, names, launches, seconds)
        for job in planned:
            print_notes(*job.plan.notes)
            print(f"{', '.join(job.names)} on {visible(', '.join(job.nodes))}", file=sys.stderr)
            print_commands("submit", session.name, job.plan.plan)
        if not common.yes:
            await confirm()
        records = NodeCheckRecords(launches.state_folder, session.name)
        checks = [await _submit(session, records, job) for job in planned]
        results, known = await _collect(session, records, checks)
        return results, known, [check.job_id for check, _ in checks], session

    results, known, job_ids, session = with_session(common, work)
    if form == "json":
        _write_json(results, known, job_ids, session)
    else:
        _write_table(results, known)
    sys.stdout.flush()
    if any(result.state not in ("ok", "skipped") for result in results):
        sys.exit(EXIT_REFUSED)


def _names(checks: str | None) -> tuple[str, ...]:
    if not checks:
        return ()
    try:
        names = parse_names(list(filter(None, map(str.strip, checks.split(",")))))
    except ValueError as error:
        name = str(error)
        raise UsageError(
            f"--checks: unknown check {name!r}{did_you_mean(name, CHECKS)}", ", ".join(CHECKS)
        ) from None
    return tuple(names.split(","))


def _limit(text: str) -> int:
    next_step = "Use a duration such as 10m."
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise UsageError(f"--time: {error}", next_step) from None
    if not seconds:
        raise UsageError(f"--time: {text} is not a time limit", next_step)
    return seconds


async def _submit(
    session: ClusterSession, records: NodeCheckRecords, job: CheckJob
) -> tuple[SubmittedCheck, str]:
    """Submit a check; return it, with job ID '' if it was not submitted, and the reason."""
    result = await session.launches.submit(job.plan, session.actions, print_notes)
    outcome = result.outcome
    print_notes(result.journal_problem)
    if not outcome.done:
        print_notes(outcome.text)
        return SubmittedCheck("", job.nodes, job.names), outcome.text
    check = SubmittedCheck(outcome.new_job, job.nodes, job.names)
    with _stored():
        await asyncio.to_thread(records.submitted, check)
    print_notes(
        f"job {check.job_id} checks {', '.join(job.nodes)}; if interrupted, the job continues "
        "and the dashboard shows the result"
    )
    return check, ""


async def _collect(
    session: ClusterSession,
    records: NodeCheckRecords,
    checks: Sequence[tuple[SubmittedCheck, str]],
) -> tuple[list[CheckResult], dict[str, str]]:
    """Wait for all jobs; return their results in order, and earlier findings on failed GPUs."""
    waiting = {check.job_id: check for check, _ in checks if check.job_id}
    by_job: dict[str, Sequence[CheckResult]] = {}
    known: dict[str, str] = {}
    while waiting:
        for check in await find_ended(session.store, waiting.values()):
            found = await read_check(session.store, waiting.pop(check.job_id))
            by_job[check.job_id] = found.results
            with _stored():
                known |= await asyncio.to_thread(records.note, found, session.store.clock.now())
        if waiting:
            await asyncio.sleep(_POLL_SECONDS)
    results: list[CheckResult] = []
    for check, problem in checks:
        if check.job_id in by_job:
            results += by_job[check.job_id]
            continue
        for node in check.nodes:
            results += [CheckResult(node, name, "unknown", problem) for name in check.names]
    return results, known


@contextmanager
def _stored() -> Iterator[None]:
    """Print a warning if something could not be stored."""
    try:
        yield
    except StateUnusable as error:
        print_notes(f"the results were not saved: {error.message}")


def _write_table(results: Sequence[CheckResult], known: dict[str, str]) -> None:
    lines = [("NODE", "CHECK", "RESULT", "FINDING")]
    for result in results:
        lines.append((result.node, result.name, result.state, format_result(result, known)))
    print_text("".join(f"{line}\n" for line in align_cells(lines)))
    bad = {result.node for result in results if result.state not in ("ok", "skipped")}
    nodes = counted(len({result.node for result in results}), "node")
    print_notes(f"{nodes}, {len(bad)} failed" if bad else f"{nodes}, all ok")


def _write_json(
    results: Sequence[CheckResult],
    known: dict[str, str],
    job_ids: Sequence[str],
    session: ClusterSession,
) -> None:
    checks: list[dict[str, Any]] = []
    for result in results:
        check = {
            "node": result.node,
            "check": result.name,
            "state": result.state,
            "finding": result.text or None,
            "gpus": list(result.gpus),
            "before": [known[uuid] for uuid in result.gpus if uuid in known],
        }
        checks.append(check)
    answer = {
        **session.envelope(time.time()),
        "jobs": [job_id or None for job_id in job_ids],
        "checks": checks,
    }
    print_json(answer)
