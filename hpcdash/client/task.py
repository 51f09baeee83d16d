"""Prepares calls of functions: settings become a request, arguments become files of its launch."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from hpcdash.backends.script.call import ARGS_NAME, CALLBACKS_NAME, ITEMS_NAME, KWARGS_NAME
from hpcdash.client.packaging import Code, dumps, find_code, packed, waiting_jobs
from hpcdash.config.request import read_request, request_text
from hpcdash.config.toml_text import format_toml
from hpcdash.domain.array_tasks import MAX_TASKS, ArrayTasks
from hpcdash.domain.request import TASK_KIND, Request, Site
from hpcdash.errors import UsageError
from hpcdash.job.callbacks import Callback, shipped
from hpcdash.job.results import JSON, PICKLE
from hpcdash.job.task import Task

# Options of a task besides the keys of a request.
_CALL_KEYS = ("python", "result_format", "source", "sys_path", "wheel")
OWN_OPTIONS = frozenset(_CALL_KEYS) | {
    "cache",
    "callbacks",
    "cluster",
    "cpus",
    "gpus",
    "image",
    "nodes",
    "ntasks",
    "packaging",
    "runtime",
}
_OTHER_NAMES = {"partition": "queue", "mem": "memory", "cpus_per_task": "cpus", "job_name": "name"}
_TABLES = ("container", "environment", "site")


class Prepared(Struct, frozen=True):
    """A call that is ready to be planned: its request, and the folder that is sent with it."""

    request: Request
    text: str
    folder: Path | None
    callbacks: tuple[Callback, ...]
    cache_key: str = ""


class CallTarget(Protocol):
    """Protocol of a call's target and its defaults: hpcdash.client.cluster.Cluster."""

    @property
    def defaults(self) -> Mapping[str, Any]: ...
    @property
    def callbacks(self) -> tuple[Callback, ...]: ...
    @property
    def is_here(self) -> bool: ...
    @property
    def python(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def logs_results(self) -> bool: ...
    @property
    def site(self) -> Site: ...
    def conditions(self, after: Iterable[tuple[Any, str]]) -> list[str]: ...


def prepare(
    cluster: CallTarget,
    task: Task[Any, Any],
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] = MappingProxyType({}),
    *,
    items: list[Any] | None = None,
    at_most: int | None = None,
    calls: list[bytes] | None = None,
) -> Prepared:
    """Prepare the request of a call, or of a map over items. Blocking. Raises UsageError.

    `calls` are items that contain their functions (hpcdash.job.pickles); `task` has their code.
    """
    options = merged(cluster.defaults, task.options)
    own = {key: options.pop(key) for key in OWN_OPTIONS & options.keys()}
    code = find_code(task.function, str(own.get("packaging", "auto")), is_here=cluster.is_here)
    if calls is not None:
        code = replace(code, module="hpcdash.job.pickles", function="call_packed")
        items = list(calls)
    if items is not None and not 1 <= len(items) <= MAX_TASKS:
        raise UsageError(
            f"a map takes 1 to {MAX_TASKS} items, one per array task, not {len(items)}"
        )
    form = str(own.get("result_format", PICKLE))
    if cluster.logs_results:
        _refuse_for_logs(cluster.title, form, is_map=items is not None)
    with waiting_jobs() as jobs:
        staged = _arguments(
            task, replace(code, by_value=code.by_value and calls is None), args, kwargs, items
        )
    callbacks = (*cluster.callbacks, *own.get("callbacks", ()))
    if any(callback.requires_runner_transport for callback in callbacks):
        staged[CALLBACKS_NAME] = shipped(callbacks)
    after = [*task.waits_for, *((job, "afterok") for job in jobs)]
    if jobs and cluster.logs_results:
        raise UsageError(
            f"a job is an argument, but {cluster.title} does not store results in files",
            "Pass job.result().",
        )
    key = _cache_key(task, form, staged) if own.get("cache") else ""
    document = _document(cluster, code, options, own)
    name = getattr(task.function, "__name__", type(task.function).__name__).strip("<>")
    document.setdefault("name", name)
    if conditions := [*_listed(options.get("after")), *cluster.conditions(after)]:
        document["after"] = list(dict.fromkeys(conditions))
    if items is not None:
        throttle = "" if at_most is None else f"%{at_most}"
        document["array"] = f"0-{len(items) - 1}{throttle}"
    if key:
        document["call"]["cache_key"] = key
    request = read_request(format_toml(_plain(document)), f"task {name}", site=cluster.site)
    assert request.call is not None
    staged |= code.staged
    request = replace(request, call=replace(request.call, staged=staged))
    return Prepared(
        request=request,
        text=request_text(request, site=cluster.site),
        folder=code.folder,
        callbacks=callbacks,
        cache_key=key,
    )


