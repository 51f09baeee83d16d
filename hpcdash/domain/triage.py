"""Groups of an array's ended tasks with the same state, exit and error."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec import Struct

from hpcdash.domain import nodelist
from hpcdash.domain.array_tasks import ArrayTasks, joined_tasks
from hpcdash.domain.states import ENDED_BADLY, JobState

# If the scheduler ends a job, its exit code means nothing: sacct and scontrol report different
# ones.
_EXIT_IS_THE_STATE = frozenset(
    {
        JobState.TIMEOUT,
        JobState.OUT_OF_MEMORY,
        JobState.CANCELLED,
        JobState.PREEMPTED,
        JobState.NODE_FAILED,
        JobState.GONE,
    }
)
_SHELL_SIGNAL = 128
_UUID = re.compile(r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b")
_HEX = re.compile(r"\b0x[0-9a-fA-F]+\b|\b(?=[0-9a-f]*[a-f])(?=[a-f]*[0-9])[0-9a-f]{8,}\b")
_TIME = re.compile(
    r"\d{4}-\d\d-\d\d[T "
    r"]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:Z|[+-]\d\d:?\d\d)?|\d\d?:\d\d:\d\d(?:[.,]\d+)?"
)
_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")
_MAX_COMPARED_LENGTH = 400
# The fewest failures, and the least share of them, of a conspicuous node.
_MIN_NODE_FAILURES = 3
_CONSPICUOUS_SHARE = 2 / 3


class EndedTask(Struct, frozen=True):
    """A task that ended, or several of one record that ended before they started.

    `nodes` are names; `line` is the last meaningful line of its log: '' of an empty log, None if it
    was not read, for the reason in `line_problem` if known.
    """

    job_id: str
    tasks: ArrayTasks
    state: str
    exit_code: int | None = None
    exit_signal: int | None = None
    nodes: tuple[str, ...] = ()
    line: str | None = None
    line_problem: str = ""

    @property
    def failed(self) -> bool:
        return self.state in ENDED_BADLY


class TaskGroup(Struct, frozen=True):
    """Tasks that ended alike, in task order; `key` identifies the end, whichever tasks have it.

    `node` has most of these failures, '' if no node is conspicuous; `on_node` of `count` ran there.
    """

    key: str
    members: tuple[EndedTask, ...]
    node: str = ""
    on_node: int = 0

    @property
    def tasks(self) -> ArrayTasks:
        found = joined_tasks(task for member in self.members for task in member.tasks)
        assert found is not None
        return found

    @property
    def count(self) -> int:
        return sum(member.tasks.count for member in self.members)

    @property
    def state(self) -> str:
        return self.members[0].state

    @property
    def failed(self) -> bool:
        return self.members[0].failed

    @property
    def exit_code(self) -> int | None:
        # Of 137 and the 9 that accounting cuts it to, the whole one.
        return max(
            (member.exit_code for member in self.members if member.exit_code is not None),
            default=None,
        )

    @property
    def exit_signal(self) -> int | None:
        return max(
            (member.exit_signal for member in self.members if member.exit_signal is not None),
            default=None,
        )

    @property
    def line(self) -> str | None:
        return self.members[0].line

    @property
    def line_problem(self) -> str:
        return self.members[0].line_problem

    @property
    def nodes(self) -> tuple[tuple[str, int], ...]:
        """The nodes with the number of tasks that ran on each, the most first."""
        return tuple(_counted(self.members).most_common())


def group_tasks(tasks: Iterable[EndedTask]) -> tuple[TaskGroup, ...]:
    """Group tasks: failures first, of these groups with a known error, the largest first.

    Tasks that succeeded come last, in one group.
    """
    every = sorted(tasks, key=lambda task: task.tasks.first or 0)
    by_key: dict[str, list[EndedTask]] = {}
    for task in every:
        by_key.setdefault(_key(task), []).append(task)
    everywhere = _counted(every)
    failures = _counted(task for task in every if task.failed)
    groups = []
    for key, members in by_key.items():
        node, on_node = _conspicuous(members, everywhere, failures)
        groups.append(TaskGroup(key, tuple(members), node, on_node))
    return tuple(sorted(groups, key=_rank))


def _rank(group: TaskGroup) -> tuple[bool, bool, bool, int, int]:
    # A cancelled job did not fail.
    is_cancelled = group.state == JobState.CANCELLED
    return not group.failed, is_cancelled, group.line is None, -group.count, group.tasks.first or 0


def _key(task: EndedTask) -> str:
    if not task.failed:
        return str(task.state)
    reported = task.state not in _EXIT_IS_THE_STATE
    # Slurm's accounting keeps seven bits of an exit code.
    code = (task.exit_code or 0) % _SHELL_SIGNAL if reported else 0
    signal = (task.exit_signal or 0) if reported else 0
    line = "" if task.line is None else f"\n{normalised(task.line)}"
    return f"{task.state} {code} {signal}{line}"


def _counted(members: Iterable[EndedTask]) -> Counter[str]:
    return Counter(node for member in members for node in member.nodes)


def _conspicuous(
    members: Sequence[EndedTask], everywhere: Counter[str], failures: Counter[str]
) -> tuple[str, int]:
    """Return the node of most of these failures and their number, ('', 0) for none.

    Other nodes must have tasks too, and more tasks must have failed on the node than completed.
    """
    if not members[0].failed or len(everywhere) < 2:
        return "", 0
    placed = sum(1 for member in members if member.nodes)
    least = max(_MIN_NODE_FAILURES, _CONSPICUOUS_SHARE * placed)
    for node, count in _counted(members).most_common(1):
        if count >= least and 2 * failures[node] > everywhere[node]:
            return node, count
    return "", 0


def node_names(node_list: str | None) -> tuple[str, ...]:
    """Return the nodes of a row's node_list; () for none or for an unreadable list."""
    try:
        return tuple(nodelist.expand(node_list, 1000)) if node_list else ()
    except ValueError:
        return ()


def normalised(line: str) -> str:
    """Replace numbers, addresses and times in a line, so that it equals that of other tasks."""
    line = line[:_MAX_COMPARED_LENGTH]
    for pattern, sign in ((_UUID, "‹id›"), (_TIME, "‹time›"), (_HEX, "‹hex›"), (_NUMBER, "#")):
        line = pattern.sub(sign, line)
    return " ".join(line.split())


def last_meaningful(lines: Sequence[str]) -> str:
    """Return the line at the end of a log that explains how it ended; '' if all is blank.

    Blanks are single. It is the result of domain.root_cause without the rank: tasks in which other
    ranks failed first ended alike.
    """
    from hpcdash.domain.root_cause import root_cause

    cause = root_cause(lines)
    return "" if cause is None else cause.line
