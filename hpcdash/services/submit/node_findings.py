"""Results of jobs that check nodes: read from finished jobs' logs, stored by node and GPU."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from hpcdash.backends.queries import JobScope
from hpcdash.backends.script.node_checks import CheckResult, parse_results
from hpcdash.domain.tables import Kind
from hpcdash.domain.text import clip, counted, visible
from hpcdash.domain.units import format_age
from hpcdash.errors import HpcdashError, NoSuchJob, UnreachableError, UsageError
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.files import whole_file_query
from hpcdash.services.logs.locate import fetch_log_files
from hpcdash.services.state.database import StateDatabase, Statement, StateUnusable
from hpcdash.services.submit.launch_folders import unfinished_ids

_SHOWN_LETTERS = 160
_MAX_REPORTED = 3
_MAX_LOG_BYTES = 8 << 20
# The log of a finished job may reach the login node a moment later.
_LOG_SECONDS = 20.0
_RETRY_SECONDS = 5.0
_NO_OUTPUT = "no output: see the job's log"


class SubmittedCheck(Struct, frozen=True):
    """A job that checks nodes, with unread findings."""

    job_id: str
    nodes: tuple[str, ...]
    names: tuple[str, ...]


async def find_ended(
    store: ClusterStore, checks: Collection[SubmittedCheck]
) -> tuple[SubmittedCheck, ...]:
    """Return the checks whose jobs the queue does not report as unfinished.

    Raises the errors of an unreachable cluster.
    """
    if not checks:
        return ()
    job_ids = [check.job_id for check in checks]
    scope = JobScope(job_ids=tuple(job_ids))
    try:
        parsed = await store.run_query(store.backend.queue.jobs(scope))
    except NoSuchJob:
        return tuple(checks)
    living = unfinished_ids(parsed.table, job_ids)
    return tuple(check for check in checks if check.job_id not in living)


class CheckFindings(Struct, frozen=True):
    """Results of a check job, and the GPUs of each node; `job_id` is '' if unreported."""

    results: Sequence[CheckResult]
    gpus: Mapping[str, tuple[str, ...]]
    job_id: str = ""


async def read_check(store: ClusterStore, check: SubmittedCheck) -> CheckFindings:
    """Read the result of each node and check from the log of a finished job.

    A result is `unknown` if the log lacks it or cannot be read. Raises UnreachableError.
    """
    deadline = time.monotonic() + _LOG_SECONDS
    results: tuple[CheckResult, ...] = ()
    gpus: dict[str, tuple[str, ...]] = {}
    while True:
        problem = _NO_OUTPUT
        try:
            detail = await store.fetch_detail(check.job_id)
            files = await fetch_log_files(store, check.job_id, detail)
            if files.stdout is None:
                raise UsageError(f"the log path of job {check.job_id} is unknown")
            content = await store.run_query(whole_file_query(files.stdout, _MAX_LOG_BYTES))
            results, gpus = parse_results(content.decode("utf-8", "replace").splitlines())
        except UnreachableError:
            raise
        except HpcdashError as error:
            problem = error.message
        found = {(one.node, one.name): one for one in results}
        requested = [(node, name) for node in check.nodes for name in check.names]
        if found.keys() >= set(requested) or time.monotonic() > deadline:
            reported = [
                found.get(one) or CheckResult(*one, "unknown", problem) for one in requested
            ]
            return CheckFindings(reported, gpus, check.job_id)
        await asyncio.sleep(_RETRY_SECONDS)


async def read_ended_checks(store: ClusterStore, records: NodeCheckRecords) -> tuple[str, ...]:
    """Read and store the findings of finished check jobs; return a sentence for each.

    Jobs in the list of one's own unfinished jobs are not queried. Raises StateUnusable, and the
    errors of an unreachable cluster.
    """
    waiting = await asyncio.to_thread(records.unread)
    mine = store.snapshots.get(Kind.MINE)
    if waiting and mine is not None and not mine.cached:
        living = unfinished_ids(mine.table, [one.job_id for one in waiting])
        waiting = tuple(one for one in waiting if one.job_id not in living)
    reported = []
    for check in await find_ended(store, waiting):
        found = await read_check(store, check)
        known = await asyncio.to_thread(records.note, found, store.clock.now())
        text = format_results(found.results, known)
        reported.append(f"job {check.job_id} checked {counted(len(check.nodes), 'node')}: {text}")
    return tuple(reported)


def format_result(result: CheckResult, known: Mapping[str, str]) -> str:
    """Format a check's message, with earlier findings on the GPUs that it names."""
    before = "; ".join(known[uuid] for uuid in result.gpus if uuid in known)
    return f"{visible(result.text)} ({before})" if before else visible(result.text)


def format_results(results: Sequence[CheckResult], known: Mapping[str, str]) -> str:
    """Format the failed and unknown checks of each node; `all OK` if there are none."""
    wrong: dict[str, list[str]] = {}
    for one in results:
        if one.state not in ("ok", "skipped"):
            verb = "failed" if one.state == "failed" else "is unknown"
            wrong.setdefault(one.node, []).append(f"{one.name} {verb}: {format_result(one, known)}")
    reported = [f"{node}: {'; '.join(parts)}" for node, parts in wrong.items()]
    more = len(reported) - _MAX_REPORTED
    if more > 0:
        reported[_MAX_REPORTED:] = [f"and {counted(more, 'more node')}"]
    return " · ".join(reported) or "all OK"


