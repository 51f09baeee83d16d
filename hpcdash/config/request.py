"""Reader and writer of REQUEST.toml; its problems have their lines and keys."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import chain
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from hpcdash.backends import registry
from hpcdash.backends.base import RequestField
from hpcdash.backends.script.body import SOURCES, accounted_to
from hpcdash.backends.script.call import array_problem
from hpcdash.backends.script.launchers import SIGNALS
from hpcdash.backends.script.node_checks import CHECKS, parse_names
from hpcdash.backends.script.plain import plain_conflicts
from hpcdash.config.document import parse_document
from hpcdash.config.locate import key_lines, located
from hpcdash.config.model import Reader, Table
from hpcdash.config.problems import (
    ConfigProblems,
    KeyPath,
    Problem,
    did_you_mean,
    printable,
    quoted,
    shown,
)
from hpcdash.config.toml_text import format_toml
from hpcdash.config.values import THE_USER, flag, line, line_like, one_of, parse_line_text, whole
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

T = TypeVar("T")
_MAX_SLOTS = 1_000_000
_MAX_REQUEUES = 1000
# sbatch: "sig_time must have an integer value between 0 and 65535".
_LONGEST_SIGNAL_SECONDS = 65_535
# Slurm takes a whole number of MiB, and 0 for all of a node's.
_MIN_MEMORY_BYTES = 1024**2
_LONGEST_TEXT = 1_000_000
_BARE_NUMBER = re.compile(r"[0-9.]+")
_SIGNAL = re.compile(r"(?:(B):)?(?:SIG)?([A-Z0-9]+)@([0-9]{1,9})")
_NODES = re.compile(r"[A-Za-z0-9._\[\],-]+")
_PLAIN_PATH = re.compile(r"[A-Za-z0-9_./@+-]+")
_BIND_OPTIONS = re.compile(r"[A-Za-z0-9_=,-]+")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Names of a slot that is a GPU.
_GPU_NAMES = {
    "gpu": SlotType.CUDA,
    "gpus": SlotType.CUDA,
    "nvidia": SlotType.CUDA,
    "amd": SlotType.ROCM,
}
# Keys whose field has its unit in its name.
FIELD_OF_KEY = {"time": "limit_seconds", "memory": "memory_bytes"}
_IMAGE_ROOTS = ("image_root", "apptainer_image_root", "singularity_image_root")
# Names of Slurm and PBS for keys of a request.
_FOREIGN_KEYS = {
    "partition": "queue",
    "gpus": "slots",
    "ngpus": "slots",
    "walltime": "time",
    "chdir": "work_dir",
    "dependency": "after",
    "env": "environment",
    "job_name": "name",
}
_AT_THE_TOP = "it belongs at the top of the file, before the first [table]"


def parse_text(value: object) -> str:
    """Read a text of one or several lines that is not blank; tabs are allowed."""
    if not isinstance(value, str) or not value.strip():
        return parse_line_text(value)
    if len(value) > _LONGEST_TEXT:
        raise ValueError(f"too long: at most {_LONGEST_TEXT} characters")
    for letter in value:
        if letter not in "\n\t" and not letter.isprintable():
            raise ValueError(f"contains a non-printable character: {printable(letter)}")
    return value


def text_list(value: object, read: Callable[[object], T]) -> tuple[T, ...]:
    """Read an array; an error has the number of its item."""
    if not isinstance(value, list):
        raise ValueError(f'expected an array of strings, as in ["a", "b"], not {shown(value)}')
    items = []
    for number, item in enumerate(value, start=1):
        try:
            items.append(read(item))
        except ValueError as error:
            raise ValueError(f"item {number}: {error}") from None
    return tuple(items)


def _with_unit(value: object, meaning: str, examples: str) -> str:
    """Read a text that is more than a number, because a bare number's unit would be a guess."""
    if type(value) in (int, float) or (
        isinstance(value, str) and _BARE_NUMBER.fullmatch(value.strip())
    ):
        raise ValueError(f"{shown(value)} has no unit{meaning}: use {examples}")
    return parse_line_text(value)


