"""Deletion of files of a finished job: refusals, the plan with its bytes, and the command."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence

from msgspec import Struct

from hpcdash.backends.actions import ActionCommand, ActionRequest, Outcome, Verb
from hpcdash.backends.queries import Answer, Query, refused
from hpcdash.domain.columns import has_state
from hpcdash.domain.states import ACTIVE, ENDED
from hpcdash.domain.tables import Kind
from hpcdash.domain.text import counted, visible
from hpcdash.domain.units import format_memory
from hpcdash.errors import UsageError, excerpt
from hpcdash.services.job_files.listing import (
    Depth,
    Entry,
    JobFolders,
    folder_query,
    show_path,
    to_bytes,
    to_text,
)
from hpcdash.services.jobs.actions import Plan
from hpcdash.services.session import ClusterSession
from hpcdash.services.submit.launch_records import LaunchedCheckpoints
from hpcdash.shell_files import shell_text

_LIMIT_SECONDS = 900.0
# Paths of one deletion.
_MAX_PATHS = 200
_FAILURES = {
    "gone": "no longer there",
    "changed": "another file has the name now; not deleted",
    "refused": "no permission to delete it",
    "partly": "deleted in part",
}


class Deletion(Struct, frozen=True):
    """Plan to delete some entries, and a line about each; `size` is in bytes."""

    plan: Plan
    lines: tuple[str, ...]
    files: int
    size: int

    @property
    def title(self) -> str:
        """`Delete 12 files, 3.4G`"""
        return f"Delete {counted(self.files, 'file')}, {format_memory(self.size)}"


async def plan_deletion(
    session: ClusterSession, folders: JobFolders, paths: Sequence[bytes]
) -> Deletion:
    """Plan the deletion of files and folders below the folders of a job that has ended.

    Raises UsageError for what must not be deleted: the home, a job's own folder and what contains
    it, anything outside of them, and files of jobs that have not ended.
    """
    if len(paths) > _MAX_PATHS:
        raise UsageError(f"{len(paths)} paths at once", f"Specify at most {_MAX_PATHS}.")
    if str(folders.row["state"]) not in ENDED:
        raise UsageError(
            f"job {visible(folders.job_id)} has not ended: its files are not deleted",
            "Cancel it first, or wait for its end.",
        )
    guard = await _fetch_guard(session, folders)
    found: dict[bytes, list[Entry]] = {}
    lines = []
    size = 0
    files = 0
    for path in dict.fromkeys(paths):
        resolved = folders.resolve(path)
        if not os.path.basename(resolved) or os.path.basename(resolved) in (b".", b".."):
            raise UsageError(f"{show_path(path)}: name a file or a folder")
        listed = await session.store.run_query(folder_query(resolved, Depth.SELF))
        [entry] = listed.entries
        target = listed.join(entry)
        guard.check(target)
        within: tuple[Entry, ...] = (entry,)
        if entry.kind == "folder":
            deep = await session.store.run_query(folder_query(target, Depth.DEEP))
            within = deep.entries
        entry_files = [one for one in within if one.kind != "folder"]
        entry_size = sum(one.size for one in entry_files if one.kind == "file")
        files += len(entry_files)
        size += entry_size
        about = counted(len(entry_files), "file") + ", " if entry.kind == "folder" else ""
        link = " (the link itself)" if entry.kind == "link" else ""
        lines.append(f"{show_path(target)}  {about}{format_memory(entry_size)}{link}")
        found.setdefault(listed.path, []).append(entry)
    commands = tuple(_command(folders.job_id, folder, found[folder]) for folder in found)
    request = ActionRequest(Verb.DELETE_FILES, (folders.job_id,))
    return Deletion(Plan(request, (folders.row,), commands), tuple(lines), files, size)


class _Guard(Struct, frozen=True):
    """Real paths of the folders of the job, and of folders that must stay, with the reasons."""

    roots: tuple[bytes, ...]
    home: bytes
    # Folders of jobs that have not ended, by job.
    in_use: Mapping[bytes, str]

    def check(self, target: bytes) -> None:
        """Raise UsageError for a target that must not be deleted."""
        shown = show_path(target)
        if not any(_contains(root, target) and root != target for root in self.roots):
            raise UsageError(
                f"{shown} is not below a folder of the job, or is that folder itself",
                "hpcdash deletes only what is in them.",
            )
        for stays in (self.home, *self.roots):
            if stays and _contains(target, stays):
                raise UsageError(f"{shown} contains {show_path(stays)}: not deleted")
        for folder, job_id in self.in_use.items():
            if _contains(folder, target) or _contains(target, folder):
                raise UsageError(
                    f"{shown} belongs to job {visible(job_id)}, which has not ended "
                    f"({show_path(folder)})",
                    "Wait for its end.",
                )


def _contains(folder: bytes, path: bytes) -> bool:
    return path == folder or path.startswith(folder.rstrip(b"/") + b"/")


async def _fetch_guard(session: ClusterSession, folders: JobFolders) -> _Guard:
    mine = (await session.store.fetch(Kind.MINE)).table
    known = LaunchedCheckpoints(session.actions.journal.path.parent, session.name)
    in_use: dict[bytes, str] = {}
    for row in mine.filter(has_state(mine, ACTIVE)).to_pylist():
        logs = (row["stdout_path"], row["stderr_path"])
        for path in (
            row["work_dir"],
            known.folder(row),
            *(os.path.dirname(log or "") for log in logs),
        ):
            if path and path.startswith("/"):
                in_use.setdefault(to_bytes(path), str(row["id"]))
    roots = [folder.path for folder in folders.folders]
    real = await session.store.run_query(_real_query([*roots, *in_use]))
    *found, home = real
    used = dict(zip(found[len(roots) :], in_use.values(), strict=True))
    used.pop(b"", None)
    return _Guard(tuple(filter(None, found[: len(roots)])), home, used)


def _real_query(paths: Sequence[bytes]) -> Query[list[bytes]]:
    """Query the real paths of folders, b'' for what is none; the home's is the last."""
    script = shell_text("services/job_files/real_folders.sh")
    start = f'set -- "$@" "$HOME"\n{script}'

    def parse(answer: Answer) -> list[bytes]:
        *found, _ = answer.stdout.split(b"\0")
        if len(found) != len(paths) + 1 or not found[-1]:
            raise refused(answer, "cannot find the real paths of the job's folders")
        return found

    return Query(("sh", "-c", start, "sh", *map(to_text, paths)), parse, 30.0, ("pwd", "-P"))


def _command(job_id: str, folder: bytes, entries: Sequence[Entry]) -> ActionCommand:
    token = secrets.token_hex(8)
    parts = [part for one in entries for part in (one.identity, to_text(one.name))]
    script = shell_text("services/job_files/private_part.sh", "services/job_files/delete_files.sh")

    def read(answer: Answer) -> tuple[Outcome, ...]:
        lines = answer.stdout.decode("ascii", "replace").splitlines()
        results = [line.removeprefix(f"{token} ") for line in lines if line.startswith(token)]
        failed = [
            f"{show_path(one.name)}: {_FAILURES.get(result, result)}"
            for one, result in zip(entries, results, strict=False)
            if result != "deleted"
        ]
        if len(results) != len(entries):
            failed.append(excerpt(answer.stderr) or f"status {answer.status}")
        text = "; ".join(failed) or f"deleted {', '.join(show_path(one.name) for one in entries)}"
        return (Outcome(job_id, not failed, text),)

    return ActionCommand(
        ("sh", "-c", script, "sh", token, to_text(folder), *parts),
        (job_id,),
        read,
        limit_seconds=_LIMIT_SECONDS,
        shown=("rm", "-rf", *(show_path(os.path.join(folder, one.name)) for one in entries)),
    )
