"""Job IDs, as people and rows write them: parsed, split and joined.

Slurm's: 12, 12_3, 12_[3-5,9%1], 65+1, and 12_3@lab2 on another cluster of the site. PBS's:
12.server, 12[].server (an array), 12[3].server, 12[3-5].server, where the server may be left out.
Ray's: raysubmit_xyz as Ray makes them, or any text that a person chose.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from hpcdash.domain.array_tasks import ArrayTasks, parse_tasks

# PBS counts to 999 999 999 999 at most (max_job_sequence_id), Slurm less far.
_NUMBER = re.compile(r"[0-9]{1,12}(?![0-9])")
# A number alone after the dot is a step of Slurm's. A PBS server that was given a port (-p) has it
# in its name.
_SERVER = re.compile(r"\.(?![0-9]+$)([A-Za-z0-9][A-Za-z0-9._-]*(?::[0-9]{1,5})?)")
_SEPARATOR = re.compile(r"[,\s]")
_MISSING = re.compile(r"(?:^|,)\s*,|,\s*$")
_HOW = "use 12, 12_3 or 12_[3-5]; on PBS 12[3] or 12[3-5]"
RAY_START = "raysubmit_"
_MADE_BY_RAY = re.compile(rf"{RAY_START}[A-Za-z0-9]+")
# Slurm's alone: a PBS id with a server or brackets is none of them.
_ON_CLUSTER = re.compile(
    r"([0-9]+(?:_(?:[0-9]+|\[[^\]]*\])|\+[0-9]+)?)@([A-Za-z0-9][A-Za-z0-9_.-]*)"
)
_SLURM_TASKS = re.compile(r"([0-9]+)_(.*)", re.DOTALL)
_PBS_TASKS = re.compile(r"([0-9]+)\[([^\]]*)\](.*)", re.DOTALL)


class BadJobId(ValueError):
    """A text that is no job id; `position` is the 0-based offset of the first bad character in
    `text`.
    """

    def __init__(self, text: str, position: int, why: str) -> None:
        super().__init__(f"{text!r} is not a job ID: {why}")
        self.text = text
        self.position = position
        self.why = why


@dataclass(frozen=True, slots=True)
class JobId:
    """A job, tasks of an array (`tasks`; None: all there is under the number), or a component of a
    heterogeneous job.

    A throttle is no part of an id: it is dropped. `has_brackets` for PBS's way of writing an array;
    `server` is what stands after PBS's first dot, `cluster` what stands after Slurm's @, '' where
    it was left out.
    """

    number: str
    tasks: ArrayTasks | None = None
    component: int | None = None
    has_brackets: bool = False
    server: str = ""
    cluster: str = ""

    def __str__(self) -> str:
        if self.cluster:
            return with_cluster(str(replace(self, cluster="")), self.cluster)
        if self.component is not None:
            return f"{self.number}+{self.component}"
        ending = f".{self.server}" if self.server else ""
        if self.has_brackets:
            return f"{self.number}[{self.tasks or ''}]{ending}"
        if self.tasks is None:
            return f"{self.number}{ending}"
        return (
            f"{self.number}_{self.tasks}"
            if self.tasks.count == 1
            else f"{self.number}_[{self.tasks}]"
        )


def parse_job_id(text: str) -> JobId:
    """Parse an ID; raises BadJobId with the position of its fault."""
    plain, cluster = plain_id(text)
    if cluster:
        return replace(parse_job_id(plain), cluster=cluster)
    number = _NUMBER.match(text)
    if number is None:
        raise BadJobId(text, 0, "expected a job number first")
    position = number.end()
    tasks = None
    component = None
    has_brackets = text.startswith("[", position)
    server = ""
    if text.startswith("[]", position):
        position += 2
    elif has_brackets:
        tasks, position = _read_tasks(text, position)
    elif text.startswith("_", position):
        tasks, position = _read_tasks(text, position + 1)
    elif text.startswith("+", position):
        found = _NUMBER.match(text, position + 1)
        if found is None:
            raise BadJobId(text, position + 1, "expected a component number after +")
        component = int(found[0])
        position = found.end()
    if (has_brackets or (tasks is None and component is None)) and (
        named := _SERVER.match(text, position)
    ):
        server = named[1]
        position = named.end()
    if position < len(text):
        raise BadJobId(text, position, _HOW)
    return JobId(str(int(number[0])), tasks, component, has_brackets, server)


def read_job_id(text: str) -> JobId | None:
    """Parse an ID; None for a text that is not one."""
    try:
        return parse_job_id(text)
    except BadJobId:
        return None


def plain_id(job_id: str) -> tuple[str, str]:
    """Split 12_3@lab2 into 12_3 and lab2, its Slurm cluster; '' for none."""
    found = _ON_CLUSTER.fullmatch(job_id)
    return (found[1], found[2]) if found else (job_id, "")


def with_cluster(job_id: str, cluster: str) -> str:
    """Return the ID on a Slurm cluster; unchanged for ''."""
    return f"{job_id}@{cluster}" if cluster else job_id


def pbs_job_id(text: str) -> JobId:
    """Parse a job ID for PBS; raises BadJobId for an id with a cluster of Slurm's."""
    job = parse_job_id(text)
    if job.cluster:
        raise BadJobId(text, text.index("@"), _HOW)
    return job


def slurm_job_id(text: str) -> JobId:
    """Parse a job ID for Slurm: 12[3] is 12_3; raises BadJobId for an id with a server."""
    job = parse_job_id(text)
    if job.server:
        raise BadJobId(text, text.index("."), "use 12, 12_3 or 12_[3-5]")
    return replace(job, has_brackets=False)