def _limit_seconds(value: object) -> int:
    text = _with_unit(value, " (minutes to Slurm, seconds to PBS)", '"90m" or 1:30:00')
    seconds = units.parse_duration(text)
    if seconds is None:
        raise ValueError("expected a limit; remove time to use the queue's default")
    if seconds < 1:
        raise ValueError("expected at least 1 second")
    return seconds


def _memory_bytes(value: object) -> int:
    text = _with_unit(value, " (MiB to Slurm, bytes to PBS)", '"64G" or 4000M')
    amount = units.parse_memory(text)
    if amount < _MIN_MEMORY_BYTES:
        raise ValueError(f"expected 1M or more, not {shown(value)}")
    return amount


def _array(text: str) -> ArrayTasks:
    # Ranges are counted one by one first: merging overlapping ranges takes memory for every task.
    items = text.partition("%")[0].strip("[] ").split(",")
    if sum(parse_tasks(item).count for item in items) > MAX_TASKS:
        raise ValueError(f"more than {MAX_TASKS} tasks, the maximum that Slurm allows")
    tasks = parse_tasks(text)
    if tasks.is_incomplete:
        raise ValueError(f'{shown(text)} is truncated: list all tasks, as in "1-10%1"')
    return tasks


def _after(value: object) -> tuple[str, ...]:
    """Read job IDs and conditions, each as text or number; a text may hold several."""

    def read(item: object) -> Iterable[str]:
        return parse_after(str(item) if type(item) is int else parse_line_text(item))

    found = text_list(value, read) if isinstance(value, list) else [read(value)]
    return tuple(dict.fromkeys(chain.from_iterable(found)))


def _signal(text: str) -> EarlySignal:
    match = _SIGNAL.fullmatch(text)
    if match is None:
        raise ValueError(
            f'{shown(text)}: use "USR1@600" (600 s before the end), or "B:USR1@600" for only '
            "the batch shell"
        )
    if match[2] not in SIGNALS:
        raise ValueError(
            f"{quoted(match[2])} is not a signal name{did_you_mean(match[2], SIGNALS)}"
        )
    seconds = int(match[3])
    if not 1 <= seconds <= _LONGEST_SIGNAL_SECONDS:
        raise ValueError(f"expected 1 to {_LONGEST_SIGNAL_SECONDS} s before the end, not {seconds}")
    return EarlySignal(match[2], seconds, batch_only=match[1] is not None)


def _nodes(text: str) -> str:
    if not _NODES.fullmatch(text):
        raise ValueError(f'{shown(text)} is not a list of nodes: use "n01" or "n[01-03]"')
    nodelist.count(text)
    return text


def _bind(text: str) -> str:
    """Check `SOURCE[:TARGET[:OPTIONS]]`."""
    source, *rest = text.split(":")
    target = rest[0] if rest else "/"
    options = rest[1] if len(rest) > 1 else "rw"
    if len(rest) > 2 or not source.strip() or not _BIND_OPTIONS.fullmatch(options):
        raise ValueError(
            f"{shown(text)} is not a bind: use SOURCE, SOURCE:TARGET or SOURCE:TARGET:ro"
        )
    if not target.startswith("/"):
        raise ValueError(f"{shown(text)}: the path in the container must start with '/'")
    return text


def variable(value: object) -> str:
    """Read a text, which may be empty, or a whole number.

    The spelling of a float or a boolean would be a guess.
    """
    if type(value) is int and abs(value) < 2**63:
        return str(value)
    if isinstance(value, bool | int | float):
        raise ValueError(
            f"expected text in quotes, exactly as the program reads it, not {shown(value)}"
        )
    return value if isinstance(value, str) and not value.strip(" \n\t") else parse_text(value)


def _variable_name(name: str) -> None:
    if name in REQUEST_KEYS:
        raise ValueError(f"this is a key of the request; {_AT_THE_TOP}")
    if not _VARIABLE.fullmatch(name):
        raise ValueError(
            "not a variable name: use letters, digits and '_', and do not start with a digit"
        )


def _project_source(text: str) -> str:
    try:
        accounted_to(text, project="", workspace="", labels=())
    except ConfigError:
        raise ValueError(
            f"expected {', '.join(SOURCES)}, not {shown(text)}{did_you_mean(text, SOURCES)}"
        ) from None
    return text


