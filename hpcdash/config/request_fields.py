"""Readers of what REQUEST.toml may say: one value in, what a Request holds out or Unfit with words."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from hpcdash.backends import registry
from hpcdash.backends.base import RequestField
from hpcdash.backends.script.body import SOURCES, accounted_to
from hpcdash.backends.script.launchers import SIGNALS
from hpcdash.config.problems import did_you_mean, printable, quoted, shown
from hpcdash.config.values import Reader, ValidationError, flag, line_of_text, one_of
from hpcdash.domain import nodelist, units
from hpcdash.domain.array_tasks import MAX_TASKS, ArrayTasks, parse_tasks
from hpcdash.domain.job_ids import parse_job_id, split_ids
from hpcdash.domain.request import EarlySignal, Launcher, Runtime, SlotType
from hpcdash.errors import ConfigError

_Parsed = TypeVar("_Parsed")
MOST_SLOTS = 1_000_000
# sbatch: "sig_time must have an integer value between 0 and 65535".
LONGEST_SIGNAL_SECONDS = 65_535
# Slurm takes a whole number of MiB, and 0 for all of a node's.
_LEAST_MEMORY_BYTES = 1024**2
_LONGEST_TEXT = 1_000_000
_SIGNAL = re.compile(r"(?:(B):)?(?:SIG)?([A-Z0-9]+)@([0-9]{1,9})")
_NODES = re.compile(r"[A-Za-z0-9._\[\],-]+")
_PLAIN_PATH = re.compile(r"[A-Za-z0-9_./@+-]+")
_ACCOUNT = re.compile(r"[a-z_][a-z0-9_-]*")
# What people call a slot that is a GPU.
_GPU_WORDS = {"gpu": SlotType.CUDA, "gpus": SlotType.CUDA, "nvidia": SlotType.CUDA, "amd": SlotType.ROCM}
_BIND_OPTIONS = re.compile(r"[A-Za-z0-9_=,-]+")
# Keys whose field has its unit in its name.
FIELD_OF_KEY = {"time": "limit_seconds", "memory": "memory_bytes"}
# The word of run_as that stands for the cluster's own `user`.
THE_USER = "user"
_IMAGE_ROOTS = ("image_root", "apptainer_image_root", "singularity_image_root")


def lines_of_text(value: object) -> str:
    """Text of one or several lines that shows something, tabs among it."""
    if not isinstance(value, str) or not value.strip():
        return line_of_text(value)
    if len(value) > _LONGEST_TEXT:
        raise ValidationError(f"too long: at most {_LONGEST_TEXT} characters")
    odd = next((letter for letter in value if letter not in "\n\t" and not letter.isprintable()), "")
    if odd:
        raise ValidationError(f"holds a character that does not print: {printable(odd)}")
    return value


def whole(value: object, smallest: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not smallest <= value <= MOST_SLOTS:
        raise ValidationError(f"expected a whole number from {smallest} to {MOST_SLOTS}, not {shown(value)}")
    return value


def text_list(value: object, read: Callable[[object], str] = line_of_text) -> tuple[str, ...]:
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
            f"{shown(value)} has no unit (minutes to Slurm, seconds to PBS): write {quoted('90m')} or 1:30:00"
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
            f"{shown(value)} has no unit (MiB to Slurm, bytes to PBS): write {quoted('64G')} or 4000M"
        )
    amount = _parsed(value, units.parse_memory)
    if amount < _LEAST_MEMORY_BYTES:
        raise ValidationError(f"expected 1M or more, not {shown(value)}")
    return amount


def _array(value: object) -> ArrayTasks:
    tasks = _parsed(value, _tasks)
    if tasks.is_incomplete:
        raise ValidationError(f"{shown(value)} is cut short: write all tasks, as in {quoted('1-10%1')}")
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
            ids += [str(parse_job_id(word)) for word in words]
        except ValueError as error:
            raise ValidationError(f"item {at + 1}: {error}" if isinstance(value, list) else str(error)) from None
    return tuple(dict.fromkeys(ids))


def _signal(value: object) -> EarlySignal:
    match = _SIGNAL.fullmatch(line_of_text(value))
    if match is None:
        raise ValidationError(
            f"{shown(value)}: write {quoted('USR1@600')} (600 s before the end), "
            f"or {quoted('B:USR1@600')} for the batch shell alone"
        )
    if match[2] not in SIGNALS:
        raise ValidationError(f"{quoted(match[2])} is no signal's name{did_you_mean(match[2], SIGNALS)}")
    seconds = int(match[3])
    if not 1 <= seconds <= LONGEST_SIGNAL_SECONDS:
        raise ValidationError(f"expected 1 to {LONGEST_SIGNAL_SECONDS} s before the end, not {seconds}")
    return EarlySignal(match[2], seconds, batch_only=match[1] is not None)


def _nodes(value: object) -> str:
    text = line_of_text(value)
    if not _NODES.fullmatch(text):
        raise ValidationError(f"{shown(text)} names no nodes: write {quoted('n01')} or {quoted('n[01-03]')}")
    _parsed(text, nodelist.count)
    return text


def _bind(value: object) -> str:
    """`SOURCE[:TARGET[:OPTIONS]]`."""
    text = line_of_text(value)
    source, *rest = text.split(":")
    target, options = rest[0] if rest else "/", rest[1] if len(rest) > 1 else "rw"
    if len(rest) > 2 or not source.strip() or not _BIND_OPTIONS.fullmatch(options):
        raise ValidationError(f"{shown(text)} is no bind: write SOURCE, SOURCE:TARGET or SOURCE:TARGET:ro")
    if not target.startswith("/"):
        raise ValidationError(f"{shown(text)}: the place in the container begins with '/'")
    return text


def variable(value: object) -> str:
    """Text, empty too, or a whole number; of a float or a boolean the spelling would be a guess."""
    if type(value) is int and abs(value) < 2**63:
        return str(value)
    if isinstance(value, bool | int | float):
        raise ValidationError(f"expected text in quotes, spelled as the program reads it, not {shown(value)}")
    return value if isinstance(value, str) and not value.strip(" \n\t") else lines_of_text(value)


def _project_source(value: object) -> str:
    text = line_of_text(value)
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
    text = line_of_text(value)
    if not text.startswith("/"):
        raise ValidationError(f"expected a folder from the root, as in {quoted('/work/ada')}, not {shown(text)}")
    return text


def _storage_root(value: object) -> str:
    text = _folder(value)
    if text.strip("/") == "" or ".." in text.split("/") or not _PLAIN_PATH.fullmatch(text):
        raise ValidationError(f"{shown(text)} cannot hold launches: letters, digits and ._@+- alone, below the root")
    return text


def _run_as(value: object) -> str:
    text = line_of_text(value)
    if text == "root":
        raise ValidationError("jobs are submitted as anyone but root")
    if not _ACCOUNT.fullmatch(text):
        raise ValidationError(
            f"{shown(text)} is no login name that sudo rules can name: small letters, digits, '_' and '-'"
        )
    return text


def folder_there(value: object) -> str:
    folder = line_of_text(value)
    if re.match(r"~|\$(?:HOME|\{HOME\})(?:/|$)", folder):
        raise ValidationError(
            f"no scheduler reads {shown(folder.partition('/')[0])} here: write the whole path, as in /home/ada"
        )
    return folder


def _checkpoints(value: object) -> str:
    text = folder_there(value)
    if "$" in text:
        raise ValidationError(
            f"{shown(text)}: no variable is filled in here: write the whole path, as in /scratch/ada/run"
        )
    if odd := re.search(r"%(?!a).?", text.replace("%%", "")):
        raise ValidationError(
            f"{shown(text)}: {quoted(odd[0])} stands for nothing: write %a for the array's task, %% for itself"
        )
    return text


def _slot_type(value: object) -> SlotType:
    if isinstance(value, str) and (meant := _GPU_WORDS.get(value.casefold())):
        raise ValidationError(
            f"expected {', '.join(map(quoted, SlotType))}, not {shown(value)}; did you mean {quoted(meant)}?"
        )
    return SlotType(one_of(*SlotType)(value))


def _own_reader(field: RequestField) -> Reader:
    """Of a key that one scheduler alone has."""
    read: Callable[[object], str] = partial(_parsed, parse=field.read)
    return partial(text_list, read=read) if field.is_list else read


def _launcher(value: object) -> Launcher:
    return Launcher(one_of(*Launcher)(value))


def _parsed(value: object, parse: Callable[[str], _Parsed]) -> _Parsed:
    """What a parser of the domain makes of text, its ValueError as Unfit."""
    text = line_of_text(value)
    try:
        return parse(text)
    except ValueError as error:
        raise ValidationError(printable(str(error))) from None


_OWN_FIELDS = {name: _own_reader(field) for name, field in registry.REQUEST_FIELDS.items()}
REQUEST_FIELDS: Mapping[str, Reader] = {
    "name": line_of_text,
    "kind": line_of_text,
    "command": lines_of_text,
    "script": line_of_text,
    "slots": partial(whole, smallest=0),
    "slots_per_node": partial(whole, smallest=1),
    "slot_type": _slot_type,
    "gpu_type": line_of_text,
    "cpus_per_gpu": partial(whole, smallest=1),
    "queue": line_of_text,
    "account": line_of_text,
    "qos": line_of_text,
    "time": limit_seconds,
    "memory": memory_bytes,
    "work_dir": folder_there,
    "array": _array,
    "after": _after,
    "hold": flag,
    "signal": _signal,
    "requeue": flag,
    "kill_switch": line_of_text,
    "save_switch": line_of_text,
    "checkpoints": _checkpoints,
    "job_library": flag,
    "exclude_nodes": partial(text_list, read=_nodes),
    "extra_args": text_list,
    "launcher": _launcher,
    "project": line_of_text,
    "workspace": line_of_text,
    "labels": text_list,
    **_OWN_FIELDS,
}
CONTAINER_FIELDS: Mapping[str, Reader] = {
    "runtime": _runtime,
    "image": line_of_text,
    "binds": partial(text_list, read=_bind),
    "force_pull": flag,
}
SITE_FIELDS: Mapping[str, Reader] = {
    "tres_supported": flag,
    "gres_supported": flag,
    "slot_type": _slot_type,
    "job_project_source": _project_source,
    "storage_root": _storage_root,
    "name_prefix": line_of_text,
    "image_root": _folder,
    "apptainer_image_root": _folder,
    "singularity_image_root": _folder,
    "keep": one_of("always", "failed"),
    "run_as": _run_as,
    "node_probe": lines_of_text,
}
# What [launch.queues.NAME] may say: of a request what depends on where it runs, of the site what its queues differ in.
QUEUE_FIELDS: Mapping[str, Reader] = {
    key: REQUEST_FIELDS.get(key) or SITE_FIELDS[key]
    for key in (
        *(
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
        ),
        *("exclude_nodes", "extra_args", *_OWN_FIELDS),
        *("launcher", "project", "workspace", "labels"),
        *("tres_supported", "gres_supported", "job_project_source", "name_prefix", "node_probe"),
        *("image_root", "apptainer_image_root", "singularity_image_root"),
    )
}
INNER_TABLES = {"container": CONTAINER_FIELDS, "site": SITE_FIELDS}
TABLES = ("environment", *INNER_TABLES)


def image_root_problem(table: Mapping[str, object]) -> tuple[str, str] | None:
    """(key, words) where a table sets the folder of images under more than one of its names."""
    first, *others = [key for key in table if key in _IMAGE_ROOTS] or [""]
    if not others:
        return None
    return others[0], f"{first} is set too, and both mean the folder of images: leave one of the two out"


def as_fields(found: Mapping[str, Any]) -> dict[str, Any]:
    """Checked values by the fields of Request and Site that hold them."""
    return {"image_root" if key in _IMAGE_ROOTS else FIELD_OF_KEY.get(key, key): value for key, value in found.items()}


def whose(run_as: str, user: str | None) -> str:
    """The login name that run_as means; Unfit where it is the cluster's user and that is not known."""
    if run_as != THE_USER:
        return run_as
    if not user:
        raise ValidationError('"user" means the cluster\'s user, and its configuration sets none: write a login name')
    return user
