"""REQUEST.toml: read as a checked request, or all that is wrong with it, by line and key; and
written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from msgspec.structs import asdict, replace

from hpcdash.backends import registry
from hpcdash.backends.base import RequestField
from hpcdash.backends.script.body import SOURCES, accounted_to
from hpcdash.backends.script.call import array_problem
from hpcdash.backends.script.launchers import SIGNALS
from hpcdash.backends.script.node_checks import CHECKS, parse_names
from hpcdash.config.document import parse_document
from hpcdash.config.locate import find_line, key_lines
from hpcdash.config.model import Reader, TableReader, ValidationError
from hpcdash.config.problems import (
    ConfigProblems,
    KeyPath,
    Problem,
    did_you_mean,
    dotted,
    printable,
    quoted,
    shown,
)
from hpcdash.config.toml_text import format_toml
from hpcdash.config.values import flag, one_of, parse_line_text
from hpcdash.config.values import whole as whole_between
from hpcdash.domain import nodelist, units
from hpcdash.domain.array_tasks import MAX_TASKS, ArrayTasks, parse_tasks
from hpcdash.domain.dependencies import parse_after
from hpcdash.domain.request import (
    ACCOUNT_NAME,
    KEPT_DAYS,
    SITE_SAID,
    Call,
    Container,
    EarlySignal,
    Launcher,
    Request,
    Runtime,
    Site,
    SlotType,
)
from hpcdash.domain.share import parse_priority
from hpcdash.errors import ConfigError

_Parsed = TypeVar("_Parsed")
MOST_SLOTS = 1_000_000
_MOST_REQUEUES = 1000
# sbatch: "sig_time must have an integer value between 0 and 65535".
LONGEST_SIGNAL_SECONDS = 65_535
# Slurm takes a whole number of MiB, and 0 for all of a node's.
_LEAST_MEMORY_BYTES = 1024**2
_LONGEST_TEXT = 1_000_000
_SIGNAL = re.compile(r"(?:(B):)?(?:SIG)?([A-Z0-9]+)@([0-9]{1,9})")
_NODES = re.compile(r"[A-Za-z0-9._\[\],-]+")
_PLAIN_PATH = re.compile(r"[A-Za-z0-9_./@+-]+")
# Names of a slot that is a GPU.
_GPU_WORDS = {
    "gpu": SlotType.CUDA,
    "gpus": SlotType.CUDA,
    "nvidia": SlotType.CUDA,
    "amd": SlotType.ROCM,
}
_BIND_OPTIONS = re.compile(r"[A-Za-z0-9_=,-]+")
# Keys whose field has its unit in its name.
FIELD_OF_KEY = {"time": "limit_seconds", "memory": "memory_bytes"}
# The word of run_as that stands for the cluster's own `user`.
THE_USER = "user"
_IMAGE_ROOTS = ("image_root", "apptainer_image_root", "singularity_image_root")
NEXT_STEP = "Fix the file."
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Names of Slurm and PBS for keys of a request.
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


def parse_text(value: object) -> str:
    """Text of one or several lines that shows something, tabs among it."""
    if not isinstance(value, str) or not value.strip():
        return parse_line_text(value)
    if len(value) > _LONGEST_TEXT:
        raise ValidationError(f"too long: at most {_LONGEST_TEXT} characters")
    odd = next(
        (letter for letter in value if letter not in "\n\t" and not letter.isprintable()), ""
    )
    if odd:
        raise ValidationError(f"holds a character that does not print: {printable(odd)}")
    return value


def text_list(value: object, read: Callable[[object], str] = parse_line_text) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ValidationError(f'expected an array of texts, as in ["a", "b"], not {shown(value)}')
    items = []
    for at, item in enumerate(value):
        try:
            items.append(read(item))
        except ValidationError as error:
            raise ValidationError(f"item {at + 1}: {error}") from None
    return tuple(items)


def _is_bare_number(value: object) -> bool:
    return type(value) in (int, float) or (
        isinstance(value, str) and re.fullmatch(r"[0-9.]+", value.strip()) is not None
    )


def limit_seconds(value: object) -> int:
    if _is_bare_number(value):
        raise ValidationError(
            f"{shown(value)} has no unit (minutes to Slurm, seconds to PBS): write {quoted('90m')} "
            f"or 1:30:00"
        )
    seconds = _parsed(value, units.parse_duration)
    if seconds is None:
        raise ValidationError("a job has an end: leave time out for the queue's own limit")
    if seconds < 1:
        raise ValidationError("expected a second or more")
    return seconds


def memory_bytes(value: object) -> int:
    if _is_bare_number(value):
        raise ValidationError(
            f"{shown(value)} has no unit (MiB to Slurm, bytes to PBS): write {quoted('64G')} or "
            f"4000M"
        )
    amount = _parsed(value, units.parse_memory)
    if amount < _LEAST_MEMORY_BYTES:
        raise ValidationError(f"expected 1M or more, not {shown(value)}")
    return amount


def _array(value: object) -> ArrayTasks:
    tasks = _parsed(value, _tasks)
    if tasks.is_incomplete:
        raise ValidationError(
            f"{shown(value)} is cut short: write all tasks, as in {quoted('1-10%1')}"
        )
    return tasks


def _tasks(text: str) -> ArrayTasks:
    # One range after the other first: to make those that overlap distinct takes memory for every
    # task.
    items = text.partition("%")[0].strip("[] ").split(",")
    if sum(parse_tasks(item).count for item in items) > MAX_TASKS:
        raise ValueError(f"more than {MAX_TASKS} tasks, the most that Slurm takes")
    return parse_tasks(text)


def _after(value: object) -> tuple[str, ...]:
    """Jobs and conditions, each as text or number; several may stand in one text."""
    found: list[str] = []
    for at, item in enumerate(value if isinstance(value, list) else [value]):
        try:
            found += parse_after(shown(item) if type(item) is int else parse_line_text(item))
        except ValueError as error:
            raise ValidationError(
                f"item {at + 1}: {error}" if isinstance(value, list) else str(error)
            ) from None
    return tuple(dict.fromkeys(found))


def _signal(value: object) -> EarlySignal:
    match = _SIGNAL.fullmatch(parse_line_text(value))
    if match is None:
        raise ValidationError(
            f"{shown(value)}: write {quoted('USR1@600')} (600 s before the end), "
            f"or {quoted('B:USR1@600')} for the batch shell alone"
        )
    if match[2] not in SIGNALS:
        raise ValidationError(
            f"{quoted(match[2])} is not a signal's name{did_you_mean(match[2], SIGNALS)}"
        )
    seconds = int(match[3])
    if not 1 <= seconds <= LONGEST_SIGNAL_SECONDS:
        raise ValidationError(
            f"expected 1 to {LONGEST_SIGNAL_SECONDS} s before the end, not {seconds}"
        )
    return EarlySignal(match[2], seconds, batch_only=match[1] is not None)


def _nodes(value: object) -> str:
    text = parse_line_text(value)
    if not _NODES.fullmatch(text):
        raise ValidationError(
            f"{shown(text)} names no nodes: write {quoted('n01')} or {quoted('n[01-03]')}"
        )
    _parsed(text, nodelist.count)
    return text


def _bind(value: object) -> str:
    """`SOURCE[:TARGET[:OPTIONS]]`."""
    text = parse_line_text(value)
    source, *rest = text.split(":")
    target, options = rest[0] if rest else "/", rest[1] if len(rest) > 1 else "rw"
    if len(rest) > 2 or not source.strip() or not _BIND_OPTIONS.fullmatch(options):
        raise ValidationError(
            f"{shown(text)} is not a bind: write SOURCE, SOURCE:TARGET or SOURCE:TARGET:ro"
        )
    if not target.startswith("/"):
        raise ValidationError(f"{shown(text)}: the place in the container begins with '/'")
    return text


def variable(value: object) -> str:
    """Text, empty too, or a whole number; of a float or a boolean the spelling would be a guess."""
    if type(value) is int and abs(value) < 2**63:
        return str(value)
    if isinstance(value, bool | int | float):
        raise ValidationError(
            f"expected text in quotes, spelled as the program reads it, not {shown(value)}"
        )
    return value if isinstance(value, str) and not value.strip(" \n\t") else parse_text(value)


def _project_source(value: object) -> str:
    text = parse_line_text(value)
    try:
        accounted_to(text, project="", workspace="", labels=())
    except ConfigError:
        raise ValidationError(
            f"expected {', '.join(SOURCES)}, not {shown(text)}{did_you_mean(text, SOURCES)}"
        ) from None
    return text


def _runtime(value: object) -> Runtime:
    word = one_of(*Runtime, "singularity")(value)
    return Runtime.APPTAINER if word == "singularity" else Runtime(word)


def _folder(value: object) -> str:
    text = parse_line_text(value)
    if not text.startswith("/"):
        raise ValidationError(
            f"expected a folder from the root, as in {quoted('/work/ada')}, not {shown(text)}"
        )
    return text


def _storage_root(value: object) -> str:
    text = _folder(value)
    if text.strip("/") == "" or ".." in text.split("/") or not _PLAIN_PATH.fullmatch(text):
        raise ValidationError(
            f"{shown(text)} cannot hold launches: letters, digits and ._@+- alone, below the root"
        )
    return text


def _run_as(value: object) -> str:
    text = parse_line_text(value)
    if text == "root":
        raise ValidationError("jobs are submitted as anyone but root")
    if not ACCOUNT_NAME.fullmatch(text):
        raise ValidationError(
            f"{shown(text)} is not a login name that sudo rules can name: letters, digits and _.@- "
            f"alone"
        )
    return text


def _begin(value: object) -> str:
    """A time of the cluster's clock, or `+2h`."""
    text = value.isoformat() if isinstance(value, datetime) else parse_line_text(value)
    if text.startswith("+"):
        seconds = _parsed(text[1:], units.parse_duration)
        if seconds is None or _is_bare_number(text[1:]):
            raise ValidationError(f"{shown(text)} has no unit: write {quoted('+2h')}")
        return text
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValidationError(
            f"expected a time as in 2026-12-01T08:00, or {quoted('+2h')} after it is submitted, "
            f"not {shown(text)}"
        ) from None
    if moment.tzinfo is not None:
        raise ValidationError(f"{shown(text)}: write it by the cluster's own clock, without a zone")
    return moment.isoformat(timespec="seconds")


