"""Runs a command on each node of a running job, and folds what is equal."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from hpcdash.backends.actions import Outcome
from hpcdash.backends.base import Capability
from hpcdash.backends.inside import CAP_BYTES, Frames, InsideCommand, InsideStep, NodeOutput
from hpcdash.backends.queries import Answer, Query
from hpcdash.domain.job_ids import holds_many
from hpcdash.domain.nodelist import compress, natural_order
from hpcdash.domain.states import ACTIVE, WAITING
from hpcdash.domain.text import counted, visible
from hpcdash.errors import SchedulerRefused, UsageError, excerpt
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.logs.lines import shown_line
from hpcdash.services.state.journal import Journal, JournalUnwritable

# The verb in the journal.
EXEC = "exec"
# What timeout(1) ends with where it ended the command, with TERM or with KILL.
_TIMED_OUT = (124, 137)


class OutputGroup(Struct, frozen=True):
    """Equal answers of several nodes, or GPUs.

    `places` is text to show, `answer` is that of the first.
    """

    places: str
    count: int
    answer: NodeOutput

    @property
    def title(self) -> str:
        """`g[1-4] (4)`, as clush -b has it."""
        return f"{visible(self.places)} ({self.count})" if self.count > 1 else visible(self.places)

    @property
    def lines(self) -> tuple[str, ...]:
        """Lines of the output, safe to show."""
        return tuple(shown_line(line).text for line in self.answer.output.splitlines())


class InsideAnswer(Struct, frozen=True):
    """Answers of each node (or GPU) of a job to a command, in natural order; also missing ones."""

    command: InsideCommand
    outputs: tuple[NodeOutput, ...]

    @property
    def has_failed(self) -> bool:
        return any(output.status != 0 for output in self.outputs)

    def groups(self) -> list[OutputGroup]:
        """Equal ones together, the first by its first node."""
        alike: dict[tuple[bytes, int | None, str], list[NodeOutput]] = {}
        for output in self.outputs:
            alike.setdefault((output.output, output.status, output.problem), []).append(output)
        return [
            OutputGroup(_places(outputs), len(outputs), outputs[0]) for outputs in alike.values()
        ]


def _places(outputs: Sequence[NodeOutput]) -> str:
    """Nodes as lists of nodes are written; with the GPUs of each: `g1: GPU 0,1`."""
    by_node: dict[str, list[str]] = {}
    for output in outputs:
        by_node.setdefault(output.node, []).append(output.gpu)
    by_gpus: dict[str, list[str]] = {}
    for node, gpus in by_node.items():
        by_gpus.setdefault(",".join(filter(None, gpus)), []).append(node)
    parts = [
        f"{compress(nodes)}: GPU {gpus}" if gpus else compress(nodes)
        for gpus, nodes in by_gpus.items()
    ]
    return "; ".join(parts)


def format_ending(output: NodeOutput, seconds: int) -> str:
    """Format the end of a command that failed, in a few words; '' after success."""
    if output.status in _TIMED_OUT:
        ending = (
            f"ended at the time limit of {seconds} s"
            if output.status == _TIMED_OUT[0]
            else "killed (exit 137)"
        )
    elif output.status is None:
        ending = "" if output.problem else "no answer"
    else:
        ending = f"exit {output.status}" if output.status else ""
    return ", ".join(filter(None, (ending, visible(output.problem))))


async def fetch_inside_row(
    store: ClusterStore,
    job_id: str,
    row: Mapping[str, Any] | None = None,
    *,
    needs: Capability = Capability.INSIDE,
) -> Mapping[str, Any]:
    """The row of a running job of one's own; raises UsageError, in clear words, for any other, and
    where the scheduler lacks what the caller `needs`."""
    store.backend.require(needs)
    shown = visible(job_id)
    if holds_many(job_id):
        raise UsageError(f"{shown} means several jobs", "Name one task, such as 88_3.")
    if row is None or row.get("node_list") is None or row["state"] not in ACTIVE:
        row = (await store.fetch_detail(job_id)).job.to_pylist()[0]
    owner = str(row["user"] or "")
    me = store.probe.user if store.probe is not None else ""
    if owner and me and owner != me:
        raise UsageError(
            f"job {shown} is {visible(owner)}'s: only its owner can run commands in it (you are {me})"
        )
    if (row["_tasks"] or 1) > 1:
        raise UsageError(f"{shown} is an array", f"Name one of its tasks: {shown}_1")
    if row["state"] in WAITING:
        raise UsageError(
            f"job {shown} is not running yet ({row['state']})",
            f"See why it waits: hpcdash show {shown}",
        )
    if row["state"] not in ACTIVE:
        raise UsageError(
            f"job {shown} has ended ({row['state']})", f"See its log: hpcdash log {shown}"
        )
    return row


async def run_inside(
    store: ClusterStore, row: Mapping[str, Any], command: InsideCommand
) -> InsideAnswer:
    """The answers of a job's nodes.

    Raises UsageError, what the scheduler refuses, and what the transport raises.
    """
    step = store.backend.inside.step(row, command)
    parse = partial(_parse, step=step, command=command)
    cap_bytes = 2 * CAP_BYTES * max(1, len(step.nodes)) * (8 if command.each_gpu else 1)
    return await store.run_query(
        Query(step.argv, parse, step.limit_seconds, step.command, cap_bytes)
    )


async def run_noted(
    journal: Journal, store: ClusterStore, row: Mapping[str, Any], command: InsideCommand
) -> InsideAnswer:
    """Run a command like `run_inside`, with a line in the journal before and after.

    Only the program of the command is noted: its arguments may contain secrets.
    """
    job_id = str(row["id"])
    action_id = ""
    with suppress(JournalUnwritable):
        action_id = await asyncio.to_thread(
            journal.before,
            cluster=store.name,
            user=store.user,
            verb=EXEC,
            job_ids=(job_id,),
            commands=((command.title,) if command.title else command.argv[:1],),
        )
    outcome = Outcome(job_id, None, "exit unknown")
    try:
        answer = await run_inside(store, row, command)
        outcome = Outcome(job_id, not answer.has_failed, summary(answer))
        return answer
    except (SchedulerRefused, UsageError) as error:
        outcome = Outcome(job_id, False, error.message)
        raise
    finally:
        if action_id:
            noting = asyncio.ensure_future(
                asyncio.to_thread(_note_after, journal, action_id, outcome)
            )
            await asyncio.shield(noting)


def _note_after(journal: Journal, action_id: str, outcome: Outcome) -> None:
    with suppress(JournalUnwritable):
        journal.after(action_id, (outcome,))


def _parse(answer: Answer, *, step: InsideStep, command: InsideCommand) -> InsideAnswer:
    frames = Frames(step.token)
    frames.feed(answer.stdout + b"\n")
    if not frames.outputs:
        raise step.failure(answer)
    received = {node for node, _ in frames.outputs}
    text = excerpt(answer.stderr)
    silent = [
        NodeOutput(node, problem=_silence(node, text))
        for node in step.nodes
        if node not in received
    ]
    skipped = [NodeOutput(node, problem="skipped: too many nodes for ssh") for node in step.skipped]
    cut = "cut off at the time limit"
    outputs = [
        replace(one, problem=cut) if one.status is None and not one.problem else one
        for one in frames.outputs.values()
    ]
    return InsideAnswer(command, tuple(sorted([*outputs, *silent, *skipped], key=_order)))


def _silence(node: str, text: str) -> str:
    """Explain why a node sent no output: the last line that names it, else the last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    own = [line for line in lines if node in line.replace(":", " ").split()]
    return f"no answer ({(own or lines)[-1]})" if lines else "no answer"