def _runtime(value: object) -> Runtime:
    name = one_of(*Runtime, "singularity")(value)
    return Runtime.APPTAINER if name == "singularity" else Runtime(name)


_folder = line_like(re.compile("/").match, 'expected an absolute folder, as in "/work/ada", not {}')


def _storage_root(value: object) -> str:
    text = _folder(value)
    if text.strip("/") == "" or ".." in text.split("/") or not _PLAIN_PATH.fullmatch(text):
        raise ValueError(
            f"{shown(text)} is not a launch folder: use an absolute path with only letters, digits "
            "and ._@+-"
        )
    return text


def _keep(value: object) -> str:
    """Read a number of days (`14d`), or always, failed or nothing."""
    if isinstance(value, str) and KEPT_DAYS.fullmatch(value):
        return value
    try:
        return one_of("always", "failed", "nothing")(value)
    except ValueError as error:
        raise ValueError(f'{error}, or a number of days: "14d"') from None


def _run_as(text: str) -> str:
    if text == "root":
        raise ValueError("jobs cannot be submitted as root")
    if not ACCOUNT_NAME.fullmatch(text):
        raise ValueError(
            f"{shown(text)} is not a login name for sudo rules: use only letters, digits and _.@-"
        )
    return text


def _begin(value: object) -> str:
    """Read a time of the cluster's clock, or `+2h`."""
    text = value.isoformat() if isinstance(value, datetime) else parse_line_text(value)
    if text.startswith("+"):
        if _BARE_NUMBER.fullmatch(text[1:].strip()) or units.parse_duration(text[1:]) is None:
            raise ValueError(f'{shown(text)} has no unit: use "+2h"')
        return text
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            'expected a time such as 2026-12-01T08:00, or "+2h" for 2 h after submission, not '
            f"{shown(text)}"
        ) from None
    if moment.tzinfo is not None:
        raise ValueError(f"{shown(text)}: use the cluster's local time, without a time zone")
    return moment.isoformat(timespec="seconds")


def _node_probe(value: object) -> str:
    """Read Bash, or the names of ready-made checks."""
    if not isinstance(value, list):
        return parse_text(value)
    names = text_list(value, parse_line_text)
    try:
        return parse_names(names)
    except ValueError as error:
        known = ", ".join(map(quoted, CHECKS))
        raise ValueError(
            f"expected {known}, not {shown(str(error))}{did_you_mean(str(error), CHECKS)}"
        ) from None


def _cluster_folder(value: object) -> str:
    """Read a folder on the cluster, where nothing expands `~` or $HOME."""
    folder = parse_line_text(value)
    if re.match(r"~|\$(?:HOME|\{HOME\})(?:/|$)", folder):
        raise ValueError(
            f"{shown(folder.partition('/')[0])} is not expanded: use the full path, as in /home/ada"
        )
    return folder


def _checkpoints(value: object) -> str:
    text = _cluster_folder(value)
    if re.match("[A-Za-z][A-Za-z0-9+.-]*://", text):
        raise ValueError(
            f"{shown(text)}: expected a folder, as in /scratch/ada/run: hpcdash looks for "
            "checkpoints in it. A program that saves to a URL can read the URL from a variable "
            "in [environment]"
        )
    if "$" in text:
        raise ValueError(
            f"{shown(text)}: variables are not expanded: use the full path, as in /scratch/ada/run"
        )
    if unknown := re.search(r"%(?!a).?", text.replace("%%", "")):
        raise ValueError(
            f"{shown(text)}: {quoted(unknown[0])} is not supported here: use %a for the array "
            "task, %% for a percent sign"
        )
    return text


def _slot_type(value: object) -> SlotType:
    likely = _GPU_NAMES.get(value.casefold()) if isinstance(value, str) else None
    if likely:
        raise ValueError(
            f"expected {', '.join(map(quoted, SlotType))}, not {shown(value)}; did you mean "
            f"{quoted(likely)}?"
        )
    return SlotType(one_of(*SlotType)(value))