def _node_probe(value: object) -> str:
    """Bash, or the names of ready checks."""
    if not isinstance(value, list):
        return parse_text(value)
    names = text_list(value)
    try:
        return parse_names(names)
    except ValueError as error:
        known = ", ".join(map(quoted, CHECKS))
        raise ValidationError(
            f"expected {known}, not {shown(str(error))}{did_you_mean(str(error), CHECKS)}"
        ) from None


def folder_there(value: object) -> str:
    folder = parse_line_text(value)
    if re.match(r"~|\$(?:HOME|\{HOME\})(?:/|$)", folder):
        raise ValidationError(
            f"no scheduler reads {shown(folder.partition('/')[0])} here: write the whole path, as "
            f"in /home/ada"
        )
    return folder


def _checkpoints(value: object) -> str:
    text = folder_there(value)
    if re.match("[A-Za-z][A-Za-z0-9+.-]*://", text):
        raise ValidationError(
            f"{shown(text)}: expected a folder, as in /scratch/ada/run: what was saved is looked "
            f"for in it. "
            "A program that saves to an address reads it from a variable of its own in "
            "[environment]"
        )
    if "$" in text:
        raise ValidationError(
            f"{shown(text)}: no variable is filled in here: write the whole path, as in "
            f"/scratch/ada/run"
        )
    if odd := re.search(r"%(?!a).?", text.replace("%%", "")):
        raise ValidationError(
            f"{shown(text)}: {quoted(odd[0])} stands for nothing: write %a for the array's task, "
            f"%% for itself"
        )
    return text