def _order(output: NodeOutput) -> tuple[object, ...]:
    return natural_order(output.node), natural_order(output.gpu)


def format_answer(answer: InsideAnswer) -> Iterable[tuple[str, tuple[str, ...]]]:
    """A title and lines a group, as a person reads them."""
    for group in answer.groups():
        ending = format_ending(group.answer, answer.command.seconds)
        cut = f"cut after {CAP_BYTES >> 10} KiB" if group.answer.is_cut else ""
        title = " · ".join(filter(None, (group.title, ending, cut)))
        yield title, group.lines


def summary(answer: InsideAnswer) -> str:
    """`4 nodes, 1 failed`."""
    nodes = len({output.node for output in answer.outputs})
    failed = sum(output.status != 0 for output in answer.outputs)
    gpus = sum(bool(output.gpu) for output in answer.outputs)
    parts = (
        counted(nodes, "node"),
        counted(gpus, "GPU") if gpus else "",
        f"{failed} failed" if failed else "",
    )
    return ", ".join(filter(None, parts))


def for_json(answer: InsideAnswer) -> list[dict[str, object]]:
    """Each node's answer with stable keys; bytes that are no text become replacement characters."""
    return [
        {
            "node": output.node,
            "gpu": output.gpu or None,
            "exit": output.status,
            "output": output.output.decode("utf-8", "replace"),
            "truncated": output.is_cut,
            "problem": format_ending(output, answer.command.seconds) or None,
        }
        for output in answer.outputs
    ]