def _read_tasks(text: str, position: int) -> tuple[ArrayTasks, int]:
    """Parse the tasks from `position` on; return them and their end."""
    if task := _NUMBER.match(text, position):
        return ArrayTasks((range(int(task[0]), int(task[0]) + 1),)), task.end()
    if not text.startswith("[", position):
        raise BadJobId(text, position, "expected a task number after _, or several in brackets")
    end = text.find("]", position)
    if end < 0:
        raise BadJobId(text, len(text), "unclosed bracket")
    body = text[position + 1 : end]
    try:
        tasks = parse_tasks(body)
    except ValueError as error:
        raise BadJobId(text, position + 1 + _bad_item(body), str(error)) from None
    if tasks.is_incomplete:
        raise BadJobId(text, end, "the task list is truncated")
    return replace(tasks, throttle=None), end + 1


def _bad_item(body: str) -> int:
    """Return the position of the first item that is not a task."""
    position = 0
    for item in body.split(","):
        try:
            parse_tasks(item)
        except ValueError:
            return position
        position += len(item) + 1
    return 0


def split_ids(text: str) -> list[str]:
    """Split a list of IDs at commas and blanks outside brackets.

    Raises BadJobId if an ID is missing on a side of a comma.
    """
    if missing := _MISSING.search(text):
        raise BadJobId(text, missing.start(), "an ID is missing next to a comma")
    return _parts(text)


def named_ids(text: str) -> list[str]:
    """Split a list of IDs that schedulers made, like split_ids; any other text is one ID.

    A person may give a Ray job an ID with blanks and commas. Raises BadJobId like split_ids.
    """
    is_list = all(_MADE_BY_RAY.fullmatch(part) or read_job_id(part) for part in _parts(text))
    return split_ids(text) if is_list else [text]


def _parts(text: str) -> list[str]:
    parts: list[str] = []
    start = depth = 0
    for position, character in enumerate(text):
        if character == "[":
            depth += 1
        elif character == "]":
            depth = max(0, depth - 1)
        elif depth == 0 and _SEPARATOR.match(character):
            parts.append(text[start:position])
            start = position + 1
    return [part for part in (*parts, text[start:]) if part]


def covers(requested: JobId, other: JobId) -> bool:
    """Whether an ID includes another or a part of it: 12 covers 12_3 and 12+1, 12_[3-5] covers
    12_[5-9].
    """
    # A server may be missing, or lack its domain.
    shorter, longer = sorted((requested.server, other.server), key=len)
    is_same_server = shorter in ("", longer) or longer.startswith(f"{shorter}.")
    if requested.number != other.number or not is_same_server:
        return False
    if requested.cluster and other.cluster and requested.cluster != other.cluster:
        return False
    if requested.component is not None:
        return requested.component == other.component
    if requested.tasks is None:
        return True
    return other.tasks is not None and requested.tasks.overlaps(other.tasks)


def parse_array_id(job_id: str) -> str:
    """Return the ID of a task's array: 12 for 12_3, 12[].server for 12[3].server; any other ID
    unchanged.
    """
    plain, cluster = plain_id(job_id)
    if cluster:
        return with_cluster(parse_array_id(plain), cluster)
    if found := _SLURM_TASKS.fullmatch(job_id):
        return found[1]
    if found := _PBS_TASKS.fullmatch(job_id):
        return f"{found[1]}[]{found[3]}"
    return job_id


def parse_task_part(job_id: str) -> str:
    """Parse the task part of a row's id; '' for none.

    For example 3 of 12_3 and 12[3].server, [4-9] of 12_[4-9].
    """
    job_id, _ = plain_id(job_id)
    found = _SLURM_TASKS.fullmatch(job_id) or _PBS_TASKS.fullmatch(job_id)
    return found[2] if found else ""


def holds_many(job_id: str) -> bool:
    """Whether a row's ID stands for an array or several of its tasks, not for one job or task."""
    job_id, _ = plain_id(job_id)
    found = _SLURM_TASKS.fullmatch(job_id) or _PBS_TASKS.fullmatch(job_id)
    return found is not None and not found[2].isdigit()


def is_task(job_id: str) -> bool:
    """Whether an ID is that of a single task of an array."""
    return parse_task_part(job_id).isdigit()


def with_tasks(array_id: str, tasks: ArrayTasks) -> str:
    """Return the ID of tasks of an array, in the notation of the array's ID; raises BadJobId."""
    return str(replace(parse_job_id(array_id), tasks=replace(tasks, throttle=None)))


def in_full(job_id: str, row_id: str, array_id: str | None) -> str:
    """Return an ID that a person wrote in the notation of its row: 12.server for 12, or the array's
    12[].server.

    It is unchanged if the row is another job's, or if it is not an ID.
    """
    if job_id in (row_id, array_id):
        return job_id
    requested = read_job_id(job_id)
    row_job = read_job_id(row_id)
    if requested is None or row_job is None or not covers(requested, row_job):
        return job_id
    if array_id is None:
        return row_id
    return array_id if requested.tasks is None else with_tasks(array_id, requested.tasks)


def parse_server(job_id: str) -> str:
    """Return the PBS server in a row's ID; '' for none."""
    found = re.match(r"[0-9]+(?:\[[^\]]*\])?", job_id)
    named = _SERVER.fullmatch(job_id, found.end()) if found else None
    return named[1] if named else ""


def parse_job_key(job_id: str) -> str:
    """Return what the rows of a job or an array share: its number, on another Slurm cluster 12@lab2;
    '' for an ID without a number.
    """
    number = parse_job_number(job_id)
    return with_cluster(number, plain_id(job_id)[1]) if number else ""


def parse_job_number(job_id: str) -> str:
    """Return the digits at the start of a row's ID; '' for none or for too many."""
    found = _NUMBER.match(job_id)
    return found[0] if found else ""
