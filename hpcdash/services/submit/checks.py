"""Checks before a submission that need the cluster: missing paths, and the estimated start."""

from __future__ import annotations

import contextlib
import hashlib
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from hpcdash.backends.actions import ActionCommand, ActionRequest, Verb
from hpcdash.backends.queries import LOGIN_SHELL_STEP, Answer, Query, refused
from hpcdash.backends.submissions import StartEstimate, Submission
from hpcdash.domain.demand import LintFinding
from hpcdash.domain.request import Request, Runtime
from hpcdash.domain.switches import SwitchKind, path_problem, switch_in_environment
from hpcdash.errors import HpcdashError
from hpcdash.private_files import atomic_write, make_folder
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.jobs.actions import Actions
from hpcdash.services.state.folders import journal, state_root
from hpcdash.shell_files import shell_text

# A scheduler's pattern, or a variable: its value is unknown beforehand.
_FILLED_IN = re.compile(r"%[0-9]*[A-Za-z]|\$|\^array_index\^")
_ON_NODES = "Checked on the login node, which may not mount disks that the nodes have."
# An unresponsive file server delays the command no longer than this.
_LIMIT_SECONDS = 10.0
MAX_PATHS = 200


class PathKind(StrEnum):
    """Kind of entry that must exist at a path, as an argument of check_paths.sh."""

    FOLDER = "folder"
    # A folder to write in.
    WRITTEN = "written"
    FILE = "file"
    ANY = "any"
    # Nothing but a folder: a kill switch that is still set ends a job as it starts.
    CLEARED = "cleared"


class RequiredPath(Struct, frozen=True):
    """A path on the login node, absolute or from the home there, required by the key `field`.

    Without it the job fails, if it `is_needed`. `what` is text before the path in messages: `the
    folder of …: `.
    """

    field: str
    path: str
    kind: PathKind = PathKind.ANY
    is_needed: bool = True
    what: str = ""
    next_step: str = ""


def request_paths(request: Request, staged: Collection[str] = ()) -> Iterator[RequiredPath]:
    """Iterate over a request's paths in its order; `staged` are the names of files sent with it."""
    if request.files and not request.work_dir.startswith("/"):
        # The working directory is sent, and relative paths are within it.
        for one in request_paths(replace(request, files=()), staged):
            if one.path.startswith("/"):
                yield one
        return
    folder = request.work_dir
    if request.script and request.script.rpartition("/")[2] not in staged:
        yield RequiredPath("script", _within(folder, request.script), PathKind.FILE)
    yield from _call_paths(request)
    if folder:
        made = f"mkdir -p {folder}" if re.fullmatch(r"[A-Za-z0-9_./@+-]+", folder) else ""
        yield RequiredPath("work_dir", folder, PathKind.FOLDER, next_step=made)
    for field, path in (("kill_switch", request.kill_switch), ("save_switch", request.save_switch)):
        parent, slash, _ = _within(folder, path).rpartition("/")
        parent = parent or slash
        # A plain name is in the folder that the job runs in.
        if path and parent and not _FILLED_IN.search(parent):
            yield RequiredPath(field, parent, PathKind.WRITTEN, is_needed=False, what="its folder ")
    if switch := request_kill_switch(request):
        yield RequiredPath("", switch, PathKind.CLEARED, is_needed=False)
    container = request.container
    if container is None or container.runtime is Runtime.NONE:
        return
    image = container.image.removeprefix("oci-archive:")
    if image.startswith("/"):
        yield RequiredPath("container.image", image, PathKind.ANY, next_step=_ON_NODES)
    for bind in container.binds:
        source = bind.partition(":")[0]
        if source.startswith("/") and not _FILLED_IN.search(source):
            yield RequiredPath("container.binds", source, is_needed=False, next_step=_ON_NODES)


def request_kill_switch(request: Request) -> str:
    """Return the absolute path of the file that would end a request's job as it starts.

    '' for none, and for a path with a pattern or a variable.
    """
    named = switch_in_environment(SwitchKind.KILL, request.environment, "")
    given = named.path if named is not None else request.kill_switch
    path = _within(request.work_dir, given) if given else ""
    return "" if path_problem(path) or _FILLED_IN.search(path) else path


def dropped_finding(path: str) -> LintFinding:
    """Build the finding for a submission whose kill switch is still set."""
    text = f"the kill switch {path} is still set: the job would stop at once"
    return LintFinding(
        "warning",
        "",
        text,
        f"Clear it first: rm {shlex.quote(path)} (or hpcdash kill-switch JOB --clear)",
    )


