"""Jobs that check nodes: what they ask for, what they found, and what is remembered of nodes and their GPUs."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from hpcdash.backends.queries import JobScope
from hpcdash.backends.script.node_checks import CHECKS, CheckResult, command_text, parse_results
from hpcdash.config.request import request_text
from hpcdash.domain import nodelist
from hpcdash.domain.request import Request, SlotType
from hpcdash.domain.states import ENDED
from hpcdash.domain.text import clip, counted, visible
from hpcdash.domain.units import format_age
from hpcdash.errors import HpcdashError, NoSuchJob, UnreachableError, UsageError
from hpcdash.services.cluster.snapshots import Kind
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.files import whole_file_query
from hpcdash.services.logs.locate import files_of
from hpcdash.services.state.database import StateDatabase, StateUnusable

if TYPE_CHECKING:
    from hpcdash.services.submit.launches import Launches, LaunchPlan

Row = Mapping[str, Any]
# Each is in the job's command line.
MOST_NODES = 1000
LIMIT_SECONDS = 600
_SHOWN_LETTERS = 160
_MOST_TOLD = 3
_MOST_LOG_BYTES = 8 << 20
# The log of a job that ended may reach the login node a moment later.
_LOG_SECONDS = 20.0
_LOOK_AGAIN_SECONDS = 5.0
_NOTHING_SAID = "nothing was said: see the job's log"


class Selection(Struct, frozen=True):
    """The nodes that are to be checked, as rows of domain.schema.NODES; `left_out` says why others are not."""

    nodes: tuple[Row, ...]
    queue: str
    left_out: tuple[str, ...] = ()


def select_nodes(where: str, rows: Sequence[Row], queue: str) -> Selection:
    """The idle nodes of a queue, or those that are named: `n01,n[03-07]`. Raises UsageError where there are none."""
    of_queue = [row for row in rows if where in (row["queues"] or ())]
    if of_queue:
        idle = tuple(row for row in of_queue if row["state"] == "idle")
        others = [f"{row['name']} is {row['state']}" for row in of_queue if row["state"] != "idle"]
        if not idle:
            raise UsageError(f"no node of {where} is idle: {'; '.join(others[:5])}", "Name nodes to wait for them.")
        return Selection(idle[:MOST_NODES], where, tuple(others))
    by_name = {str(row["name"]): row for row in rows}
    try:
        names = nodelist.expand(where)
    except ValueError as error:
        raise UsageError(f"{where!r} names no nodes: {error}", "Write n01,n[03-07], or the name of a queue.") from None
    unknown = [name for name in names if name not in by_name]
    if unknown:
        raise UsageError(f"{unknown[0]!r} is neither a queue nor a node here", "hpcdash nodes lists them.")
    if len(names) > MOST_NODES:
        raise UsageError(f"{len(names)} nodes are more than the {MOST_NODES} of one job", "Check some of them.")
    return Selection(tuple(by_name[name] for name in dict.fromkeys(names)), queue)


class CheckJob(Struct):
    """A job of `nodes` that runs the checks of these names; `problem` says why it was not submitted."""

    nodes: tuple[str, ...]
    names: tuple[str, ...]
    plan: LaunchPlan
    job_id: str = ""
    problem: str = ""


async def plan_checks(
    selection: Selection, names: Sequence[str], launches: Launches, limit_seconds: int = LIMIT_SECONDS
) -> tuple[CheckJob, ...]:
    """One job for nodes with as many GPUs of one queue, where the scheduler takes them together.

    () for `names` are all that there are, on nodes without GPUs those that need none. Raises UsageError, and what keeps
    the cluster from answering.
    """
    await launches.queues.learn()
    jobs = []
    for nodes, chosen, request in _requests(selection, names, launches, limit_seconds):
        plan = await launches.plan(request, request_text(request, site=launches.settings.site))
        jobs.append(CheckJob(nodes, chosen, plan))
    return tuple(jobs)


def _requests(
    selection: Selection, names: Sequence[str], launches: Launches, limit_seconds: int
) -> Iterable[tuple[tuple[str, ...], tuple[str, ...], Request]]:
    writer = launches.store.backend.scripts.writer()
    if writer is None:
        raise UsageError(f"no scripts are made for {launches.store.backend.title}", "Check its nodes by hand.")
    default = next((one.name for one in launches.queues.known() if one.is_default), "")
    by_gpus: dict[int, list[Row]] = {}
    for row in selection.nodes:
        by_gpus.setdefault(int(row["gpus"] or 0), []).append(row)
    alike: list[tuple[int, str, list[Row]]] = []
    for gpus, rows in by_gpus.items():
        by_queue = {selection.queue: rows} if selection.queue else _by_queue(rows, default)
        alike += [(gpus, queue, rows_of_queue) for queue, rows_of_queue in by_queue.items()]
    for gpus, queue, rows in alike:
        nodes = [str(row["name"]) for row in rows]
        chosen = tuple(names) or tuple(name for name, one in CHECKS.items() if gpus or not one.is_of_gpus)
        command = command_text(chosen, writer.ENVIRONMENT.node_name)
        for together, options in writer.node_options(nodes):
            each = gpus or 1
            request = Request(
                name="check-nodes",
                command=command,
                slots=each * len(together),
                slots_per_node=each,
                slot_type=None if gpus else SlotType.CPU,
                queue=queue,
                limit_seconds=limit_seconds,
                extra_args=options,
                job_library=False,
                site=replace(launches.settings.site, node_probe=""),
            )
            yield together, chosen, request


def _by_queue(rows: Sequence[Row], default: str) -> dict[str, list[Row]]:
    """The nodes by as few queues as have them, the default one first; '' for those that are bound to none."""
    found: dict[str, list[Row]] = {}
    left = list(rows)
    while left:
        counts = Counter(queue for row in left for queue in row["queues"] or ("",))
        chosen = max(counts, key=lambda queue: (counts[queue], queue == default))
        found[chosen] = [row for row in left if chosen in (row["queues"] or ("",))]
        left = [row for row in left if row not in found[chosen]]
    return found


class SubmittedCheck(Struct, frozen=True):
    """A job that checks nodes, of which it is not known yet what it found."""

    job_id: str
    nodes: tuple[str, ...]
    names: tuple[str, ...]


async def find_ended(store: ClusterStore, checks: Collection[SubmittedCheck]) -> tuple[SubmittedCheck, ...]:
    """Those of which the queue does not know that they go on. Raises what keeps the cluster from answering."""
    if not checks:
        return ()
    try:
        table = (await store.ask(store.backend.queue.jobs(JobScope(job_ids=tuple(one.job_id for one in checks))))).table
    except NoSuchJob:
        return tuple(checks)
    living = {row["id"] for row in table.select(["id", "state"]).to_pylist() if row["state"] not in ENDED}
    return tuple(one for one in checks if one.job_id not in living)


class FoundByCheck(Struct, frozen=True):
    """What a job found, and the GPUs of each node; `job_id` is '' where that is not said."""

    results: Sequence[CheckResult]
    gpus: Mapping[str, tuple[str, ...]]
    job_id: str = ""


async def read_check(store: ClusterStore, check: SubmittedCheck) -> FoundByCheck:
    """What the log of one that ended says of each of its nodes and checks; `unknown` where it says nothing, or cannot
    be read. Raises UnreachableError."""
    deadline = time.monotonic() + _LOG_SECONDS
    results: tuple[CheckResult, ...] = ()
    gpus: dict[str, tuple[str, ...]] = {}
    while True:
        problem = _NOTHING_SAID
        try:
            files = await files_of(store, check.job_id, await store.fetch_detail(check.job_id))
            if files.stdout is None:
                raise UsageError(f"where job {check.job_id} writes is not known")
            content = await store.ask(whole_file_query(files.stdout, _MOST_LOG_BYTES))
            results, gpus = parse_results(content.decode("utf-8", "replace").splitlines())
        except UnreachableError:
            raise
        except HpcdashError as error:
            problem = error.message
        found = {(one.node, one.name): one for one in results}
        wanted = [(node, name) for node in check.nodes for name in check.names]
        if all(one in found for one in wanted) or time.monotonic() > deadline:
            told = [found.get(one) or CheckResult(*one, "unknown", problem) for one in wanted]
            return FoundByCheck(told, gpus, check.job_id)
        await asyncio.sleep(_LOOK_AGAIN_SECONDS)


async def read_ended_checks(store: ClusterStore, records: NodeCheckRecords) -> tuple[str, ...]:
    """Read and remember what jobs that have ended found; a sentence for each.

    Nothing is asked of those that the list of one's own jobs has. Raises what keeps the cluster from answering, and
    StateUnusable.
    """
    waiting = await asyncio.to_thread(records.unread)
    mine = store.snapshots.get(Kind.MINE)
    if waiting and mine is not None and not mine.cached:
        rows = mine.table.select(["id", "state"]).to_pylist()
        living = {row["id"] for row in rows if row["state"] not in ENDED}
        waiting = tuple(one for one in waiting if one.job_id not in living)
    told = []
    for check in await find_ended(store, waiting):
        found = await read_check(store, check)
        known = await asyncio.to_thread(records.note, found, store.clock.now())
        words = format_results(found.results, known)
        told.append(f"job {check.job_id} checked {counted(len(check.nodes), 'node')}: {words}")
    return tuple(told)


def format_words(result: CheckResult, known: Mapping[str, str]) -> str:
    """What a check says, and what was found before in the GPUs that it names."""
    before = "; ".join(known[uuid] for uuid in result.gpus if uuid in known)
    return f"{visible(result.words)} ({before})" if before else visible(result.words)


def format_results(results: Sequence[CheckResult], known: Mapping[str, str]) -> str:
    """What is wrong with which nodes; `all well` where nothing is."""
    wrong: dict[str, list[str]] = {}
    for one in results:
        if one.state not in ("ok", "skipped"):
            verb = "failed" if one.state == "failed" else "is unknown"
            wrong.setdefault(one.node, []).append(f"{one.name} {verb}: {format_words(one, known)}")
    told = [f"{node}: {'; '.join(words)}" for node, words in wrong.items()]
    more = len(told) - _MOST_TOLD
    shown = " · ".join([*told[:_MOST_TOLD], *([f"and {counted(more, 'more node')}"] if more > 0 else [])])
    return shown or "all well"


class NodeFinding(Struct, frozen=True):
    """What checks found on a node last, the oldest first, with the epoch second of each."""

    found: tuple[tuple[CheckResult, float], ...]

    @property
    def failed(self) -> tuple[tuple[CheckResult, float], ...]:
        return tuple(one for one in self.found if one[0].state == "failed")

    @property
    def summary(self) -> str:
        """`ok`, `cuda, disk failed`."""
        return f"{', '.join(one.name for one, _ in self.failed)} failed" if self.failed else "ok"

    def format(self, now: float) -> str:
        """What failed, else what is well, and how long ago that was found."""
        if not self.failed:
            names = ", ".join(sorted(one.name for one, _ in self.found if one.state == "ok")) or "nothing"
            return f"checked {format_age(now - self.found[-1][1])} ago: {names} ok"
        return "; ".join(
            f"{one.name} check failed {format_age(now - at)} ago: {clip(visible(one.words), _SHOWN_LETTERS)}"
            for one, at in self.failed
        )


class NodeCheckRecords:
    """What checks of one cluster's nodes found, in the state database of a folder; None: nothing is remembered."""

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
        """Those whose log nobody has read yet."""
        rows = self._read("SELECT job_id, nodes, names FROM check_jobs WHERE cluster = ?")
        return tuple(
            SubmittedCheck(job_id, tuple(nodes.split("\n")), tuple(names.split("\n"))) for job_id, nodes, names in rows
        )

    def note(self, found: FoundByCheck, at: float) -> dict[str, str]:
        """Remember what was found, and which GPU is in which node; the job is read no more.

        Returns what was found before in the GPUs that failed. Raises StateUnusable.
        """
        if self._database is None:
            return {}
        results = [one for one in found.results if one.state != "unknown"]
        failed = {uuid for one in results if one.state == "failed" for uuid in one.gpus}
        known = {uuid: words for uuid, words in self.known_gpus(at).items() if uuid in failed}
        of_check = (
            "INSERT INTO node_checks VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (cluster, node, name) DO UPDATE SET"
            " state = excluded.state, words = excluded.words, at = excluded.at WHERE excluded.at >= at"
        )
        of_gpu = (
            "INSERT INTO gpus VALUES (?, ?, ?, ?, ?) ON CONFLICT (cluster, uuid) DO UPDATE SET"
            # Of one in which something was found, the node where that was.
            " node = CASE WHEN excluded.finding = '' AND finding != '' THEN node ELSE excluded.node END,"
            " finding = CASE excluded.finding WHEN '' THEN finding ELSE excluded.finding END,"
            " at = CASE excluded.finding WHEN '' THEN at ELSE excluded.at END"
        )
        statements: list[tuple[str, tuple[Any, ...]]] = [
            (of_check, (self.cluster, one.node, one.name, one.state, one.words, at)) for one in results
        ]
        statements += [
            (of_gpu, (self.cluster, uuid, node, "", at)) for node, uuids in found.gpus.items() for uuid in uuids
        ]
        statements += [
            (of_gpu, (self.cluster, uuid, one.node, f"{one.name}: {one.words}", at))
            for one in results
            if one.state == "failed"
            for uuid in one.gpus
        ]
        if found.job_id:
            statements.append(("DELETE FROM check_jobs WHERE cluster = ? AND job_id = ?", (self.cluster, found.job_id)))
        if statements:
            self._database.write(*statements)
        return known

    def known_gpus(self, now: float) -> dict[str, str]:
        """Of GPUs in which something was found, where and when that was, in words."""
        return {
            uuid: f"found before, {format_age(now - at)} ago on {node}: {clip(visible(finding), _SHOWN_LETTERS)}"
            for uuid, node, finding, at in self._read(
                "SELECT uuid, node, finding, at FROM gpus WHERE cluster = ? AND finding != ''"
            )
        }

    def findings(self) -> dict[str, NodeFinding]:
        """By node what checks found there last."""
        by_node: dict[str, list[tuple[CheckResult, float]]] = {}
        sql = "SELECT node, name, state, words, at FROM node_checks WHERE cluster = ? ORDER BY at, name"
        for *found, at in self._read(sql):
            by_node.setdefault(found[0], []).append((CheckResult(*found), at))
        return {node: NodeFinding(tuple(found)) for node, found in by_node.items()}

    def _read(self, sql: str) -> list[tuple[Any, ...]]:
        try:
            return [] if self._database is None else self._database.read(sql, self.cluster)
        except StateUnusable:
            # Nothing was remembered yet.
            return []