def _share(value: object) -> str:
    return _parsed(parse_line_text(value), parse_priority).name


def _slot_type(value: object) -> SlotType:
    if isinstance(value, str) and (selected := _GPU_WORDS.get(value.casefold())):
        raise ValidationError(
            f"expected {', '.join(map(quoted, SlotType))}, not {shown(value)}; did you mean "
            f"{quoted(selected)}?"
        )
    return SlotType(one_of(*SlotType)(value))


def _own_reader(field: RequestField) -> Reader:
    """Return the reader of a key that only one scheduler has."""
    read: Callable[[object], Any] = partial(
        _parsed if field.is_text else _read_value, parse=field.read
    )
    return partial(text_list, read=read) if field.is_list else read


def _launcher(value: object) -> Launcher:
    return Launcher(one_of(*Launcher)(value))


def _parsed(value: object, parse: Callable[[str], _Parsed]) -> _Parsed:
    """Parse a line of text; a ValueError becomes a ValidationError."""
    text = parse_line_text(value)
    try:
        return parse(text)
    except ValueError as error:
        raise ValidationError(printable(str(error))) from None


def _read_value(value: object, parse: Callable[[Any], _Parsed]) -> _Parsed:
    try:
        return parse(value)
    except ValueError as error:
        raise ValidationError(printable(str(error))) from None