def _document(
    cluster: CallTarget, code: Code, options: Mapping[str, Any], own: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a call's REQUEST.toml: its slots, its container, and its function in a Python."""
    document = {**options, **_slots(own, options), "kind": TASK_KIND}
    if cluster.logs_results and not (own.get("nodes") or 0) > 1:
        # The cluster has only one node.
        document.pop("slots_per_node", None)
    # Modules in the working folder would hide the wheel.
    if cluster.is_here and code.folder is None and own.get("packaging") != "wheel":
        document.setdefault("work_dir", str(Path.cwd()))
    if code.folder is not None:
        document["files"] = ["."]
    if container := {key: own[key] for key in ("image", "runtime") if own.get(key)}:
        document["container"] = {**options.get("container", {}), **container}
    if own.get("packaging") == "container" and not document.get("container"):
        raise UsageError(
            "packaging: a container needs an image", 'Set image="docker://python:3.12".'
        )
    call = {name: own[name] for name in _CALL_KEYS if name in own}
    call["sys_path"] = [*code.sys_path, *map(str, call.get("sys_path", ()))]
    call.setdefault("python", "python3" if "container" in document else cluster.python)
    call["function"] = f"{code.module}:{code.function}"
    if code.main:
        call["main"] = code.main
    document["call"] = call
    return document


def _refuse_for_logs(title: str, form: str, *, is_map: bool) -> None:
    """Raise UsageError for results that a job's log cannot return."""
    if is_map:
        raise UsageError(
            f"map: {title} does not support arrays",
            "Submit each: [task.submit(item) for item in items].",
        )
    if form != JSON:
        raise UsageError(
            f"result_format: {title} returns results in logs, which others may write to, so "
            "pickles are not read from them",
            'Use result_format="json", for the task or in hpcdash.connect.',
        )


def merged(*settings: Mapping[str, Any]) -> dict[str, Any]:
    """Merge settings under their own names; later ones override, in tables key by key."""
    found: dict[str, Any] = {}
    for one in settings:
        for key, value in one.items():
            key = _OTHER_NAMES.get(key, key)
            is_table = key in _TABLES and isinstance(value, Mapping)
            found[key] = {**found.get(key, {}), **value} if is_table else value
    return found


def _slots(own: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the slots of `gpus`, `cpus` and `nodes`: one call per node, by default on one node.

    `ntasks` is the number of calls on these nodes, each a rank of one step; the result is rank 0's.
    """
    numbers = [own.get(name) for name in ("gpus", "cpus", "nodes", "ntasks")]
    gpus, cpus, nodes, ntasks = numbers
    if "slots" in options:
        if any(numbers):
            raise UsageError(
                "slots cannot be combined with gpus, cpus, nodes or ntasks",
                "Use slots, or the others.",
            )
        return {}
    for value in numbers:
        if value is not None and (type(value) is not int or value < 0):
            raise UsageError("gpus, cpus, nodes and ntasks are whole numbers")
    if ntasks:
        if (gpus and cpus) or (gpus and gpus != ntasks):
            raise UsageError(
                "ntasks: each task gets a GPU or a CPU", "Remove gpus and cpus, or use slots."
            )
        return {
            "slots": ntasks,
            "slots_per_node": -(-ntasks // (nodes or 1)),
            "slot_type": "cuda" if gpus else "cpu",
            "launcher": "srun",
        }
    count = gpus or cpus or 1
    slots: dict[str, Any] = {"slots": count, "slots_per_node": -(-count // (nodes or 1))}
    if not gpus:
        slots["slots"] = max(count, nodes or 1)
        slots["slot_type"] = "cpu"
        return slots
    if "slot_type" not in options:
        slots["slot_type"] = "cuda"
    if cpus:
        slots["cpus_per_gpu"] = max(1, cpus // gpus)
    return slots


def _arguments(
    task: Task[Any, Any],
    code: Code,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    items: list[Any] | None,
) -> dict[str, bytes]:
    """Return the files of a call's arguments, with the function if jobs cannot import it."""
    if code.by_value:

        def call(own: tuple[Any, ...], named: Mapping[str, Any]) -> bytes:
            return dumps((task.function, (*own, *args), {**kwargs, **named}), by_value=True)

        if items is None:
            return {ARGS_NAME: packed(dumps((call((), {}),)))}
        each = [call(*_split(item)) for item in items]
        return {ITEMS_NAME: packed(dumps(each))}
    values: dict[str, Any] = {}
    if args:
        values[ARGS_NAME] = args
    if kwargs:
        values[KWARGS_NAME] = dict(kwargs)
    if items is not None:
        values[ITEMS_NAME] = items
    return {name: packed(dumps(value)) for name, value in values.items()}


def _split(item: Any) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Return the arguments of an item, split as by the runner."""
    if isinstance(item, dict):
        return (), item
    if isinstance(item, tuple):
        return item, {}
    return (item,), {}


def _cache_key(task: Task[Any, Any], form: str, staged: Mapping[str, bytes]) -> str:
    """Return a key for calls of the same function and source with the same arguments."""
    try:
        source = inspect.getsource(task.function)
    except (OSError, TypeError):
        source = ""
    digest = hashlib.sha256(
        f"{task.function.__module__}:{task.function.__qualname__}\n{form}\n{source}".encode()
    )
    for name in (ARGS_NAME, KWARGS_NAME, ITEMS_NAME):
        digest.update(f"\n{name} {len(staged.get(name, b''))}\n".encode())
        digest.update(staged.get(name, b""))
    return digest.hexdigest()[:32]


def _listed(value: object) -> list[str]:
    if value is None:
        return []
    if isinstance(value, list | tuple):
        return [str(item) for item in value]
    return [str(value)]


def _plain(value: Any) -> Any:
    """Convert a value to TOML's types: lists for tuples, text for paths and sequences of tasks."""
    match value:
        case Mapping():
            return {str(key): _plain(one) for key, one in value.items() if one is not None}
        case list() | tuple():
            return [_plain(one) for one in value]
        case Path() | ArrayTasks():
            return str(value)
        case _:
            return value