def _call_paths(request: Request) -> Iterator[RequiredPath]:
    call = request.call
    if call is None:
        return
    for path in call.sys_path:
        yield RequiredPath("call.sys_path", _within(request.work_dir, path), PathKind.FOLDER)
    if call.wheel:
        yield RequiredPath("call.wheel", _within(request.work_dir, call.wheel), PathKind.FILE)
    if call.source:
        yield RequiredPath("call.source", _within(request.work_dir, call.source), PathKind.FOLDER)


def _within(folder: str, path: str) -> str:
    return path if path.startswith("/") or not folder else f"{folder}/{path}"


ESTIMATE_SECONDS = 60.0
# Clusters, one a line, whose submit command submits what should only be tested.
_WRAPPED_FILE = "wrapped-clusters"
_WRAPPED = "no estimates: a wrapper of the submit command ignores --test-only here"
_CLOSED = {
    PathKind.FOLDER: "cannot be entered: no permission",
    PathKind.WRITTEN: "is not writable",
    PathKind.FILE: "is not readable",
}
_OTHER = {
    PathKind.FILE: "is not a file",
    PathKind.FOLDER: "is not a folder",
    PathKind.WRITTEN: "is not a folder",
}


async def missing_paths(
    store: ClusterStore,
    requested: Request | Iterable[str | RequiredPath],
    *,
    staged: Collection[str] = (),
) -> tuple[LintFinding, ...]:
    """Find paths of a request (or plain paths) that are not as required on the login node.

    A path is missing, or is a kill switch that exists. Takes one command of at most 10 s. `staged`
    are the names of files sent with a request, possibly its script. A finding's `field` is the
    request's key, a path's own field, or the path itself. Raises the errors of an unreachable
    cluster.
    """
    if store.backend.submit.takes_requests:
        # No login node has files to check.
        return ()
    if isinstance(requested, Request):
        requested = request_paths(requested, staged)
    paths = []
    for one in requested:
        path = one if isinstance(one, RequiredPath) else RequiredPath(one, one)
        if path.path and "\x00" not in path.path:
            paths.append(path)
    if not paths:
        return ()
    findings = await store.run_query(_query(paths[:MAX_PATHS]))
    if len(paths) > MAX_PATHS:
        text = f"{len(paths) - MAX_PATHS} paths were not checked"
        findings += (LintFinding("warning", "", text),)
    return findings


async def missing_log_folders(
    store: ClusterStore, requested: Submission
) -> tuple[LintFinding, ...]:
    """Find the missing folders of a script's logs; () if they cannot be checked."""
    paths = [
        RequiredPath(
            field="",
            path=folder,
            kind=PathKind.WRITTEN,
            is_needed=False,
            what="log folder ",
            next_step=f"mkdir -p {shlex.quote(folder)}",
        )
        for folder in store.backend.submit.log_folders(requested)
        if not _FILLED_IN.search(folder)
    ]
    try:
        return await missing_paths(store, paths) if paths else ()
    except HpcdashError:
        return ()


async def estimate_start(
    store: ClusterStore,
    script: bytes,
    options: Sequence[str] = (),
    *,
    name: str = "hpcdash",
    file: str = "",
    gpu_types: Sequence[str] = (),
) -> StartEstimate:
    """Estimate when the scheduler would start a script, or return its refusal.

    `is_known` is false if the scheduler offers no estimate. Nothing is submitted. `file` is the
    script's path on the login node, '' if it does not exist there; `gpu_types` are those of its
    nodes, () if unknown. Raises UsageError for invalid options, and the errors of an unreachable
    cluster.
    """
    query = store.backend.submit.start_estimate(
        Submission(script, name, options=tuple(options), file=file)
    )
    if query is None:
        return StartEstimate(is_known=False, hint=f"no start estimate from {store.backend.title}")
    estimate = await run_estimate(store, query, script)
    if estimate.refusal and store.probe is not None:
        hint = store.backend.scripts.reader().refusal_hint(
            estimate.refusal,
            store.probe.version,
            script.decode("utf-8", "replace"),
            options=options,
            gpu_types=gpu_types,
        )
        if hint:
            estimate = replace(estimate, hint=hint)
    return estimate


