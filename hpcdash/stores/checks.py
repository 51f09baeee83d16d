"""What only the cluster can tell before something is submitted: paths that are missing, when it would start."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial

from hpcdash.backends.actions import ActionCommand
from hpcdash.backends.queries import Answer, Query
from hpcdash.backends.submissions import StartEstimate, Submission
from hpcdash.domain.demand import Finding
from hpcdash.domain.request import Request
from hpcdash.errors import SchedulerRefused, excerpt
from hpcdash.launch.wanted_paths import PathKind, WantedPath, dropped_finding, request_paths
from hpcdash.stores.cluster import ClusterStore

__all__ = ["PathKind", "StartEstimate", "WantedPath", "estimate_start", "missing_paths"]

# A folder of a file server that hangs holds the command no longer than this.
_LIMIT_SECONDS = 10.0
MOST_PATHS = 200
# Constant: paths reach it as arguments, and what it prints are numbers and words of its own.
_SCRIPT = """
while [ "$#" -ge 2 ]; do
  said=ok
  case $1 in
    folder) [ -d "$2" ] || said=absent; [ "$said" = ok ] && { [ -x "$2" ] || said=closed; } ;;
    written) [ -d "$2" ] || said=absent; [ "$said" = ok ] && { [ -w "$2" ] && [ -x "$2" ] || said=closed; } ;;
    cleared) if [ -h "$2" ] || { [ -e "$2" ] && [ ! -d "$2" ]; }; then said=dropped; fi ;;
    file) [ -f "$2" ] || said=absent; [ "$said" = ok ] && { [ -r "$2" ] || said=closed; } ;;
    *) [ -e "$2" ] || said=absent ;;
  esac
  [ "$said" = absent ] && [ -e "$2" ] && said=other
  echo "$said"
  shift 2
done
"""
_KINDS = {
    PathKind.FOLDER: "folder",
    PathKind.WRITTEN: "written",
    PathKind.FILE: "file",
    PathKind.ANY: "any",
    PathKind.CLEARED: "cleared",
}
_CLOSED = {
    PathKind.FOLDER: "may not be entered",
    PathKind.WRITTEN: "may not be written to",
    PathKind.FILE: "may not be read",
}
_OTHER = {PathKind.FILE: "is no file", PathKind.FOLDER: "is no folder", PathKind.WRITTEN: "is no folder"}


async def missing_paths(
    store: ClusterStore,
    wanted: Request | Iterable[str | WantedPath],
    *,
    staged: Collection[str] = (),
) -> tuple[Finding, ...]:
    """What a request (or plain paths) names on the login node and is not as it has to be: not there, or a kill switch
    that is. In one command of at most 10 s.

    `staged` are names of files that come along: the request's script may be one. `field` is the request's key, a path's
    own field, or the path itself. Raises what keeps the cluster from answering.
    """
    if isinstance(wanted, Request):
        paths = request_paths(wanted, staged)
    else:
        paths = tuple(one if isinstance(one, WantedPath) else WantedPath(one, one) for one in wanted)
    asked = [one for one in paths if one.path and "\x00" not in one.path]
    if not asked:
        return ()
    findings = await store.ask(_query(tuple(asked[:MOST_PATHS])))
    if len(asked) > MOST_PATHS:
        findings += (Finding("warning", "", f"{len(asked) - MOST_PATHS} paths were not looked for"),)
    return findings


async def estimate_start(
    store: ClusterStore, script: bytes, options: Sequence[str] = (), *, name: str = "hpcdash", file: str = ""
) -> StartEstimate:
    """When the scheduler would start a script, or its refusal; `is_known` is false where it cannot be asked.

    Nothing is submitted. `file` is where the script is on the login node, '' where it is not there. Raises UsageError
    for options that are none, and what keeps the cluster from answering.
    """
    query = store.backend.start_estimate_query(Submission(script, name, options=tuple(options), file=file))
    if query is None:
        return StartEstimate(is_known=False, hint=f"{store.backend.title}: no start is told before a job is submitted")
    answer = await store.act(ActionCommand(query.argv, (), lambda _: (), script, query.limit_seconds))
    estimate = query.parse(answer)
    if estimate.refusal and store.probe is not None:
        text, reader = script.decode("utf-8", "replace"), store.backend.script_reader
        if hint := reader.refusal_hint(estimate.refusal, store.probe.version, text, options):
            estimate = replace(estimate, hint=hint)
    return estimate


def _query(paths: tuple[WantedPath, ...]) -> Query[tuple[Finding, ...]]:
    words = tuple(word for one in paths for word in (_KINDS[one.kind], one.path))
    return Query(
        ("sh", "-c", _SCRIPT, "sh", *words), partial(_read, paths=paths), _LIMIT_SECONDS, ("sh", "-c", "test -e …")
    )


def _read(answer: Answer, *, paths: tuple[WantedPath, ...]) -> tuple[Finding, ...]:
    lines = answer.stdout.decode("ascii", "replace").split()[-len(paths) :]
    if answer.status != 0 or len(lines) != len(paths):
        raise SchedulerRefused(
            "the paths could not be looked for",
            "`hpcdash doctor` tells what the login shell prints.",
            argv=("sh", "-c", "test -e …"),
            status=answer.status,
            words=excerpt(answer.stderr),
        )
    return tuple(_finding(one, said) for one, said in zip(paths, lines, strict=True) if said != "ok")


def _finding(one: WantedPath, said: str) -> Finding:
    if said == "dropped":
        return dropped_finding(one.path)
    what = {"closed": _CLOSED, "other": _OTHER}.get(said, {}).get(one.kind, "is not there")
    return Finding("error" if one.is_needed else "warning", one.field, f"{one.what}{one.path} {what}", one.next_step)
