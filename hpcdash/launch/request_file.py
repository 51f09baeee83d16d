"""REQUEST.toml as a checked request, or all that is wrong with it, by line and key. Knows no disk and no scheduler."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from hpcdash.config.locate import key_lines, line_of
from hpcdash.config.problems import ConfigProblems, KeyPath, Problem, did_you_mean, dotted, printable, quoted, shown
from hpcdash.config.read import parse_document
from hpcdash.config.values import Reader, Unfit, flag, line_of_text, one_of
from hpcdash.domain import nodelist, units
from hpcdash.domain.array_tasks import MAX_TASKS, ArrayTasks, parse_tasks
from hpcdash.domain.job_ids import parse_job_id, split_ids
from hpcdash.errors import ConfigError
from hpcdash.launch.early_signal import SIGNALS
from hpcdash.launch.names import SOURCES, accounted_to
from hpcdash.launch.request import Container, EarlySignal, Launcher, Request, Runtime, Site, SlotType

_Parsed = TypeVar("_Parsed")
NEXT_STEP = "Mend the file; nothing was submitted."
MOST_SLOTS = 1_000_000
# sbatch: "sig_time must have an integer value between 0 and 65535".
LONGEST_SIGNAL_SECONDS = 65_535
# Slurm takes a whole number of MiB, and 0 for all of a node's.
_LEAST_MEMORY_BYTES = 1024**2
_LONGEST_TEXT = 1_000_000
_SIGNAL = re.compile(r"(?:(B):)?(?:SIG)?([A-Z0-9]+)@([0-9]{1,9})")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NODES = re.compile(r"[A-Za-z0-9._\[\],-]+")
_BIND_OPTIONS = re.compile(r"[A-Za-z0-9_=,-]+")


class RequestProblems(ConfigProblems):
    """All that is wrong with a request's file, in its order; as a ConfigError it stands at the first."""

    def __init__(self, file: str, problems: Collection[Problem]) -> None:
        super().__init__(file, list(problems))
        self.next_step = NEXT_STEP


def read_request(text: str, file: str = "REQUEST.toml", *, site: Site | None = None) -> Request:
    """The request a TOML text makes; what [site] leaves out is as in `site`, which the cluster's configuration gives.

    `file` is the name told in errors. Raises RequestProblems (a ConfigError) with file, line and key of every problem.
    """
    named = printable(file)
    try:
        document = parse_document(text, named)
    except ConfigProblems as error:
        raise RequestProblems(named, error.problems) from None
    checking = _Checking(document)
    request = checking.request(site or Site())
    if checking.problems:
        lines = key_lines(text)
        placed = [Problem(line_of(lines, path), dotted(path), words) for path, words in checking.problems]
        raise RequestProblems(named, sorted(placed, key=lambda problem: problem.line or 0))
    return request


class _Checking:
    def __init__(self, document: Mapping[str, object]) -> None:
        self.document = document
        self.problems: list[tuple[KeyPath, str]] = []

    def request(self, site: Site) -> Request:
        """The request; good only when there are no problems."""
        fields = self.fields(self.document, (), _TOP, tables=_TABLES)
        given = {_FIELDS.get(key, key): value for key, value in fields.items()}
        if "command" in self.document and "script" in self.document:
            self.problems.append((("script",), "the command is given too: give one of command and script"))
        elif "command" not in self.document and "script" not in self.document:
            self.problems.append((("command",), "missing: give what to run, a command or a script"))
        signal, limit = given.get("signal"), given.get("limit_seconds")
        if signal is not None and limit is not None and signal.seconds_before >= limit:
            self.problems.append(
                (("signal",), f"{signal.seconds_before} s before the end is not within the time, {limit} s")
            )
        return Request(
            environment=self.environment(),
            container=self.container(),
            site=replace(site, **self.fields(self.table("site"), ("site",), _SITE)),
            **given,
        )

    def table(self, key: str) -> Mapping[str, object]:
        table = self.document.get(key, {})
        if isinstance(table, dict):
            return table
        self.problems.append(((key,), f"expected a table, not {shown(table)}"))
        return {}

    def fields(
        self, table: Mapping[str, object], path: KeyPath, readers: Mapping[str, Reader], tables: Collection[str] = ()
    ) -> dict[str, Any]:
        """The values that are there and fit."""
        fit: dict[str, Any] = {}
        for key, value in table.items():
            if key in readers:
                try:
                    fit[key] = readers[key](value)
                except Unfit as error:
                    self.problems.append(((*path, key), str(error)))
            elif key not in tables:
                self.problems.append(((*path, key), _unknown_key(key, path, (*readers, *tables))))
        return fit

    def environment(self) -> dict[str, str]:
        table = self.table("environment")
        for name in table:
            path = ("environment", name)
            if name in _TOP:
                self.problems.append((path, f"this is a key of the request; {_AT_THE_TOP}"))
            elif not _VARIABLE.fullmatch(name):
                self.problems.append((path, "no name of a variable: letters, digits and '_', no digit first"))
        return self.fields(table, ("environment",), dict.fromkeys(table, _variable))

    def container(self) -> Container | None:
        if "container" not in self.document:
            return None
        before = len(self.problems)
        table = self.table("container")
        found = self.fields(table, ("container",), _CONTAINER)
        if len(self.problems) == before and "image" not in table and found.get("runtime") is not Runtime.NONE:
            self.problems.append((("container", "image"), 'missing: name an image, or write runtime = "none"'))
        return Container(**found)


