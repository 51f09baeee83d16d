"""Jobs that check nodes: what they ask for, what they found, and what is remembered of nodes and their GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from hpcdash.backends.script.node_checks import CHECKS, CheckResult, command_text, parse_results
from hpcdash.domain import nodelist
from hpcdash.domain.request import Request, SlotType
from hpcdash.domain.text import clip, visible
from hpcdash.domain.units import format_age
from hpcdash.errors import UsageError
from hpcdash.services.state.database import StateDatabase, StateUnusable
from hpcdash.services.submit.launches import Launches

Row = Mapping[str, Any]
# Each is in the job's command line.
MOST_NODES = 1000
_SHOWN_LETTERS = 160


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


def check_requests(
    selection: Selection, names: Sequence[str], launches: Launches, limit_seconds: int
) -> tuple[tuple[tuple[str, ...], tuple[str, ...], Request], ...]:
    """(nodes, checks, request) of each job: one for nodes with as many GPUs, where the scheduler takes them together.

    () for `names` are all that there are, on nodes without GPUs those that need none.
    """
    writer = launches.store.backend.scripts.writer()
    if writer is None:
        raise UsageError(f"no scripts are made for {launches.store.backend.title}", "Check its nodes by hand.")
    by_gpus: dict[int, list[str]] = {}
    for row in selection.nodes:
        by_gpus.setdefault(int(row["gpus"] or 0), []).append(str(row["name"]))
    found = []
    for gpus, nodes in by_gpus.items():
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
                queue=selection.queue,
                limit_seconds=limit_seconds,
                extra_args=options,
                job_library=False,
                site=replace(launches.settings.site, node_probe=""),
            )
            found.append((together, chosen, request))
    return tuple(found)


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
        results, gpus = parse_results(lines)
        try:
            self.note(results, gpus, at)
        except StateUnusable:
            # The log has it still.
            return

    def note(self, results: Sequence[CheckResult], gpus: Mapping[str, tuple[str, ...]], at: float) -> None:
        """Remember what was found, and which GPU is in which node. Raises StateUnusable."""
        if self._database is None or not (results or gpus):
            return
        of_check = (
            "INSERT INTO node_checks VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (cluster, node, name) DO UPDATE SET"
            " state = excluded.state, words = excluded.words, at = excluded.at WHERE excluded.at >= at"
        )
        of_gpu = (
            "INSERT INTO gpus VALUES (?, ?, ?, ?, ?) ON CONFLICT (cluster, uuid) DO UPDATE SET node = excluded.node,"
            " finding = CASE excluded.finding WHEN '' THEN finding ELSE excluded.finding END,"
            " at = CASE excluded.finding WHEN '' THEN at ELSE excluded.at END"
        )
        statements: list[tuple[str, tuple[Any, ...]]] = [
            (of_check, (self.cluster, one.node, one.name, one.state, one.words, at)) for one in results
        ]
        statements += [(of_gpu, (self.cluster, uuid, node, "", at)) for node, uuids in gpus.items() for uuid in uuids]
        statements += [
            (of_gpu, (self.cluster, uuid, one.node, f"{one.name}: {one.words}", at))
            for one in results
            if one.state == "failed"
            for uuid in one.gpus
        ]
        self._database.write(*statements)

    def known_gpus(self, uuids: Iterable[str], now: float) -> dict[str, str]:
        """Of GPUs in which something was found before, where and when that was, in words."""
        wanted = set(uuids)
        rows = self._read("SELECT uuid, node, finding, at FROM gpus WHERE cluster = ? AND finding != ''")
        return {
            uuid: f"found before, {format_age(now - at)} ago on {node}: {clip(visible(finding), _SHOWN_LETTERS)}"
            for uuid, node, finding, at in rows
            if uuid in wanted
        }

    def findings(self, now: float) -> dict[str, str]:
        """By node what checks found last and how long ago, in words; nothing of nodes that are well."""
        found: dict[str, str] = {}
        rows = self._read(
            "SELECT node, name, words, at FROM node_checks WHERE cluster = ? AND state = 'failed' ORDER BY at, name"
        )
        for node, name, words, at in rows:
            said = f"{name} check failed {format_age(now - at)} ago: {clip(visible(words), _SHOWN_LETTERS)}"
            found[node] = f"{found[node]}; {said}" if node in found else said
        return found

    def _read(self, sql: str) -> list[tuple[Any, ...]]:
        try:
            return [] if self._database is None else self._database.read(sql, self.cluster)
        except StateUnusable:
            # Nothing was remembered yet.
            return []