class _CachedEstimate(Struct, frozen=True):
    at: float
    estimate: StartEstimate


async def run_estimate(
    store: ClusterStore, query: Query[StartEstimate], script: bytes
) -> StartEstimate:
    """Run a query of SubmitPart for a start estimate, with the script on its stdin.

    The same estimate within ESTIMATE_SECONDS, also in another process, is not requested again.
    Where a site's wrapper submits the script instead, that job is cancelled, and no estimate is
    requested there from then on: `is_known` is false. Raises the errors of an unreachable cluster.
    """
    wrapped = _wrapped_clusters()
    if store.name in wrapped:
        return StartEstimate(is_known=False, hint=_WRAPPED)
    argv = "\0".join(query.argv).encode("utf-8", "surrogateescape")
    key = hashlib.sha256(argv + b"\0" + script).hexdigest()
    now = store.clock.now()
    cache = store.cache_file("estimates.json")
    known = {} if cache is None else _read_estimates(cache, now)
    if key in known:
        return known[key].estimate
    command = ActionCommand(
        query.argv, (), lambda _: (), stdin=script, limit_seconds=query.limit_seconds
    )
    estimate = query.parse(await store.act(command))
    if estimate.submitted_job:
        return await _cancel_wrapped(store, estimate.submitted_job, wrapped)
    if cache is not None:
        # Other estimates may have been stored meanwhile.
        known = {**_read_estimates(cache, now), key: _CachedEstimate(now, estimate)}
        with contextlib.suppress(OSError):
            make_folder(cache.parent)
            atomic_write(cache, msgspec.json.encode(known), sync=False)
    return estimate


def _read_estimates(cache: Path, now: float) -> dict[str, _CachedEstimate]:
    try:
        known = msgspec.json.decode(cache.read_bytes(), type=dict[str, _CachedEstimate])
    except (OSError, msgspec.MsgspecError, UnicodeError):
        return {}
    return {key: one for key, one in known.items() if 0 <= now - one.at < ESTIMATE_SECONDS}


def _wrapped_clusters() -> list[str]:
    try:
        return (state_root() / _WRAPPED_FILE).read_text("utf-8").splitlines()
    except (OSError, UnicodeError):
        return []


async def _cancel_wrapped(store: ClusterStore, job_id: str, wrapped: list[str]) -> StartEstimate:
    """Cancel a job that was submitted in place of an estimate, and note its cluster."""
    actions = Actions(store, journal())
    report = await actions.run(actions.plan(ActionRequest(Verb.CANCEL, (job_id,))))
    with contextlib.suppress(OSError):
        make_folder(state_root())
        names = "".join(f"{name}\n" for name in (*wrapped, store.name))
        atomic_write(state_root() / _WRAPPED_FILE, names.encode("utf-8", "replace"))
    is_cancelled = all(outcome.done for outcome in report.outcomes)
    ending = "and cancelled" if is_cancelled else f"and was not cancelled: hpcdash cancel {job_id}"
    return StartEstimate(is_known=False, hint=f"{_WRAPPED}; job {job_id} was submitted {ending}")


def _query(paths: Sequence[RequiredPath]) -> Query[tuple[LintFinding, ...]]:
    def read(answer: Answer) -> tuple[LintFinding, ...]:
        results = answer.stdout.decode("ascii", "replace").split()[-len(paths) :]
        if answer.status != 0 or len(results) != len(paths):
            raise refused(answer, "could not check the paths", LOGIN_SHELL_STEP)
        pairs = zip(paths, results, strict=True)
        return tuple(_finding(path, result) for path, result in pairs if result != "ok")

    argv = ["sh", "-c", shell_text("services/submit/check_paths.sh"), "sh"]
    for path in paths:
        argv += [path.kind.value, path.path]
    return Query(tuple(argv), read, _LIMIT_SECONDS, ("sh", "-c", "test -e …"))


def _finding(path: RequiredPath, result: str) -> LintFinding:
    if result == "dropped":
        return dropped_finding(path.path)
    problems = {"closed": _CLOSED, "other": _OTHER}.get(result, {})
    return LintFinding(
        severity="error" if path.is_needed else "warning",
        field=path.field,
        text=f"{path.what}{path.path} {problems.get(path.kind, 'does not exist')}",
        # A folder that exists is not created.
        next_step=""
        if result in ("closed", "other") and path.kind is PathKind.WRITTEN
        else path.next_step,
    )