def _function(text: str) -> tuple[str, str]:
    """Parse MODULE:FUNCTION."""
    module, colon, function = text.partition(":")
    if "/" in module or (colon and module.endswith(".py")):
        raise ValueError(f'{shown(text)} is a file: use the module name, as in "train:main"')
    if not colon:
        module, _, function = text.rpartition(".")
        example = f"{module}:{function}" if module and function != "py" else "train:main"
        raise ValueError(f"{shown(text)} is not MODULE:FUNCTION: use for example {quoted(example)}")
    for part in (*module.split("."), *function.split(".")):
        if not part.isidentifier():
            raise ValueError(
                f"{shown(text)} is not MODULE:FUNCTION: {shown(part)} is not a valid Python name"
            )
    if module == "__main__":
        raise ValueError("__main__ is the job's runner: move the function into a module")
    return module, function


def _values(value: object) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise ValueError(f'expected an array, as in [1, "x"], not {shown(value)}')
    return tuple(value)


def _items(value: object) -> tuple[Any, ...]:
    items = _values(value)
    if not 1 <= len(items) <= MAX_TASKS:
        raise ValueError(
            f"expected 1 to {MAX_TASKS} items, one for each array task, not {len(items)}"
        )
    return items


def _arguments(value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"expected a table, as in {{ lr = 0.001 }}, not {shown(value)}")
    return value


def _own_reader(field: RequestField) -> Reader:
    """Return the reader of a key that only one scheduler has."""
    read = line(field.read) if field.is_text else field.read
    return partial(text_list, read=read) if field.is_list else read


def _record_readers(record: type, **readers: Reader) -> dict[str, Reader]:
    """Return the readers of a record's keys: from `readers`, else by the type of the field."""
    by_type: Mapping[Any, Reader] = {
        "str": parse_line_text,
        "bool": flag,
        "tuple[str, ...]": _texts,
    }
    kinds = record.__annotations__.items()
    return {name: by_type[kind] for name, kind in kinds if kind in by_type} | readers


_texts = partial(text_list, read=parse_line_text)
_count = partial(whole, smallest=1, largest=_MAX_SLOTS)
REQUEST_KEYS: Mapping[str, Reader] = _record_readers(
    Request,
    command=parse_text,
    slots=partial(whole, smallest=0, largest=_MAX_SLOTS),
    slots_per_node=_count,
    slot_type=_slot_type,
    cpus_per_gpu=_count,
    max_requeues=partial(whole, smallest=0, largest=_MAX_REQUEUES),
    time=_limit_seconds,
    memory=_memory_bytes,
    work_dir=_cluster_folder,
    array=line(_array),
    after=_after,
    begin=_begin,
    signal=line(_signal),
    startup_hook=parse_text,
    checkpoints=_checkpoints,
    share=line(lambda text: parse_priority(text).name),
    rank_variables=one_of("processes", "nodes"),
    exclude_nodes=partial(text_list, read=line(_nodes)),
    launcher=one_of(*Launcher),
    **{name: _own_reader(field) for name, field in registry.request_fields().items()},
)
SITE_KEYS: Mapping[str, Reader] = _record_readers(
    Site,
    slot_type=_slot_type,
    job_project_source=line(_project_source),
    storage_root=_storage_root,
    keep=_keep,
    run_as=line(_run_as),
    node_probe=_node_probe,
    **dict.fromkeys(_IMAGE_ROOTS, _folder),
)
# A key of the site that is accepted at the top as well.
_TOP_KEYS = {**REQUEST_KEYS, "node_probe": _node_probe}
TABLES: Mapping[str, Mapping[str, Reader]] = {
    "container": _record_readers(
        Container, runtime=_runtime, binds=partial(text_list, read=line(_bind))
    ),
    "site": SITE_KEYS,
    "call": {
        "function": line(_function),
        "args": _values,
        "kwargs": _arguments,
        "items": _items,
        "python": _cluster_folder,
        "sys_path": partial(text_list, read=_cluster_folder),
        "wheel": _cluster_folder,
        "source": _cluster_folder,
        "callbacks": partial(text_list, read=line(lambda text: ":".join(_function(text)))),
        "result_format": one_of("pickle", "json"),
        "main": parse_line_text,
        "cache_key": parse_line_text,
    },
}
# Keys of [launch.queues.NAME]: keys of a request that depend on where it runs, and keys of the site
# in which its queues differ.
QUEUE_KEYS: Mapping[str, Reader] = {
    key: REQUEST_KEYS.get(key) or SITE_KEYS[key]
    for key in (
        *registry.request_fields(registry.ON_LOGIN_NODES),
        *_IMAGE_ROOTS,
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
        "exclude_nodes",
        "extra_args",
        "launcher",
        "project",
        "workspace",
        "labels",
        "tres_supported",
        "gres_supported",
        "job_project_source",
        "name_prefix",
        "node_probe",
    )
}