def _function(value: object) -> tuple[str, str]:
    """(module, function)."""
    text = parse_line_text(value)
    module, colon, function = text.partition(":")
    if "/" in module or (colon and module.endswith(".py")):
        raise ValidationError(
            f"{shown(text)} names a file: write the module as it is imported, "
            f"{quoted('train:main')}"
        )
    if not colon:
        module, _, function = text.rpartition(".")
        selected = f"{module}:{function}" if module and function != "py" else "train:main"
        raise ValidationError(
            f"{shown(text)} is not MODULE:FUNCTION: write it as in {quoted(selected)}"
        )
    for part in (*module.split("."), *function.split(".")):
        if not part.isidentifier():
            raise ValidationError(
                f"{shown(text)} is not MODULE:FUNCTION: {shown(part)} is not a name of Python's"
            )
    if module == "__main__":
        raise ValidationError(
            "__main__ is the runner itself in the job: move the function into a module"
        )
    return module, function


def _values(value: object) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise ValidationError(f"expected an array, as in [1, {quoted('x')}], not {shown(value)}")
    return tuple(value)


def _items(value: object) -> tuple[Any, ...]:
    items = _values(value)
    if not 1 <= len(items) <= MAX_TASKS:
        raise ValidationError(
            f"expected 1 to {MAX_TASKS} items, a task of the array for each, not {len(items)}"
        )
    return items


