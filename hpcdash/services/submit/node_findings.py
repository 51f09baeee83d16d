"""Results of jobs that check nodes: read from ended jobs' logs, stored by node and GPU."""

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
from hpcdash.services.state.database import StateDatabase, StateUnusable
from hpcdash.services.submit.launch_folders import unfinished_ids

_SHOWN_LETTERS = 160
_MAX_TOLD = 3
_MAX_LOG_BYTES = 8 << 20
# The log of a job that ended may reach the login node a moment later.
_LOG_SECONDS = 20.0
_LOOK_AGAIN_SECONDS = 5.0
_NOTHING_SAID = "no output: see the job's log"


class SubmittedCheck(Struct, frozen=True):
    """A job that checks nodes, of which it is not known yet what it found."""

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
    try:
        table = (
            await store.run_query(
                store.backend.queue.jobs(JobScope(job_ids=tuple(one.job_id for one in checks)))
            )
        ).table
    except NoSuchJob:
        return tuple(checks)
    living = unfinished_ids(table, [one.job_id for one in checks])
    return tuple(one for one in checks if one.job_id not in living)


class FoundByCheck(Struct, frozen=True):
    """Results of a check job, and the GPUs of each node; `job_id` is '' if unreported."""

    results: Sequence[CheckResult]
    gpus: Mapping[str, tuple[str, ...]]
    job_id: str = ""


async def read_check(store: ClusterStore, check: SubmittedCheck) -> FoundByCheck:
    """Read the result of each node and check from the log of an ended job.

    A result is `unknown` if the log lacks it or cannot be read. Raises UnreachableError.
    """
    deadline = time.monotonic() + _LOG_SECONDS
    results: tuple[CheckResult, ...] = ()
    gpus: dict[str, tuple[str, ...]] = {}
    while True:
        problem = _NOTHING_SAID
        try:
            files = await fetch_log_files(
                store, check.job_id, await store.fetch_detail(check.job_id)
            )
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
        if all(one in found for one in requested) or time.monotonic() > deadline:
            reported = [
                found.get(one) or CheckResult(*one, "unknown", problem) for one in requested
            ]
            return FoundByCheck(reported, gpus, check.job_id)
        await asyncio.sleep(_LOOK_AGAIN_SECONDS)


async def read_ended_checks(store: ClusterStore, records: NodeCheckRecords) -> tuple[str, ...]:
    """Read and remember what jobs that have ended found; a sentence for each.

    Nothing is asked of those that the list of one's own jobs has. Raises what keeps the cluster
    from answering, and StateUnusable.
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
    more = len(reported) - _MAX_TOLD
    shown = " · ".join(
        [*reported[:_MAX_TOLD], *([f"and {counted(more, 'more node')}"] if more > 0 else [])]
    )
    return shown or "all OK"


class NodeFinding(Struct, frozen=True):
    """Latest check results of a node, the oldest first, with the epoch second of each."""

    found: tuple[tuple[CheckResult, float], ...]

    @property
    def failed(self) -> tuple[tuple[CheckResult, float], ...]:
        return tuple(one for one in self.found if one[0].state == "failed")

    @property
    def summary(self) -> str:
        """`ok`, `cuda, disk failed`."""
        return f"{', '.join(one.name for one, _ in self.failed)} failed" if self.failed else "ok"

    def format(self, now: float) -> str:
        """Format the failed checks, else the passed ones, with the age of each."""
        if not self.failed:
            names = (
                ", ".join(sorted(one.name for one, _ in self.found if one.state == "ok"))
                or "nothing"
            )
            return f"checked {format_age(now - self.found[-1][1])} ago: {names} ok"
        return "; ".join(
            f"{one.name} check failed {format_age(now - at)} ago: "
            f"{clip(visible(one.text), _SHOWN_LETTERS)}"
            for one, at in self.failed
        )


class NodeCheckRecords:
    """Check results of one cluster's nodes in the state database of a folder.

    None: nothing is stored.
    """

    def __init__(self, folder: Path | None, cluster: str) -> None:
        self._database = None if folder is None else StateDatabase(folder)
        self.cluster = cluster

    def stamp(self) -> tuple[int, int] | None:
        """Another one once there may be more."""
        return None if self._database is None else self._database.stamp()

    def note_lines(self, lines: Iterable[str], at: float) -> None:
        """Remember what a job's log says; nothing where it cannot be written."""
        try:
            self.note(FoundByCheck(*parse_results(lines)), at)
        except StateUnusable:
            # The log has it still.
            return

    def submitted(self, check: SubmittedCheck) -> None:
        """Remember that its log is to be read. Raises StateUnusable."""
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

    def note(self, found: FoundByCheck, at: float) -> dict[str, str]:
        """Remember what was found, and which GPU is in which node; the job is read no more.

        Returns what was found before in the GPUs that failed. Raises StateUnusable.
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
            # Of one in which something was found, the node where that was.
            " node = CASE WHEN excluded.finding = '' AND finding != '' THEN node ELSE "
            "excluded.node END, finding = CASE excluded.finding WHEN '' THEN finding ELSE "
            "excluded.finding END, at = CASE excluded.finding WHEN '' THEN at ELSE excluded.at END"
        )
        statements: list[tuple[str, tuple[Any, ...]]] = [
            (check_findings, (self.cluster, one.node, one.name, one.state, one.text, at))
            for one in results
        ]
        statements += [
            (gpu_findings, (self.cluster, uuid, node, "", at))
            for node, uuids in found.gpus.items()
            for uuid in uuids
        ]
        statements += [
            (gpu_findings, (self.cluster, uuid, one.node, f"{one.name}: {one.text}", at))
            for one in results
            if one.state == "failed"
            for uuid in one.gpus
        ]
        if found.job_id:
            statements.append(
                (
                    "DELETE FROM check_jobs WHERE cluster = ? AND job_id = ?",
                    (self.cluster, found.job_id),
                )
            )
        if statements:
            self._database.write(*statements)
        return known

    def known_gpus(self, now: float) -> dict[str, str]:
        """Return text on earlier findings by GPU: where and when."""
        return {
            uuid: f"found before, {format_age(now - at)} ago on {node}: "
            f"{clip(visible(finding), _SHOWN_LETTERS)}"
            for uuid, node, finding, at in self._read(
                "SELECT uuid, node, finding, at FROM gpus WHERE cluster = ? AND finding != ''"
            )
        }

    def findings(self) -> dict[str, NodeFinding]:
        """By node what checks found there last."""
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
            # Nothing was remembered yet.
            return []