def site_readers(user: str | None) -> dict[str, Reader]:
    """Return the readers of a site's keys, where run_as = "user" means `user`."""

    def run_as(value: object) -> str:
        name: str = SITE_KEYS["run_as"](value)
        if name != THE_USER:
            return name
        if not user:
            raise ValueError(
                '"user" means the cluster\'s user, and its configuration does not set one: '
                "use a login name"
            )
        return user

    return {**SITE_KEYS, "run_as": run_as}


def read_keys(
    table: Table, readers: Mapping[str, Reader], apart: Collection[str] = ()
) -> dict[str, Any]:
    """Read a table into the fields of Request and Site."""
    first, *others = [key for key in table.values if key in _IMAGE_ROOTS and key in readers] or [""]
    if others:
        text = f"{first} is also set, for the same folder: set only one of them"
        table.add_problem(text, others[0])
    field_names = {**FIELD_OF_KEY, **dict.fromkeys(_IMAGE_ROOTS, "image_root")}
    fields = table.fields(readers, apart)
    return {field_names.get(key, key): value for key, value in fields.items()}


class RequestProblems(ConfigProblems):
    """All problems of a request, in its order; as a ConfigError it has the place of the first."""

    def __init__(
        self, file: str, problems: Sequence[Problem], next_step: str = "Fix the file."
    ) -> None:
        super().__init__(file, problems, next_step)


def read_request(
    text: str, file: str = "REQUEST.toml", *, site: Site | None = None, user: str | None = None
) -> Request:
    """Read a request from a TOML text; `site` has the cluster's values for [site].

    `file` is its name in errors; `user` is the account of run_as = "user". Raises RequestProblems
    (a ConfigError) with file, line and key of every problem.
    """
    file_name = printable(file)
    try:
        document = parse_document(text, file_name)
    except ConfigProblems as error:
        raise RequestProblems(file_name, error.problems) from None
    return build_request(document, file_name, site=site, user=user, text=text)


def build_request(
    document: Mapping[str, object],
    file_name: str,
    *,
    site: Site | None = None,
    user: str | None = None,
    text: str | None = None,
) -> Request:
    """Read a request from a document as `read_request` does.

    Raises RequestProblems, without lines if `text` is None.
    """
    root = Table(document, _hint)
    given = read_keys(root, _TOP_KEYS, apart=("environment", *TABLES))
    own_site = read_keys(root.table("site"), site_readers(user))
    if "node_probe" in given:
        own_site["node_probe"] = given.pop("node_probe")
    written = frozenset((*given, *(SITE_SAID + key for key in own_site)))
    programs = [key for key in ("command", "script", "call") if key in root.values]
    if len(programs) > 1:
        first, second, *_ = programs
        root.add_problem(f"the {first} is also given: use {first} or {second}", second)
    elif not programs:
        root.add_problem("missing: set command, script or [call]", "command")
    call = _call(root)
    if call is not None and call.items:
        # Each item is an array task.
        given.setdefault("array", ArrayTasks((range(len(call.items)),)))
        if problem := array_problem(call, given["array"]):
            root.add_problem(problem, "array")
    signal = given.get("signal")
    limit = given.get("limit_seconds")
    if signal is not None and limit is not None and signal.seconds_before >= limit:
        root.add_problem(
            f"{signal.seconds_before} s before the end is outside the time limit of {limit} s",
            "signal",
        )
    environment = root.table("environment").mapping(variable, _variable_name)
    container = _container(root)
    step = "Fix the request." if text is None else "Fix the file."
    if root.problems:
        raise RequestProblems(file_name, located(text or "", root.problems), step)
    request = Request(
        environment=environment,
        container=container,
        call=call,
        site=replace(site or Site(), **own_site),
        said=written,
        **given,
    )
    require_plain(request, text or "", file_name, step)
    return request


