"""The options of qsub that make the same job again, from what `qstat -f` says of it.

Builds no command.

A job's Submit_arguments have lost their quotes: each option is rebuilt from the attribute it set.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise

from msgspec import Struct
from msgspec.structs import replace

from hpcdash.backends.pbs.listing import MARK_VARIABLE, REPLACES_VARIABLE
from hpcdash.backends.pbs.log_files import split_variables, submit_arguments
from hpcdash.backends.pbs.options import Settings, chunks, split_list
from hpcdash.backends.pbs.values import format_walltime, resources_under
from hpcdash.backends.queries import Native, Row
from hpcdash.backends.submissions import NewLimits
from hpcdash.domain.units import KIB, parse_duration, parse_memory
from hpcdash.errors import UsageError

# Option → the attribute it sets.
_ATTRIBUTES = {
    "A": "Account_Name",
    "P": "project",
    "p": "Priority",
    "c": "Checkpoint",
    "j": "Join_Path",
    "k": "Keep_Files",
    "m": "Mail_Points",
    "M": "Mail_Users",
    "R": "Remove_Files",
    "S": "Shell_Path_List",
    "u": "User_List",
    "W.umask": "umask",
    "W.group_list": "group_list",
    "W.sandbox": "sandbox",
    "W.stagein": "stagein",
    "W.stageout": "stageout",
    "W.tolerate_node_failures": "tolerate_node_failures",
    "W.release_nodes_on_stageout": "release_nodes_on_stageout",
}
# What a job has where nobody said anything.
_DEFAULTS = {
    "P": "_pbs_project_default",
    "p": "0",
    "c": "u",
    "j": "n",
    "k": "n",
    "m": "a",
    "r": "y",
    "W.sandbox": "HOME",
    "W.tolerate_node_failures": "none",
}
# Sums over a job's chunks, which the server makes; qsub refuses them beside select.
_SUMMED = frozenset(
    (
        "ncpus",
        "nodect",
        "nodes",
        "neednodes",
        "mpiprocs",
        "ompthreads",
        "mem",
        "vmem",
        "ngpus",
        "naccelerators",
        "accelerator",
        "accelerator_memory",
        "accelerator_model",
        "host",
        "vnode",
        "arch",
        "select",
        "place",
    )
)
_TIMES = frozenset(
    f"l.{name}" for name in ("walltime", "cput", "pcput", "min_walltime", "max_walltime")
)
# What starts or ends a wait for others; `before…` is what others wait for.
_WAITS = re.compile(r"(?:^|,)(?:after|on:|syncwith)")
_VARIABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
# Options that the command line says anew, or that do not make another job.
_SAID_ANEW = frozenset("vVCfz")
_NOT_THE_JOBS = frozenset(("depend", "block", "interactive"))


class Recorded(Struct, frozen=True):
    """Options of a job by the keys of pbs.options.settings, without those that are known defaults.

    `variables` are NAME=VALUE as -v takes them, `notes` in words what cannot be had again.
    """

    settings: Settings
    variables: tuple[str, ...]
    has_environment: bool
    work_dir: str
    notes: tuple[str, ...]


def read_record(native: Native, row: Row, in_script: Settings) -> Recorded:
    """Read a job's attributes, its row of domain.schema.JOBS, and the settings of its script's
    directives.

    Raises UsageError for a job that has no script, and for one of which nothing is told.
    """
    _require_script(native, row["array_id"] or row["id"])
    work_dir = row["work_dir"] or ""
    variables = _variables(native.get("Variable_List", ""))
    host = variables.get("PBS_O_HOST") or native.get("Submit_Host") or ""
    number = str(row["_number"])
    found = {
        key: native.get(attribute, "")
        for key, attribute in _ATTRIBUTES.items()
        if native.get(attribute) != _DEFAULTS.get(key)
    }
    name = native.get("Job_Name") or row["name"] or ""
    if row["array_id"] and row["_task"] is not None:
        # Torque adds a task's number to its array's name.
        name = name.removesuffix(f"-{row['_task']}")
    found |= {
        "N": name,
        "q": variables.get("PBS_O_QUEUE") or native.get("queue") or "",
        "r": "n" if native.get("Rerunable") == "False" else "",
        **_resources(native),
    }
    for key in in_script:
        kind, _, name = key.partition(".")
        if kind == "W" and key not in _ATTRIBUTES and name not in _NOT_THE_JOBS and name in native:
            found[key] = native[name]
    for key, attribute in (("o", "Output_Path"), ("e", "Error_Path")):
        found[key] = _path(native.get(attribute, ""), key, number, work_dir, host)
    parts = submit_arguments(native).split()
    has_environment = "-V" in parts or "V" in in_script
    named = None
    if has_environment:
        texts = [after for word, after in pairwise(parts) if word == "-v"]
        texts += [word[2:] for word in parts if word.startswith("-v") and len(word) > 2]
        texts.append(in_script.get("v", ""))
        named = {item.partition("=")[0] for text in texts for item in split_list(text)}
    passed, lost = _passed_on(variables, named)
    left_out = ["its dependency"] if _WAITS.search(native.get("depend", "")) else []
    left_out += ["its start time"] if native.get("Execution_Time") else []
    notes = []
    if left_out:
        notes.append(f"omitted (no longer applicable): {', '.join(left_out)}")
    if lost:
        notes.append(f"variables that qsub would change are omitted: {', '.join(lost)}")
    if has_environment:
        notes.append(
            "-V: the job gets the environment of a new session, not the original environment"
        )
    settings = {key: value for key, value in found.items() if value}
    return Recorded(settings, tuple(passed), has_environment, work_dir, tuple(notes))


def _require_script(native: Native, job_id: str) -> None:
    if native.get("executable"):
        raise UsageError(
            f"job {job_id} runs a command and has no script", "Submit it by hand: qsub -- COMMAND."
        )
    interactive = native.get("interactive", "").lower()
    if interactive == "true" or interactive.isdecimal():
        raise UsageError(f"job {job_id} is interactive: it has no script")
    if not resources_under(native, "Resource_List") and "Variable_List" not in native:
        raise UsageError(
            f"PBS no longer reports what job {job_id} requested",
            "Submit its script: hpcdash submit.",
        )


def with_limits(record: Recorded, limits: NewLimits, nodes: int) -> Recorded:
    """The record with other limits; a `select` has its memory in its chunks, anything else in `mem`
    of the job.
    """
    settings = dict(record.settings)
    if limits.time_seconds is not None:
        settings["l.walltime"] = format_walltime(limits.time_seconds)
    if limits.memory_bytes is not None:
        whole = limits.memory_bytes * nodes
        if (select := settings.get("l.select")) is not None:
            settings["l.select"] = _with_memory(select, whole)
        else:
            settings["l.mem"] = _kib(whole)
    return replace(record, settings=settings)


def _with_memory(select: str, whole: int) -> str:
    """A select whose chunks have this memory together, in the parts they had; equal ones where none
    was written.
    """
    shares = [(int(number or 1), dict(pairs).get("mem", "")) for number, pairs in chunks(select)]
    memories = [parse_memory(written) if written else 0 for _, written in shares]
    had = sum(count * memory for (count, _), memory in zip(shares, memories, strict=True))
    count_all = sum(count for count, _ in shares)
    parts = []
    for memory, chunk in zip(memories, select.split("+"), strict=True):
        requested = whole * memory // had if had else whole // max(1, count_all)
        amounts = [word for word in chunk.split(":") if not word.startswith("mem=")]
        if requested:
            amounts.append(f"mem={_kib(requested)}")
        parts.append(":".join(amounts))
    return "+".join(parts)


def _kib(amount_bytes: int) -> str:
    return f"{-(-amount_bytes // KIB)}kb"


def to_arguments(record: Recorded, in_script: Settings) -> list[str]:
    """qsub's words for a record, but for what directives say just so, and for arrays and
    variables.
    """
    parts: list[str] = []
    for key, value in record.settings.items():
        if key in in_script and _same(key, value, in_script[key], record.work_dir):
            continue
        kind, _, name = key.partition(".")
        if kind == "l":
            parts += ["-l", f"{name}={_quoted(value)}"]
        else:
            parts += [f"-{kind}", f"{name}={value}" if name else value]
    if record.has_environment and "V" not in in_script:
        parts.append("-V")
    return parts


def unlike_directives(record: Recorded, in_script: Settings, *, is_array: bool) -> list[str]:
    """Return the requests of directives that the job on record does not have, and no option takes
    back: `-a`, `-l ncpus`.
    """
    unlike = []
    for key, value in in_script.items():
        if key in _SAID_ANEW or (key in ("J", "t") and is_array):
            continue
        # The attributes of -W that qsub does not guard are the directive's, whatever the command
        # line says.
        if key in record.settings and not key.startswith("W."):
            continue
        if not _same(key, record.settings.get(key, _DEFAULTS.get(key)), value, record.work_dir):
            unlike.append(f"-{key.replace('.', ' ')}")
    return unlike


def _same(key: str, recorded: str | None, given: str, work_dir: str) -> bool:
    """Whether a directive asks for what is on record."""
    if recorded is None:
        return False
    if key in _TIMES:
        try:
            return parse_duration(recorded) == parse_duration(given)
        except ValueError:
            return recorded == given
    if key in ("k", "m"):
        return set(recorded) == set(given)
    if key in ("o", "e"):
        path = given if given.startswith("/") or ":" in given else f"{work_dir}/{given}"
        return recorded.rstrip("/") == path.rstrip("/")
    if key == "W.umask":
        return recorded.lstrip("0") == given.lstrip("0")
    return recorded == given


def _resources(native: Native) -> dict[str, str]:
    """Return the resources requested by -l: `nodes`, or `select` and `place`, and all that is no
    sum over the chunks.
    """
    reported = resources_under(native, "Resource_List")
    derived = frozenset({"nodect", "neednodes"})
    if "select" in reported:
        # PBS makes a select of nodes, which it does not take beside it.
        requested = {"nodes"} if "nodes" in reported else {"select", "place"}
        derived = (
            _SUMMED | {name for _, chunk in chunks(reported["select"]) for name, _ in chunk}
        ) - requested
    return {f"l.{name}": value for name, value in reported.items() if name not in derived}


def _path(reported: str, letter: str, number: str, work_dir: str, host: str) -> str:
    """A path as -o and -e take it; '' for the one a job has by default."""
    on_host, colon, path = reported.partition(":")
    if not colon or "/" in on_host:
        on_host = ""
        path = reported
    folder, _, name = path.rpartition("/")
    if folder == work_dir and re.fullmatch(
        rf".*\.{letter}{number}([.-](\^array_index\^|\d+))?", name, re.DOTALL
    ):
        return ""
    return path if on_host in ("", host) else reported


def _variables(text: str) -> dict[str, str]:
    """Variable_List by name, values as they are written there."""
    variables = (_VARIABLE.fullmatch(variable.strip()) for variable in split_variables(text))
    return {found[1]: found[2] for found in variables if found}


def _passed_on(variables: Mapping[str, str], named: set[str] | None) -> tuple[list[str], list[str]]:
    """(NAME=VALUE of the user's variables, names of variables that qsub cannot take again); `named`
    None: all of them.
    """
    passed = []
    lost = []
    for name, value in variables.items():
        is_own = name.startswith("PBS_O_") or name in (MARK_VARIABLE, REPLACES_VARIABLE)
        if is_own or (named is not None and name not in named):
            continue
        # qsub takes quotes for its own, and doubles each backslash that protects no comma; ^[ may
        # be a control byte.
        if re.search("[\"'\n\f\ufffd]|\\^[@-_]", value) or "\\" in value.replace("\\,", ""):
            lost.append(name)
        else:
            passed.append(f"{name}={value}")
    return passed, lost


def _quoted(value: str) -> str:
    """A resource's value where -l takes commas and blanks for its own."""
    if not re.search(r"[,\s]", value) or re.search(r"[\"']", value):
        return value
    return f'"{value}"'
