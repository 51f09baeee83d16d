"""`hpcdash check-nodes`: submits a job that checks nodes, waits for it, and shows what it found on each."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from hpcdash.backends.script.node_checks import CHECKS, CheckResult, parse_names, parse_results
from hpcdash.cli.jobs import with_session
from hpcdash.cli.options import CommonOptions
from hpcdash.cli.submit import require_launches
from hpcdash.cli.terminal import is_agreed, print_json, print_text
from hpcdash.config.problems import did_you_mean
from hpcdash.config.read import load_settings
from hpcdash.config.request import request_text
from hpcdash.domain.rfc3339 import format_utc
from hpcdash.domain.states import ENDED
from hpcdash.domain.text import counted, visible
from hpcdash.domain.units import parse_duration
from hpcdash.errors import EXIT_REFUSED, EXIT_UNREACHABLE, HpcdashError, UsageError
from hpcdash.services.cluster.snapshots import Kind
from hpcdash.services.files import whole_file_query
from hpcdash.services.logs.locate import files_of
from hpcdash.services.session import ClusterSession
from hpcdash.services.submit.launches import Launches, LaunchPlan
from hpcdash.services.submit.node_checks import NodeCheckRecords, check_requests, select_nodes
from hpcdash.services.submit.recovery import reconcile

_MOST_LOG_BYTES = 8 << 20
# A queue is asked no more often.
_POLL_SECONDS = 5.0
# The log of a job that ended may reach the login node a moment later.
_LOG_SECONDS = 20.0
_NOTHING_SAID = "nothing was said: see the job's log"


class _Declined(Exception):
    """The person does not want it after all."""


class _Check(Struct):
    """A job and its nodes; `problem` says why nothing is known of them, '' where something is."""

    nodes: tuple[str, ...]
    names: tuple[str, ...]
    plan: LaunchPlan
    job_id: str = ""
    problem: str = ""


def run_check_nodes(
    common: CommonOptions, *, where: str, checks: str | None, queue: str | None, limit: str, form: str
) -> None:
    """Ends the process with 1 where a check failed or a node is not known to be well."""
    settings = load_settings(common.config)
    if common.read_only or settings.read_only:
        raise UsageError("check-nodes: nothing is changed here (read-only)", "It submits a job.")
    names = _names(checks)
    seconds = _limit(limit)
    can_ask = sys.stdin.isatty() and sys.stderr.isatty()
    if not common.yes and not can_ask:
        raise UsageError("check-nodes needs confirmation, but there is no terminal", "--yes does it without asking.")

    async def work(session: ClusterSession) -> tuple[list[CheckResult], dict[str, str], list[_Check], ClusterSession]:
        launches = require_launches(session)
        await session.store.open(force=True)
        snapshot = await session.store.fetch(Kind.NODES)
        selection = select_nodes(where, snapshot.table.to_pylist(), queue or "")
        _say(*selection.left_out[:10])
        planned = [
            _Check(nodes, chosen, await launches.plan(request, request_text(request, site=launches.settings.site)))
            for nodes, chosen, request in check_requests(selection, names, launches, seconds)
        ]
        for one in planned:
            _say(*one.plan.notes)
            print(f"{', '.join(one.names)} on {visible(', '.join(one.nodes))}", file=sys.stderr)
            for command in one.plan.plan.commands:
                print(f"submit on {visible(session.name)}: {visible(command.words)}", file=sys.stderr)
        if not common.yes and not await is_agreed():
            raise _Declined
        for one in planned:
            await _submit(session, launches, one)
        results, gpus = await _collect(session, planned)
        now = session.store.clock.now()
        records = NodeCheckRecords(launches.state_folder, session.name)
        known = await asyncio.to_thread(
            records.known_gpus, [uuid for one in results if one.state == "failed" for uuid in one.gpus], now
        )
        try:
            await asyncio.to_thread(records.note, results, gpus, now)
        except HpcdashError as error:
            _say(f"what was found is not remembered: {error.message}")
        return _complete(results, planned), known, planned, session

    try:
        results, known, planned, session = with_session(common, work)
    except _Declined:
        print("nothing was done", file=sys.stderr)
        sys.exit(EXIT_REFUSED)
    if form == "json":
        _write_json(results, known, planned, session)
    else:
        _write_table(results, known)
    sys.stdout.flush()
    if any(one.problem for one in planned):
        sys.exit(EXIT_UNREACHABLE if not results else EXIT_REFUSED)
    if any(one.state not in ("ok", "skipped") for one in results):
        sys.exit(EXIT_REFUSED)


def _names(checks: str | None) -> tuple[str, ...]:
    if not checks:
        return ()
    try:
        return tuple(parse_names([word.strip() for word in checks.split(",") if word.strip()]).split(","))
    except ValueError as error:
        word = str(error)
        raise UsageError(
            f"--checks: there is no check {word!r}{did_you_mean(word, CHECKS)}", ", ".join(CHECKS)
        ) from None


def _limit(text: str) -> int:
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise UsageError(f"--time: {error}", "Write it as in 10m.") from None
    if not seconds:
        raise UsageError(f"--time: {text} is no time limit", "Write it as in 10m.")
    return seconds


async def _submit(session: ClusterSession, launches: Launches, one: _Check) -> None:
    report = await session.actions.run(one.plan.plan, heard=_say)
    _say(report.journal_problem)
    (outcome,) = await reconcile(session.store, one.plan, report, _say)
    one.job_id = outcome.new_job
    if outcome.done:
        _say(f"job {outcome.new_job} checks {', '.join(one.nodes)}; interrupted, this goes on without being watched")
    else:
        one.problem = outcome.words
        _say(outcome.words)
    await launches.conclude(one.plan, outcome)


async def _collect(
    session: ClusterSession, planned: Sequence[_Check]
) -> tuple[list[CheckResult], dict[str, tuple[str, ...]]]:
    """What the jobs said once all have ended."""
    waiting = {one.job_id: one for one in planned if one.job_id}
    results: list[CheckResult] = []
    gpus: dict[str, tuple[str, ...]] = {}
    while waiting:
        rows = {str(row["id"]): row for row in await session.actions.rows_of(tuple(waiting))}
        for job_id in tuple(waiting):
            row = rows.get(job_id)
            if row is not None and row["state"] not in ENDED:
                continue
            one = waiting.pop(job_id)
            found, of_nodes = await _read(session, one)
            results += found
            gpus |= of_nodes
        if waiting:
            await asyncio.sleep(_POLL_SECONDS)
    return results, gpus


async def _read(session: ClusterSession, one: _Check) -> tuple[tuple[CheckResult, ...], dict[str, tuple[str, ...]]]:
    deadline = time.monotonic() + _LOG_SECONDS
    while True:
        try:
            files = await files_of(session.store, one.job_id, await session.store.fetch_detail(one.job_id))
            if files.stdout is None:
                raise UsageError(f"where job {one.job_id} writes is not known")
            content = await session.store.ask(whole_file_query(files.stdout, _MOST_LOG_BYTES))
            found, gpus = parse_results(content.decode("utf-8", "replace").splitlines())
            if {result.node for result in found} >= set(one.nodes) or time.monotonic() > deadline:
                return found, gpus
        except HpcdashError as error:
            if time.monotonic() > deadline:
                one.problem = error.message
                _say(f"what job {one.job_id} found is not known: {error.message}")
                return (), {}
        await asyncio.sleep(_POLL_SECONDS)


def _complete(results: Sequence[CheckResult], planned: Sequence[_Check]) -> list[CheckResult]:
    """By node and check, with those that nothing was said of."""
    found = {(one.node, one.name): one for one in results}
    return [
        found.get((node, name)) or CheckResult(node, name, "unknown", one.problem or _NOTHING_SAID)
        for one in planned
        for node in one.nodes
        for name in one.names
    ]


def _write_table(results: Sequence[CheckResult], known: dict[str, str]) -> None:
    lines = [("NODE", "CHECK", "RESULT", "FINDING")]
    for one in results:
        before = "; ".join(known[uuid] for uuid in one.gpus if uuid in known)
        words = f"{visible(one.words)} ({before})" if before else visible(one.words)
        lines.append((visible(one.node), one.name, one.state, words))
    widths = [max(len(line[at]) for line in lines) for at in range(3)]
    for line in lines:
        cells = (f"{cell:<{width}}" for cell, width in zip(line[:3], widths, strict=True))
        print_text("  ".join((*cells, line[3])).rstrip() + "\n")
    bad = {one.node for one in results if one.state not in ("ok", "skipped")}
    nodes = {one.node for one in results}
    _say(f"{counted(len(nodes), 'node')}, {len(bad)} not well" if bad else f"{counted(len(nodes), 'node')}, all well")


def _write_json(
    results: Sequence[CheckResult], known: dict[str, str], planned: Sequence[_Check], session: ClusterSession
) -> None:
    checks: list[dict[str, Any]] = [
        {
            "node": one.node,
            "check": one.name,
            "state": one.state,
            "finding": one.words or None,
            "gpus": list(one.gpus),
            "before": [known[uuid] for uuid in one.gpus if uuid in known],
        }
        for one in results
    ]
    print_json(
        {
            "schema": 1,
            "cluster": session.name,
            "backend": session.store.backend.name,
            "taken_at": format_utc(time.time()),
            "jobs": [one.job_id or None for one in planned],
            "checks": checks,
        }
    )


def _say(*sentences: str) -> None:
    for words in sentences:
        if words:
            print(f"hpcdash: {visible(words)}", file=sys.stderr)