def require_plain(request: Request, text: str, file_name: str, step: str) -> None:
    """Raise RequestProblems, with lines of `text`, for keys that a plain script cannot have."""
    if conflicts := plain_conflicts(request):
        lines = key_lines(text)
        # A key of [site] may stand at the top.
        problems = [
            (path[1:] if path[0] == "site" and path not in lines else path, message)
            for path, message in conflicts
        ]
        raise RequestProblems(file_name, located(text, problems), step)


def _call(root: Table) -> Call | None:
    if "call" not in root.values:
        return None
    before = len(root.problems)
    table = root.table("call")
    found = table.fields(TABLES["call"])
    if "function" not in table.values:
        table.add_problem('missing: set the function, as in "train:main"', "function")
    if "wheel" in table.values and "source" in table.values:
        table.add_problem("a wheel is also given: use wheel or source", "source")
    variables = root.values.get("environment")
    if isinstance(variables, dict) and "PY_EXEC" in variables:
        root.add_problem("set python in [call] instead", "environment", "PY_EXEC")
    if len(root.problems) > before:
        return None
    module, function = found.pop("function")
    return Call(module, function, **found)


def _container(root: Table) -> Container | None:
    if "container" not in root.values:
        return None
    before = len(root.problems)
    table = root.table("container")
    found = table.fields(TABLES["container"])
    is_read = len(root.problems) == before
    if is_read and "image" not in found and found.get("runtime") is not Runtime.NONE:
        table.add_problem('missing: set an image, or runtime = "none"', "image")
    return Container(**found)


def _hint(key: str, path: KeyPath, known: Collection[str]) -> str:
    """Return the hint that follows "unknown key"."""
    if path and key in REQUEST_KEYS:
        return f"; {_AT_THE_TOP}"
    if not path:
        for name, readers in TABLES.items():
            if key in readers:
                return f"; it belongs in [{name}]"
        if key in _FOREIGN_KEYS:
            return f"; did you mean {quoted(_FOREIGN_KEYS[key])}?"
    return did_you_mean(key, known)


def request_text(request: Request, *, site: Site | None = None) -> str:
    """Return TOML that `read_request(text, site=site)` reads back as an equal request.

    Defaults and the cluster's own values in `site` are left out, unless the user wrote them
    (`said`).
    """
    call = request.call
    written = request.said
    site_written = {name.removeprefix(SITE_SAID) for name in written if name.startswith(SITE_SAID)}
    tables: dict[str, Mapping[str, Any]] = {
        "environment": request.environment,
        "call": {},
        "container": _toml_values(request.container or Container(), Container()),
        "site": _toml_values(request.site, site or Site(), site_written),
    }
    # The items make the array.
    skipped = {"said", *tables} | ({"array"} - written if call and call.items else set())
    if call is not None:
        default = Call(call.module, call.function)
        tables["call"] = {"function": call.name, **_toml_values(call, default, skipped={"staged"})}
    keys = _toml_values(request, Request(), written, skipped)
    return format_toml(keys | {key: table for key, table in tables.items() if table})


def _toml_values(
    record: Struct, default: Struct, written: Collection[str] = (), skipped: Collection[str] = ()
) -> dict[str, Any]:
    """Return by key the TOML values of fields that differ from `default` or are in `written`."""
    keys = {field: key for key, field in FIELD_OF_KEY.items()}
    found = {}
    for name in record.__struct_fields__:
        value = getattr(record, name)
        # '' and None cannot be written: they mean an absent value.
        is_absent = name in skipped or value in (None, "", ())
        if not is_absent and (value != getattr(default, name) or name in written):
            found[keys.get(name, name)] = _toml_value(name, value)
    return found


def _toml_value(field: str, value: object) -> object:
    match value:
        case int() if field == "limit_seconds":
            return units.format_clock(value)
        case int() if field == "memory_bytes":
            # The largest unit of which it is a whole number.
            power = max(power for power in range(5) if value % units.KIB**power == 0)
            return f"{value // units.KIB**power}{'BKMGT'[power]}"
        case EarlySignal():
            return f"{'B:' if value.batch_only else ''}{value.name}@{value.seconds_before}"
        case bool() | int() | tuple() | dict():
            return value
        case _:
            return str(value)
