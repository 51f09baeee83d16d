"""The paths that a request or a script stands on, and what each has to be. Looks at no disk."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum

from hpcdash.domain.demand import Finding
from hpcdash.domain.request import Request, Runtime
from hpcdash.domain.switches import SwitchKind, path_problem, switch_in_environment

# A pattern that a scheduler fills in, or a variable: what it comes to is not known before.
_FILLED_IN = re.compile(r"%[0-9]*[A-Za-z]|\$|\^array_index\^")
_ON_NODES = "It is looked for on the login node; a disk that only the nodes have is not seen from there."


class PathKind(StrEnum):
    """What has to be at a path."""

    FOLDER = "folder"
    WRITTEN = "folder to write in"
    FILE = "file"
    ANY = "anything"
    # Nothing but a folder: a kill switch that was not cleared ends what starts.
    CLEARED = "no switch"


@dataclass(frozen=True, slots=True)
class WantedPath:
    """A path on the login node, absolute or from the home there; what needs it is called `field`.

    Without it the job fails, where `is_needed`. `what` goes before the path in words: `the folder of …: `.
    """

    field: str
    path: str
    kind: PathKind = PathKind.ANY
    is_needed: bool = True
    what: str = ""
    next_step: str = ""


def request_paths(request: Request, staged: Collection[str] = ()) -> tuple[WantedPath, ...]:
    """In the request's order; a script that is `staged` (names of files) comes along."""
    return tuple(_of_request(request, staged))


def _of_request(request: Request, staged: Collection[str]) -> Iterator[WantedPath]:
    folder = request.work_dir
    if request.script and request.script.rpartition("/")[2] not in staged:
        yield WantedPath("script", _within(folder, request.script), PathKind.FILE)
    yield from _of_call(request)
    if folder:
        made = f"mkdir -p {folder}" if re.fullmatch(r"[A-Za-z0-9_./@+-]+", folder) else ""
        yield WantedPath("work_dir", folder, PathKind.FOLDER, next_step=made)
    for field, path in (("kill_switch", request.kill_switch), ("save_switch", request.save_switch)):
        parent = _parent(_within(folder, path)) if path else ""
        if parent and not _FILLED_IN.search(parent):
            yield WantedPath(field, parent, PathKind.WRITTEN, is_needed=False, what="its folder ")
    if switch := kill_switch_of(request):
        yield WantedPath("", switch, PathKind.CLEARED, is_needed=False)
    container = request.container
    if container is None or container.runtime is Runtime.NONE:
        return
    image = container.image.removeprefix("oci-archive:")
    if image.startswith("/"):
        yield WantedPath("container.image", image, PathKind.ANY, next_step=_ON_NODES)
    for bind in container.binds:
        source = bind.partition(":")[0]
        if source.startswith("/") and not _FILLED_IN.search(source):
            yield WantedPath("container.binds", source, is_needed=False, next_step=_ON_NODES)


def kill_switch_of(request: Request) -> str:
    """The file that ends a request's job as it starts, where it is known before: absolute, '' for none."""
    named = switch_in_environment(SwitchKind.KILL, request.environment, "")
    given = named.path if named is not None else request.kill_switch
    path = _within(request.work_dir, given) if given else ""
    return "" if path_problem(path) or _FILLED_IN.search(path) else path


def dropped_finding(path: str) -> Finding:
    """What to say before something is submitted whose kill switch is there."""
    words = f"the kill switch {path} is dropped still: the job would end as it starts"
    return Finding("warning", "", words, f"Clear it first: rm {shlex.quote(path)} (or hpcdash kill-switch JOB --clear)")


def _of_call(request: Request) -> Iterator[WantedPath]:
    call = request.call
    if call is None:
        return
    for path in call.sys_path:
        yield WantedPath("call.sys_path", _within(request.work_dir, path), PathKind.FOLDER)
    if call.wheel:
        yield WantedPath("call.wheel", _within(request.work_dir, call.wheel), PathKind.FILE)
    if call.source:
        yield WantedPath("call.source", _within(request.work_dir, call.source), PathKind.FOLDER)


def _within(folder: str, path: str) -> str:
    return path if path.startswith("/") or not folder else f"{folder}/{path}"


def _parent(path: str) -> str:
    """The folder of a path; '' where it names none: that is where the job runs."""
    folder, slash, _ = path.rpartition("/")
    return folder or slash
