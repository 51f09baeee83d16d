"""Runs a command on each node of a running job, and groups equal answers."""

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
# Exit statuses of timeout(1) after TERM and after KILL.
_TIMED_OUT = 124
_KILLED = 137


class OutputGroup(Struct, frozen=True):
    """Equal answers of several nodes or GPUs; `answer` is that of the first."""

    places: str
    count: int
    answer: NodeOutput

    @property
    def title(self) -> str:
        """Nodes and their number, as in clush -b: `g[1-4] (4)`."""
        places = visible(self.places)
        return f"{places} ({self.count})" if self.count > 1 else places

    @property
    def lines(self) -> tuple[str, ...]:
        """Lines of the output, safe to show."""
        return tuple(shown_line(line).text for line in self.answer.output.splitlines())


class InsideAnswer(Struct, frozen=True):
    """Answers of all nodes or GPUs of a job to a command, in natural order."""

    command: InsideCommand
    outputs: tuple[NodeOutput, ...]

    @property
    def has_failed(self) -> bool:
        return any(output.status != 0 for output in self.outputs)

    def groups(self) -> list[OutputGroup]:
        """Group equal answers, in the order of their first nodes."""
        equal: dict[tuple[bytes, int | None, str], list[NodeOutput]] = {}
        for output in self.outputs:
            equal.setdefault((output.output, output.status, output.problem), []).append(output)
        groups = []
        for outputs in equal.values():
            groups.append(OutputGroup(_format_places(outputs), len(outputs), outputs[0]))
        return groups


def _format_places(outputs: Sequence[NodeOutput]) -> str:
    """Format nodes with their GPUs: `g[2-4]; g1: GPU 0,1`."""
    by_node: dict[str, list[str]] = {}
    for output in outputs:
        by_node.setdefault(output.node, []).append(output.gpu)
    by_gpus: dict[str, list[str]] = {}
    for node, gpus in by_node.items():
        by_gpus.setdefault(",".join(filter(None, gpus)), []).append(node)
    parts = []
    for gpu_list, nodes in by_gpus.items():
        text = compress(nodes)
        parts.append(f"{text}: GPU {gpu_list}" if gpu_list else text)
    return "; ".join(parts)


def format_ending(output: NodeOutput, seconds: int) -> str:
    """Format the end of a command that failed; '' after success."""
    ending = ""
    if output.status == _TIMED_OUT:
        ending = f"ended at the time limit of {seconds} s"
    elif output.status == _KILLED:
        ending = f"killed (exit {_KILLED})"
    elif output.status:
        ending = f"exit {output.status}"
    elif output.status is None and not output.problem:
        ending = "no answer"
    return ", ".join(filter(None, (ending, visible(output.problem))))


async def fetch_inside_row(
    store: ClusterStore,
    job_id: str,
    row: Mapping[str, Any] | None = None,
    *,
    needs: Capability = Capability.INSIDE,
) -> Mapping[str, Any]:
    """Return the row of a running job of the user.

    Raises UsageError for any other job, or if the scheduler lacks the capability `needs`.
    """
    store.backend.require(needs)
    shown = visible(job_id)
    if holds_many(job_id):
        raise UsageError(f"{shown} matches several jobs", "Specify one task, such as 88_3.")
    if row is None or row.get("node_list") is None or row["state"] not in ACTIVE:
        row = (await store.fetch_detail(job_id)).job.to_pylist()[0]
    owner = str(row["user"] or "")
    me = store.probe.user if store.probe is not None else ""
    if owner and me and owner != me:
        text = f"job {shown} belongs to {visible(owner)}, and only its owner can run commands in it"
        raise UsageError(f"{text} (you are {me})")
    if (row["_tasks"] or 1) > 1:
        raise UsageError(f"{shown} is an array", f"Specify one of its tasks: {shown}_1")
    state = row["state"]
    if state in WAITING:
        step = f"See why it is pending: hpcdash show {shown}"
        raise UsageError(f"job {shown} is not running yet ({state})", step)
    if state not in ACTIVE:
        raise UsageError(f"job {shown} has ended ({state})", f"See its log: hpcdash log {shown}")
    return row


async def run_inside(
    store: ClusterStore, row: Mapping[str, Any], command: InsideCommand
) -> InsideAnswer:
    """Run a command on a job's nodes, and return their answers.

    Raises UsageError, SchedulerRefused and the errors of the transport.
    """
    step = store.backend.inside.step(row, command)
    parse = partial(_parse, step=step, command=command)
    answers = max(1, len(step.nodes)) * (8 if command.each_gpu else 1)
    query = Query(step.argv, parse, step.limit_seconds, step.command, 2 * CAP_BYTES * answers)
    return await store.run_query(query)


async def run_noted(
    journal: Journal, store: ClusterStore, row: Mapping[str, Any], command: InsideCommand
) -> InsideAnswer:
    """Run a command like `run_inside`, and write it to the journal before and after.

    The journal has only the program, as arguments may contain secrets.
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
    outputs = []
    for output in frames.outputs.values():
        if output.status is None and not output.problem:
            output = replace(output, problem="cut off at the time limit")
        outputs.append(output)
    lines = [line.strip() for line in excerpt(answer.stderr).splitlines() if line.strip()]
    received = {node for node, _ in frames.outputs}
    for node in step.nodes:
        if node not in received:
            # The last line of stderr that names the node, else the last line.
            own = [line for line in lines if node in line.replace(":", " ").split()]
            problem = f"no answer ({(own or lines)[-1]})" if lines else "no answer"
            outputs.append(NodeOutput(node, problem=problem))
    for node in step.skipped:
        outputs.append(NodeOutput(node, problem="skipped: too many nodes for ssh"))
    return InsideAnswer(command, tuple(sorted(outputs, key=_order)))


def _order(output: NodeOutput) -> tuple[object, ...]:
    return natural_order(output.node), natural_order(output.gpu)


def format_answer(answer: InsideAnswer) -> Iterable[tuple[str, tuple[str, ...]]]:
    """Yield a title and the lines of each group."""
    for group in answer.groups():
        ending = format_ending(group.answer, answer.command.seconds)
        cut = f"truncated after {CAP_BYTES >> 10} KiB" if group.answer.is_cut else ""
        title = " · ".join(filter(None, (group.title, ending, cut)))
        yield title, group.lines


def summary(answer: InsideAnswer) -> str:
    """Format the number of nodes and GPUs: `4 nodes, 1 failed`."""
    parts = [counted(len({output.node for output in answer.outputs}), "node")]
    if gpus := sum(bool(output.gpu) for output in answer.outputs):
        parts.append(counted(gpus, "GPU"))
    if failed := sum(output.status != 0 for output in answer.outputs):
        parts.append(f"{failed} failed")
    return ", ".join(parts)


def for_json(answer: InsideAnswer) -> list[dict[str, object]]:
    """Return each node's answer for JSON; bytes that are not text become replacement characters."""
    answers = []
    for output in answer.outputs:
        node: dict[str, object] = {
            "node": output.node,
            "gpu": output.gpu or None,
            "exit": output.status,
            "output": output.output.decode("utf-8", "replace"),
            "truncated": output.is_cut,
            "problem": format_ending(output, answer.command.seconds) or None,
        }
        answers.append(node)
    return answers