class NodeFinding(Struct, frozen=True):
    """Latest check results of a node, the oldest first, with the epoch second of each."""

    found: tuple[tuple[CheckResult, float], ...]

    @property
    def failed(self) -> tuple[tuple[CheckResult, float], ...]:
        return tuple((result, at) for result, at in self.found if result.state == "failed")

    @property
    def summary(self) -> str:
        """`ok`, `cuda, disk failed`."""
        names = ", ".join(result.name for result, _ in self.failed)
        return f"{names} failed" if names else "ok"

    def format(self, now: float) -> str:
        """Format the failed checks, else the passed ones, with the age of each."""
        parts = []
        for result, at in self.failed:
            text = clip(visible(result.text), _SHOWN_LETTERS)
            parts.append(f"{result.name} check failed {format_age(now - at)} ago: {text}")
        if parts:
            return "; ".join(parts)
        passed = sorted(result.name for result, _ in self.found if result.state == "ok")
        age = format_age(now - self.found[-1][1])
        return f"checked {age} ago: {', '.join(passed) or 'nothing'} ok"


class NodeCheckRecords:
    """Check results of one cluster's nodes in the state database of a folder.

    None: nothing is stored.
    """

    def __init__(self, folder: Path | None, cluster: str) -> None:
        self._database = None if folder is None else StateDatabase(folder)
        self.cluster = cluster

    def stamp(self) -> tuple[int, int] | None:
        """Return a stamp that differs once results were added."""
        return None if self._database is None else self._database.stamp()

    def note_lines(self, lines: Iterable[str], at: float) -> None:
        """Store the findings in a job's log, unless the database is unusable."""
        try:
            self.note(CheckFindings(*parse_results(lines)), at)
        except StateUnusable:
            # They remain in the log.
            return

    def submitted(self, check: SubmittedCheck) -> None:
        """Store a check whose log will be read. Raises StateUnusable."""
        if self._database is not None:
            values = (self.cluster, check.job_id, "\n".join(check.nodes), "\n".join(check.names))
            self._database.write(("INSERT OR REPLACE INTO check_jobs VALUES (?, ?, ?, ?)", values))

    def unread(self) -> tuple[SubmittedCheck, ...]:
        """Return the checks whose log is still unread."""
        rows = self._read("SELECT job_id, nodes, names FROM check_jobs WHERE cluster = ?")
        return tuple(
            SubmittedCheck(job_id, tuple(nodes.split("\n")), tuple(names.split("\n")))
            for job_id, nodes, names in rows
        )

    def note(self, found: CheckFindings, at: float) -> dict[str, str]:
        """Store findings and the GPUs of each node, and mark the job's log as read.

        Returns earlier findings on the GPUs that failed. Raises StateUnusable.
        """
        if self._database is None:
            return {}
        results = [one for one in found.results if one.state != "unknown"]
        failed = {uuid for one in results if one.state == "failed" for uuid in one.gpus}
        known = {uuid: text for uuid, text in self.known_gpus(at).items() if uuid in failed}
        check_findings = (
            "INSERT INTO node_checks VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (cluster, node, name) "
            "DO UPDATE SET state = excluded.state, words = excluded.words, at = excluded.at WHERE "
            "excluded.at >= at"
        )
        gpu_findings = (
            "INSERT INTO gpus VALUES (?, ?, ?, ?, ?) ON CONFLICT (cluster, uuid) DO UPDATE SET"
            # A GPU with a finding keeps the node of that finding.
            " node = CASE WHEN excluded.finding = '' AND finding != '' THEN node ELSE "
            "excluded.node END, finding = CASE excluded.finding WHEN '' THEN finding ELSE "
            "excluded.finding END, at = CASE excluded.finding WHEN '' THEN at ELSE excluded.at END"
        )
        statements: list[Statement] = []
        for one in results:
            values = (self.cluster, one.node, one.name, one.state, one.text, at)
            statements.append((check_findings, values))
        for node, uuids in found.gpus.items():
            for uuid in uuids:
                statements.append((gpu_findings, (self.cluster, uuid, node, "", at)))
        for one in results:
            if one.state == "failed":
                finding = f"{one.name}: {one.text}"
                for uuid in one.gpus:
                    statements.append((gpu_findings, (self.cluster, uuid, one.node, finding, at)))
        if found.job_id:
            delete = "DELETE FROM check_jobs WHERE cluster = ? AND job_id = ?"
            statements.append((delete, (self.cluster, found.job_id)))
        if statements:
            self._database.write(*statements)
        return known

    def known_gpus(self, now: float) -> dict[str, str]:
        """Return text on earlier findings by GPU: the node and the age."""
        sql = "SELECT uuid, node, finding, at FROM gpus WHERE cluster = ? AND finding != ''"
        found = {}
        for uuid, node, finding, at in self._read(sql):
            text = clip(visible(finding), _SHOWN_LETTERS)
            found[uuid] = f"found before, {format_age(now - at)} ago on {node}: {text}"
        return found

    def findings(self) -> dict[str, NodeFinding]:
        """Return the latest results of each node."""
        by_node: dict[str, list[tuple[CheckResult, float]]] = {}
        sql = (
            "SELECT node, name, state, words, at FROM node_checks WHERE cluster = ? ORDER BY "
            "at, name"
        )
        for *found, at in self._read(sql):
            by_node.setdefault(found[0], []).append((CheckResult(*found), at))
        return {node: NodeFinding(tuple(found)) for node, found in by_node.items()}

    def _read(self, sql: str) -> list[tuple[Any, ...]]:
        try:
            return [] if self._database is None else self._database.read(sql, self.cluster)
        except StateUnusable:
            # As if nothing were stored.
            return []
