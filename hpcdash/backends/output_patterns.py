"""Output paths of jobs: fills in `%j`, `%A_%a`, `%N` … as Slurm does, and as the embedded queue's
scripts expect.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

JOB_DEFAULT = "slurm-%j.out"
TASK_DEFAULT = "slurm-%A_%a.out"
# What stands for no array task: slurmd writes it where a job that is no array has %a.
NO_TASK = "4294967294"
_FIELD = re.compile(r"%(\d*)(.)", re.DOTALL)
_PADDED = frozenset("AabjJnt")
_MAX_DIGITS = 10
# Slurm 22.05's scontrol fills these in, where no width is given, whatever stands before the %.
_SHOWN = re.compile(r"%([Aajux])")
# From 23.02 on it knows widths, and a % that another takes the meaning of; from 25.05 on the last
# letter.
_SHOWN_LATER = re.compile(r"%(?:(%)|([0-9]*)([Aajuxb]))")
_SHOWN_AFTER_ALL = re.compile(r"%[0-9]*[Aajux]")


@dataclass(frozen=True, slots=True)
class PathFacts:
    """Values of the fields of a pattern; '' is not known (yet), and leaves the field as it is.

    `job_number` is the job's or task's own; `array_id` and `task` are of an array's task,
    `is_array` is true of one whose task is not known too. `node` is the first node's name.
    """

    job_number: str
    work_dir: str
    user: str = ""
    name: str | None = None
    node: str = ""
    array_id: str = ""
    task: str = ""
    is_array: bool = False


def output_path(pattern: str, facts: PathFacts, *, with_modulo: bool = False) -> str:
    """The file that a batch job's pattern names, absolute where the job's folder is known.

    A backslash anywhere keeps all fields from being filled in, and is taken away itself.
    `with_modulo`: %b is the task's number modulo 10, as in releases that know it.
    """
    if pattern.lower() == "none":
        return "/dev/null"
    if "\\" in pattern:
        filled = re.sub(r"\\(.?)", r"\1", pattern, flags=re.DOTALL)
    else:
        filled = _filled(pattern, _values(facts, with_modulo=with_modulo))
    return _absolute(filled, facts.work_dir)


def default_pattern(facts: PathFacts) -> str:
    """Return the pattern of stdout where none is requested."""
    return TASK_DEFAULT if facts.is_array else JOB_DEFAULT


def paths_as_shown(pattern: str, facts: PathFacts) -> tuple[str, ...]:
    """Return the output of `scontrol show job` for a pattern: up to Slurm 22.05, from 23.02 on,
    from 25.05 on.
    """
    if pattern.lower() == "none":
        return ("/dev/null",)
    values = _values(facts, with_modulo=True)
    values |= {"A": facts.array_id or facts.job_number, "a": facts.task or NO_TASK}
    filled = [_SHOWN.sub(lambda field: values.get(field[1]) or "", pattern)]
    for letters in ("Aajux", "Aajuxb"):

        def fill(field: re.Match[str], letters: str = letters) -> str:
            if field[1]:
                return "%"
            return (
                _padded(field[3], field[2], values.get(field[3]) or "")
                if field[3] in letters
                else field[0]
            )

        filled.append(_SHOWN_LATER.sub(fill, pattern))
    return tuple(_absolute(path, facts.work_dir) for path in filled)


def finish_shown(shown: str, facts: PathFacts) -> str:
    """The file behind a path that scontrol shows: fills in what it leaves, and keeps the job's name
    as it is.
    """
    if facts.is_array:
        shown = shown.replace(NO_TASK, facts.task or "%a")
    values = _values(facts)
    # A name, or a folder, with a % in it is no pattern.
    remaining = [text for text in (facts.work_dir + "/", facts.name or "") if "%" in text]
    if not remaining:
        return _filled(shown, values)
    pieces = re.split("(" + "|".join(re.escape(text) for text in remaining) + ")", shown)
    return "".join(piece if piece in remaining else _filled(piece, values) for piece in pieces)


def shown_is_doubtful(shown: str, facts: PathFacts) -> bool:
    """Whether a path that scontrol shows may stand for more than one pattern: one with a backslash,
    or with `%%j`.

    That is shown as %, the job's number, up to 22.05, where `%4j` stays, and as `%j` later, where
    it does not.
    """
    if "\\" in shown or (facts.job_number and f"%{facts.job_number}" in shown):
        return True
    # A name may have a % of its own.
    without_name = shown.replace(facts.name, "") if facts.name else shown
    return _SHOWN_AFTER_ALL.search(without_name) is not None


def _values(facts: PathFacts, *, with_modulo: bool = False) -> dict[str, str | None]:
    # Of a batch job's own files: its step is called batch, and runs as task 0 on node 0.
    task = facts.task if facts.is_array else NO_TASK
    return {
        "A": facts.array_id or facts.job_number,
        "a": task,
        "b": str(int(task) % 10) if with_modulo and task.isdigit() else "",
        "j": facts.job_number,
        "J": facts.job_number,
        "n": "0",
        "N": facts.node,
        "s": "batch",
        "t": "0",
        "u": facts.user,
        # A job's name may be empty.
        "x": facts.name,
    }


def _filled(pattern: str, values: dict[str, str | None]) -> str:
    def fill(field: re.Match[str]) -> str:
        width = field[1]
        letter = field[2]
        if letter == "%":
            return f"{width}%"
        value = values.get(letter)
        if value is None or (not value and letter != "x"):
            return field[0]
        return _padded(letter, width, value)

    return _FIELD.sub(fill, pattern)


def _padded(letter: str, width: str, value: str) -> str:
    if letter not in _PADDED:
        return value
    # Of a width three digits tell that it is more than the most.
    return value.rjust(min(int(width.lstrip("0")[:3] or 0), _MAX_DIGITS), "0")


def _absolute(path: str, work_dir: str) -> str:
    return path if path.startswith("/") or not work_dir else f"{work_dir.rstrip('/')}/{path}"