def _arguments(value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValidationError(f"expected a table, as in {{ lr = 0.001 }}, not {shown(value)}")
    return value


def _callback(value: object) -> str:
    return ":".join(_function(value))


_OWN_KEYS = {name: _own_reader(field) for name, field in registry.request_fields().items()}
_BY_TYPE: Mapping[Any, Reader] = {
    "str": parse_line_text,
    "bool": flag,
    "tuple[str, ...]": text_list,
}
_count = partial(whole_between, smallest=1, largest=MOST_SLOTS)


def _record_readers(record: type, readers: Mapping[str, Reader]) -> dict[str, Reader]:
    """Return the readers of a record's keys: from `readers`, else by the type of the field."""
    return {
        name: _BY_TYPE[kind] for name, kind in record.__annotations__.items() if kind in _BY_TYPE
    } | {**readers}


REQUEST_KEYS: Mapping[str, Reader] = _record_readers(
    Request,
    {
        "command": parse_text,
        "slots": partial(whole_between, smallest=0, largest=MOST_SLOTS),
        "slots_per_node": _count,
        "slot_type": _slot_type,
        "cpus_per_gpu": _count,
        "max_requeues": partial(whole_between, smallest=0, largest=_MOST_REQUEUES),
        "time": limit_seconds,
        "memory": memory_bytes,
        "work_dir": folder_there,
        "array": _array,
        "after": _after,
        "begin": _begin,
        "signal": _signal,
        "startup_hook": parse_text,
        "checkpoints": _checkpoints,
        "share": _share,
        "rank_variables": one_of("processes", "nodes"),
        "exclude_nodes": partial(text_list, read=_nodes),
        "launcher": _launcher,
        **_OWN_KEYS,
    },
)
_CONTAINER_KEYS = _record_readers(
    Container, {"runtime": _runtime, "binds": partial(text_list, read=_bind)}
)


def _keep(value: object) -> str:
    """`14d`, or a word."""
    if isinstance(value, str) and KEPT_DAYS.fullmatch(value):
        return value
    try:
        return one_of("always", "failed", "nothing")(value)
    except ValidationError as error:
        raise ValidationError(f'{error}, nor a number of days: "14d"') from None


SITE_KEYS: Mapping[str, Reader] = _record_readers(
    Site,
    {
        "slot_type": _slot_type,
        "job_project_source": _project_source,
        "storage_root": _storage_root,
        **dict.fromkeys(_IMAGE_ROOTS, _folder),
        "keep": _keep,
        "run_as": _run_as,
        "node_probe": _node_probe,
    },
)
_CALL_KEYS: Mapping[str, Reader] = {
    "function": _function,
    "args": _values,
    "kwargs": _arguments,
    "items": _items,
    "python": folder_there,
    "sys_path": partial(text_list, read=folder_there),
    "wheel": folder_there,
    "source": folder_there,
    "callbacks": partial(text_list, read=_callback),
    "result_format": one_of("pickle", "json"),
    "main": parse_line_text,
    "cache_key": parse_line_text,
}
TABLES: Mapping[str, Mapping[str, Reader]] = {
    "container": _CONTAINER_KEYS,
    "site": SITE_KEYS,
    "call": _CALL_KEYS,
}
# Keys of [launch.queues.NAME]: of a request those that depend on where it runs, of the site those
# in which its queues differ.
QUEUE_KEYS: Mapping[str, Reader] = {
    key: REQUEST_KEYS.get(key) or SITE_KEYS[key]
    for key in (
        *[
            "slots_per_node",
            "slot_type",
            "gpu_type",
            "cpus_per_gpu",
            "account",
            "qos",
            "time",
            "memory",
            "signal",
            "requeue",
            "max_requeues",
        ],
        *(
            "exclude_nodes",
            "extra_args",
            *registry.request_fields(registry.ON_LOGIN_NODES),
            "launcher",
            "project",
            "workspace",
            "labels",
        ),
        *(
            "tres_supported",
            "gres_supported",
            "job_project_source",
            "name_prefix",
            "node_probe",
            *_IMAGE_ROOTS,
        ),
    )
}


def read_keys(
    reader: TableReader,
    table: Mapping[str, object],
    path: KeyPath,
    readers: Mapping[str, Reader],
    apart: Iterable[str],
) -> dict[str, Any]:
    """Read a table into the fields of Request and Site."""
    found = reader.fields(table, path, readers, apart)
    first, *others = [key for key in table if key in _IMAGE_ROOTS and key in readers] or [""]
    if others:
        text = f"{first} is set too, and both mean the folder of images: leave one of the two out"
        reader.problem((*path, others[0]), text)
    return {
        "image_root" if key in _IMAGE_ROOTS else FIELD_OF_KEY.get(key, key): value
        for key, value in found.items()
    }


def whose(run_as: str, user: str | None) -> str:
    """Return the login name that run_as selects.

    Raises ValidationError where that is the cluster's user, who is unknown.
    """
    if run_as != THE_USER:
        return run_as
    if not user:
        raise ValidationError(
            '"user" means the cluster\'s user, and its configuration sets none: write a login name'
        )
    return user


class RequestProblems(ConfigProblems):
    """All that is wrong with a request's file, in its order; as a ConfigError it stands at the
    first.
    """

    def __init__(self, file: str, problems: Collection[Problem]) -> None:
        super().__init__(file, list(problems))
        self.next_step = NEXT_STEP


def read_request(
    text: str, file: str = "REQUEST.toml", *, site: Site | None = None, user: str | None = None
) -> Request:
    """The request a TOML text makes; what [site] leaves out is as in `site`, which the cluster's
    configuration gives.

    `file` is the name told in errors; `user` is who run_as = "user" means. Raises RequestProblems
    (a ConfigError) with file, line and key of every problem.
    """
    named = printable(file)
    try:
        document = parse_document(text, named)
    except ConfigProblems as error:
        raise RequestProblems(named, error.problems) from None
    reader, request = _read(document, site, user)
    if reader.problems:
        lines = key_lines(text)
        placed = [
            Problem(find_line(lines, path), dotted(path), message)
            for path, message in reader.problems
        ]
        # Missing keys come last: a misspelt key is often the cause.
        raise RequestProblems(named, sorted(placed, key=lambda problem: problem.line or len(text)))
    return request


def build_request(
    document: Mapping[str, object], named: str, *, site: Site | None = None, user: str | None = None
) -> Request:
    """Read a request that was never a file with `read_request`; a problem has its key and no line.

    Raises RequestProblems.
    """
    reader, request = _read(document, site, user)
    if reader.problems:
        error = RequestProblems(
            named, [Problem(None, dotted(path), text) for path, text in reader.problems]
        )
        error.next_step = "Fix the request."
        raise error
    return request


def _read(
    document: Mapping[str, object], site: Site | None, user: str | None
) -> tuple[TableReader, Request]:
    reader = _RequestReader(document)
    return reader, reader.request(site or Site(), user)


class _RequestReader(TableReader):
    def __init__(self, document: Mapping[str, object]) -> None:
        super().__init__(_hint)
        self._document = document

    def request(self, site: Site, user: str | None) -> Request:
        """The request; good only when there are no problems."""
        document = self._document
        given = read_keys(
            self, document, (), REQUEST_KEYS, apart=("environment", "node_probe", *TABLES)
        )
        site_values = self._site(user)
        if "node_probe" in document:
            # It is accepted at the top as well.
            site_values |= read_keys(
                self, {"node_probe": document["node_probe"]}, (), SITE_KEYS, apart=()
            )
        messages = frozenset((*given, *(SITE_SAID + key for key in site_values)))
        runs = [key for key in ("command", "script", "call") if key in document]
        if len(runs) > 1:
            one, other = (
                ("the command", "command") if runs[0] == "command" else ("the script", "script")
            )
            self.problem((runs[1],), f"{one} is given too: give one of {other} and {runs[1]}")
        elif not runs:
            self.problem(("command",), "missing: give what to run, a command, a script or a [call]")
        call = self._call()
        if call is not None and call.items:
            # A task for each.
            given.setdefault("array", ArrayTasks((range(len(call.items)),)))
            if problem := array_problem(call, given["array"]):
                self.problem(("array",), problem)
        signal, limit = given.get("signal"), given.get("limit_seconds")
        if signal is not None and limit is not None and signal.seconds_before >= limit:
            self.problem(
                ("signal",),
                f"{signal.seconds_before} s before the end is not within the time, {limit} s",
            )
        return Request(
            environment=self._environment(),
            container=self._container(),
            call=call,
            site=replace(site, **site_values),
            said=messages,
            **given,
        )

    def _site(self, user: str | None) -> dict[str, Any]:
        """Read [site] into the fields of Site."""
        found = read_keys(
            self, self.table(self._document, (), "site"), ("site",), SITE_KEYS, apart=()
        )
        if "run_as" in found:
            found["run_as"] = self.value(
                ("site", "run_as"), partial(whose, user=user), found["run_as"]
            )
        return found

    def _environment(self) -> dict[str, str]:
        table = self.table(self._document, (), "environment")
        for name in table:
            path = ("environment", name)
            if name in REQUEST_KEYS:
                self.problem(path, f"this is a key of the request; {_AT_THE_TOP}")
            elif not _VARIABLE.fullmatch(name):
                self.problem(path, "not a variable name: letters, digits and '_', no digit first")
        return self.mapping(table, ("environment",), variable)

    def _call(self) -> Call | None:
        if "call" not in self._document:
            return None
        before = len(self.problems)
        table = self.table(self._document, (), "call")
        found = self.fields(table, ("call",), _CALL_KEYS)
        if "function" not in table:
            self.problem(
                ("call", "function"), f"missing: name what to call, as in {quoted('train:main')}"
            )
        if "wheel" in table and "source" in table:
            self.problem(("call", "source"), "the wheel is given too: give one of wheel and source")
        if (
            isinstance(variables := self._document.get("environment"), dict)
            and "PY_EXEC" in variables
        ):
            self.problem(("environment", "PY_EXEC"), "[call] sets it: write python there")
        if len(self.problems) > before:
            return None
        module, function = found.pop("function")
        return Call(module, function, **found)

    def _container(self) -> Container | None:
        if "container" not in self._document:
            return None
        before = len(self.problems)
        table = self.table(self._document, (), "container")
        found = self.fields(table, ("container",), _CONTAINER_KEYS)
        if (
            len(self.problems) == before
            and "image" not in table
            and found.get("runtime") is not Runtime.NONE
        ):
            self.problem(
                ("container", "image"), 'missing: name an image, or write runtime = "none"'
            )
        return Container(**found)


def _hint(key: str, path: KeyPath, known: Collection[str]) -> str:
    """Return the hint that follows "unknown key"."""
    if path and key in REQUEST_KEYS:
        return f"; {_AT_THE_TOP}"
    if home := next((name for name, readers in TABLES.items() if not path and key in readers), ""):
        return f"; it belongs in [{home}]"
    if not path and key in _OTHER_WORDS:
        return f"; did you mean {quoted(_OTHER_WORDS[key])}?"
    return did_you_mean(key, known)


_KEY_OF_FIELD = {field: key for key, field in FIELD_OF_KEY.items()}
_USUAL, _USUAL_CALL = Request(), Call("", "")
_APART = frozenset({"environment", "call", "container", "site", "said"})


def request_text(request: Request, *, site: Site | None = None) -> str:
    """TOML that `read_request(text, site=site)` reads back equal; `site` is the cluster's own,
    which is not repeated.

    What a person wrote (`said`) is kept where it is what is usual too. Raises nothing.
    """
    tables = {
        "environment": request.environment,
        "call": dict(_written_call(request.call)) if request.call is not None else {},
        "container": dict(_written_container(request.container))
        if request.container is not None
        else {},
        "site": dict(_written_site(request, site or Site())),
    }
    return format_toml(
        dict(_written_keys(request)) | {key: table for key, table in tables.items() if table}
    )


def _written_keys(request: Request) -> Iterator[tuple[str, Any]]:
    for name, value in asdict(request).items():
        if name in _APART or (
            name == "array" and request.call and request.call.items and name not in request.said
        ):
            # The items make the array.
            continue
        if value != getattr(_USUAL, name) or (name in request.said and value not in (None, "", ())):
            yield _KEY_OF_FIELD.get(name, name), _written(name, value)


def _written_call(call: Call) -> Iterator[tuple[str, Any]]:
    yield "function", call.name
    for name in Call.__struct_fields__[2:]:
        value = getattr(call, name)
        if name != "staged" and value and value != getattr(_USUAL_CALL, name):
            yield name, value


def _written_container(container: Container) -> Iterator[tuple[str, Any]]:
    if container.runtime is not None:
        yield "runtime", container.runtime.value
    for name in ("image", "binds", "force_pull"):
        if value := getattr(container, name):
            yield name, value


def _written_site(request: Request, usual: Site) -> Iterator[tuple[str, Any]]:
    for name in Site.__struct_fields__:
        value = getattr(request.site, name)
        is_set = f"{SITE_SAID}{name}" in request.said
        # '' and None cannot be written: they mean an absent value.
        if (value != getattr(usual, name) or is_set) and value not in ("", None):
            yield name, _written(name, value)


def _written(field: str, value: object) -> object:
    match value:
        case int() if field == "limit_seconds":
            return units.format_clock(value)
        case int() if field == "memory_bytes":
            return _memory_text(value)
        case EarlySignal():
            return f"{'B:' if value.batch_only else ''}{value.name}@{value.seconds_before}"
        case bool() | int() | tuple() | dict():
            return value
        case _:
            return str(value)


def _memory_text(amount_bytes: int) -> str:
    """`64G`: the largest unit of which it is a whole number."""
    for power, unit in ((4, "T"), (3, "G"), (2, "M"), (1, "K")):
        if amount_bytes % units.KIB**power == 0:
            return f"{amount_bytes // units.KIB**power}{unit}"
    return f"{amount_bytes}B"