# Slurm's and PBS's words for what a request says.
_OTHER_WORDS = {
    "partition": "queue",
    "gpus": "slots",
    "ngpus": "slots",
    "walltime": "time",
    "chdir": "work_dir",
    "dependency": "after",
    "env": "environment",
    "job_name": "name",
}
_AT_THE_TOP = "it stands at the top of the file, before the first [table]"


def _unknown_key(key: str, path: KeyPath, known: Collection[str]) -> str:
    if path and key in _TOP:
        return f"unknown key; {_AT_THE_TOP}"
    if home := next((name for name, readers in _INNER.items() if not path and key in readers), ""):
        return f"unknown key; it belongs in [{home}]"
    if not path and key in _OTHER_WORDS:
        return f"unknown key; did you mean {quoted(_OTHER_WORDS[key])}?"
    return f"unknown key{did_you_mean(key, known)}"


def _lines(value: object) -> str:
    """Text of one or several lines that shows something, tabs among it."""
    if not isinstance(value, str) or not value.strip():
        return line_of_text(value)
    if len(value) > _LONGEST_TEXT:
        raise Unfit(f"too long: at most {_LONGEST_TEXT} characters")
    odd = next((letter for letter in value if letter not in "\n\t" and not letter.isprintable()), "")
    if odd:
        raise Unfit(f"holds a character that does not print: {printable(odd)}")
    return value


