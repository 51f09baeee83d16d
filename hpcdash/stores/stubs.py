"""Reads the file that a stub runs, and puts an edited one in its place, unless somebody else did."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import partial

from hpcdash.backends.actions import ActionCommand, Outcome
from hpcdash.backends.queries import Answer, Query
from hpcdash.backends.script.stub import stub_target
from hpcdash.errors import CommandTimedOut, HpcdashError, UnreachableError, UnreadableOutput, UsageError, excerpt
from hpcdash.stores.cluster import ClusterStore
from hpcdash.stores.scripts import fetch_script

_MOST_BYTES = 4 << 20
_LIMIT_SECONDS = 30.0
_CHANGED, _CUT, _NO_FILE = 76, 75, 66
# The new file is made beside the old one, with its mode and owner, and put in its place in one step: whoever opens it
# has all of the one or all of the other. $1 its path, $2 the old one's sum, $3 the new one's.
_REPLACE = """
file=$(readlink -f -- "$1") && [ -f "$file" ] || exit 66
new=$(mktemp "$file.XXXXXX") || exit 73
trap 'rm -f -- "$new"' EXIT
trap 'exit 75' HUP INT TERM
cp -p -- "$file" "$new" && cat > "$new" || exit 73
sum() { sha256sum < "$1" | cut -d ' ' -f 1; }
[ "$(sum "$new")" = "$3" ] || exit 75
[ "$(sum "$file")" = "$2" ] || exit 76
mv -f -- "$new" "$file" || exit 73
"""


@dataclass(frozen=True, slots=True)
class StubbedScript:
    """The file that a job's stub will read, as it was when it was fetched."""

    job_id: str
    path: str
    content: bytes


async def fetch_stubbed(store: ClusterStore, job_id: str) -> StubbedScript:
    """Raises UsageError where the job's script is no stub, and what keeps either file from being read."""
    script = await fetch_script(store, job_id)
    path = stub_target(script.text)
    if path is None:
        raise UsageError(
            f"the script of {job_id} is the scheduler's own copy, which nothing changes any more",
            "Jobs that are submitted with a stub read theirs when they start: hpcdash stub SCRIPT | hpcdash submit -",
        )
    argv = ("head", "-c", str(_MOST_BYTES + 1), "--", path)
    content = await store.ask(Query(argv, partial(_content, path=path), limit_seconds=_LIMIT_SECONDS))
    return StubbedScript(job_id, path, content)


async def replace_stubbed(store: ClusterStore, before: StubbedScript, content: bytes) -> Outcome:
    """Put `content` in its place, if the file is still as it was fetched; raises nothing.

    Done None: the answer was lost, look at the file; a second try changes nothing that is there already.
    """
    if not content.startswith(b"#!"):
        # Sourced or given to an interpreter it would run, but it is no script any more by itself.
        return Outcome(before.path, False, "its first line does not begin with #!")
    sums = (hashlib.sha256(text).hexdigest() for text in (before.content, content))
    argv = ("sh", "-c", _REPLACE, "sh", before.path, *sums)
    command = ActionCommand(argv, (before.path,), partial(_read, path=before.path), content, _LIMIT_SECONDS)
    try:
        await store.open(force=True)
        answer = await store.act(command)
    except (UnreachableError, CommandTimedOut) as error:
        return Outcome(before.path, None, f"whether it was written is not known: {error.message}")
    except HpcdashError as error:
        return Outcome(before.path, False, f"not written: {error.message}")
    return _read(answer, path=before.path)[0]


def _content(answer: Answer, *, path: str) -> bytes:
    if answer.status != 0:
        words = excerpt(answer.stderr)
        raise UnreadableOutput(
            f"{path}: {words.rpartition(': ')[2] or 'it cannot be read'}",
            "The next of its train fails when it starts, unless the file is put back.",
            argv=answer.argv,
            status=answer.status,
            words=words,
        )
    if len(answer.stdout) > _MOST_BYTES:
        raise UnreadableOutput(f"{path} is larger than any script", argv=answer.argv, status=answer.status)
    return answer.stdout


def _read(answer: Answer, *, path: str) -> tuple[Outcome, ...]:
    said = {
        _CHANGED: "somebody changed it meanwhile: nothing was written",
        _CUT: "it did not arrive whole: nothing was written",
        _NO_FILE: "it is not there any more: nothing was written",
    }
    if answer.status == 0:
        return (Outcome(path, True, "written; what starts from now on reads it"),)
    words = excerpt(answer.stderr) or f"status {answer.status}"
    return (Outcome(path, False, said.get(answer.status, f"not written: {words}")),)