def _whole(value: object, smallest: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not smallest <= value <= MOST_SLOTS:
        raise Unfit(f"expected a whole number from {smallest} to {MOST_SLOTS}, not {shown(value)}")
    return value


def _list(value: object, read: Callable[[object], str] = line_of_text) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise Unfit(f'expected an array of texts, as in ["a", "b"], not {shown(value)}')
    items = []
    for at, item in enumerate(value):
        try:
            items.append(read(item))
        except Unfit as error:
            raise Unfit(f"item {at + 1}: {error}") from None
    return tuple(items)


def _is_bare_number(value: object) -> bool:
    return type(value) in (int, float) or (
        isinstance(value, str) and re.fullmatch(r"[0-9.]+", value.strip()) is not None
    )


def _limit_seconds(value: object) -> int:
    if _is_bare_number(value):
        raise Unfit(f"{shown(value)} has no unit (minutes to Slurm, seconds to PBS): write {quoted('90m')} or 1:30:00")
    seconds = _parsed(value, units.parse_duration)
    if seconds is None:
        raise Unfit("a job has an end: leave time out for the queue's own limit")
    if seconds < 1:
        raise Unfit("expected a second or more")
    return seconds


def _memory_bytes(value: object) -> int:
    if _is_bare_number(value):
        raise Unfit(f"{shown(value)} has no unit (MiB to Slurm, bytes to PBS): write {quoted('64G')} or 4000M")
    amount = _parsed(value, units.parse_memory)
    if amount < _LEAST_MEMORY_BYTES:
        raise Unfit(f"expected 1M or more, not {shown(value)}")
    return amount


def _array(value: object) -> ArrayTasks:
    tasks = _parsed(value, _tasks)
    if tasks.is_incomplete:
        raise Unfit(f"{shown(value)} is cut short: write all tasks, as in {quoted('1-10%1')}")
    return tasks


def _tasks(text: str) -> ArrayTasks:
    # One range after the other first: to make those that overlap distinct takes memory for every task.
    items = text.partition("%")[0].strip("[] ").split(",")
    if sum(parse_tasks(item).count for item in items) > MAX_TASKS:
        raise ValueError(f"more than {MAX_TASKS} tasks, the most that Slurm takes")
    return parse_tasks(text)


def _after(value: object) -> tuple[str, ...]:
    """Ids, each as text or number; several may stand in one text."""
    ids: list[str] = []
    for at, item in enumerate(value if isinstance(value, list) else [value]):
        try:
            words = split_ids(shown(item) if type(item) is int else line_of_text(item))
            ids += [str(parse_job_id(word)) for word in words] or [_no_id(item)]
        except ValueError as error:
            raise Unfit(f"item {at + 1}: {error}" if isinstance(value, list) else str(error)) from None
    return tuple(dict.fromkeys(ids))


def _no_id(value: object) -> str:
    raise Unfit(f"{shown(value)} is no job id")


def _signal(value: object) -> EarlySignal:
    match = _SIGNAL.fullmatch(line_of_text(value))
    if match is None:
        raise Unfit(
            f"{shown(value)}: write {quoted('USR1@600')} (600 s before the end), "
            f"or {quoted('B:USR1@600')} for the batch shell alone"
        )
    if match[2] not in SIGNALS:
        raise Unfit(f"{quoted(match[2])} is no signal's name{did_you_mean(match[2], SIGNALS)}")
    seconds = int(match[3])
    if not 1 <= seconds <= LONGEST_SIGNAL_SECONDS:
        raise Unfit(f"expected 1 to {LONGEST_SIGNAL_SECONDS} s before the end, not {seconds}")
    return EarlySignal(match[2], seconds, batch_only=match[1] is not None)


def _nodes(value: object) -> str:
    text = line_of_text(value)
    if not _NODES.fullmatch(text):
        raise Unfit(f"{shown(text)} names no nodes: write {quoted('n01')} or {quoted('n[01-03]')}")
    _parsed(text, nodelist.count)
    return text


def _bind(value: object) -> str:
    """`SOURCE[:TARGET[:OPTIONS]]`."""
    text = line_of_text(value)
    source, *rest = text.split(":")
    target, options = rest[0] if rest else "/", rest[1] if len(rest) > 1 else "rw"
    if len(rest) > 2 or not source.strip() or not _BIND_OPTIONS.fullmatch(options):
        raise Unfit(f"{shown(text)} is no bind: write SOURCE, SOURCE:TARGET or SOURCE:TARGET:ro")
    if not target.startswith("/"):
        raise Unfit(f"{shown(text)}: the place in the container begins with '/'")
    return text


def _variable(value: object) -> str:
    """Text, empty too, or a whole number; of a float or a boolean the spelling would be a guess."""
    if type(value) is int and abs(value) < 2**63:
        return str(value)
    if isinstance(value, bool | int | float):
        raise Unfit(f"expected text in quotes, spelled as the program reads it, not {shown(value)}")
    return value if isinstance(value, str) and not value.strip(" \n\t") else _lines(value)


def _project_source(value: object) -> str:
    text = line_of_text(value)
    try:
        accounted_to(text, project="", workspace="", labels=())
    except ConfigError:
        raise Unfit(f"expected {', '.join(SOURCES)}, not {shown(text)}{did_you_mean(text, SOURCES)}") from None
    return text


def _runtime(value: object) -> Runtime:
    word = one_of(*Runtime, "singularity")(value)
    return Runtime.APPTAINER if word == "singularity" else Runtime(word)


def _slot_type(value: object) -> SlotType:
    return SlotType(one_of(*SlotType)(value))


def _launcher(value: object) -> Launcher:
    return Launcher(one_of(*Launcher)(value))


def _parsed(value: object, parse: Callable[[str], _Parsed]) -> _Parsed:
    """What a parser of the domain makes of text, its ValueError as Unfit."""
    text = line_of_text(value)
    try:
        return parse(text)
    except ValueError as error:
        raise Unfit(printable(str(error))) from None


_TOP: Mapping[str, Reader] = {
    "name": line_of_text,
    "kind": line_of_text,
    "command": _lines,
    "script": line_of_text,
    "slots": partial(_whole, smallest=0),
    "slots_per_node": partial(_whole, smallest=1),
    "slot_type": _slot_type,
    "gpu_type": line_of_text,
    "queue": line_of_text,
    "account": line_of_text,
    "qos": line_of_text,
    "time": _limit_seconds,
    "memory": _memory_bytes,
    "work_dir": line_of_text,
    "array": _array,
    "after": _after,
    "hold": flag,
    "signal": _signal,
    "requeue": flag,
    "kill_switch": line_of_text,
    "save_switch": line_of_text,
    "exclude_nodes": partial(_list, read=_nodes),
    "extra_args": _list,
    "launcher": _launcher,
    "project": line_of_text,
    "workspace": line_of_text,
    "labels": _list,
}
# Keys whose field has its unit in its name.
_FIELDS = {"time": "limit_seconds", "memory": "memory_bytes"}
_CONTAINER: Mapping[str, Reader] = {
    "runtime": _runtime,
    "image": line_of_text,
    "binds": partial(_list, read=_bind),
    "force_pull": flag,
}
_SITE: Mapping[str, Reader] = {
    "tres_supported": flag,
    "gres_supported": flag,
    "job_project_source": _project_source,
    "storage_root": line_of_text,
    "name_prefix": line_of_text,
    "image_root": line_of_text,
}
_INNER = {"container": _CONTAINER, "site": _SITE}
_TABLES = ("environment", *_INNER)
