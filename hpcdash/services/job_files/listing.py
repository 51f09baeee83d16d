"""Folders on a cluster, as bytes, and the folders that belong to a job."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any
from urllib.parse import quote_from_bytes, unquote_to_bytes

import pyarrow as pa
from msgspec import Struct

from hpcdash.backends.base import Capability
from hpcdash.backends.queries import Answer, Query, refused, require_whole
from hpcdash.domain.schema import FILES
from hpcdash.domain.text import visible
from hpcdash.errors import UnreadableOutput, UsageError
from hpcdash.services.files import safe_path
from hpcdash.services.logs.locate import locate_logs
from hpcdash.services.session import ClusterSession
from hpcdash.services.submit.launched_job import launched_job
from hpcdash.shell_files import shell_text

WHOLE = "whole"
BROKEN = "broken"
_LIMIT_SECONDS = 120.0
_KINDS = {b"f": "file", b"d": "folder", b"l": "link"}
_PROBLEMS = {
    b"missing": "no such file or folder",
    b"closed": "no permission to list this folder",
}


class Entry(Struct, frozen=True):
    """An entry of a folder: `name` is relative to it, `kind` is file, folder, link or other.

    `identity` is its device and inode, `target` that of a link; links are not followed.
    """

    name: bytes
    kind: str
    identity: str
    size: int
    modified_at: float
    owner: str = ""
    target: bytes = b""


class Folder(Struct, frozen=True):
    """A folder by its real path, and its entries; with `is_file`, only the named one.

    `notes` are the reasons that parts of it are missing.
    """

    path: bytes
    entries: tuple[Entry, ...]
    is_file: bool = False
    notes: tuple[str, ...] = ()

    def join(self, entry: Entry) -> bytes:
        return os.path.join(self.path, entry.name)


class Judgement(Struct, frozen=True):
    """A checkpoint's `format`, whether it is WHOLE or BROKEN, and why it is broken."""

    format: str
    checkpoint: str
    problem: str = ""


class JobFolder(Struct, frozen=True):
    """A folder of a job, and its roles: `work dir, output`."""

    path: bytes
    roles: str


class JobFolders(Struct, frozen=True):
    """The folders of a job, its working directory first, and its row of domain.schema.JOBS."""

    job_id: str
    row: Mapping[str, Any]
    folders: tuple[JobFolder, ...]

    def resolve(self, path: bytes) -> bytes:
        """Return a path on the cluster; a relative one starts in the first folder."""
        return os.path.join(self.folders[0].path, path)


def to_text(path: bytes) -> str:
    """Return a path as a word of a command, byte for byte."""
    return path.decode("utf-8", "surrogateescape")


def to_bytes(path: str) -> bytes:
    return path.encode("utf-8", "surrogateescape")


def show_path(path: bytes) -> str:
    """Return a path for a person: bytes that are not UTF-8 and control characters are visible."""
    return visible(path.decode("utf-8", "backslashreplace"))


def encode_path(path: bytes) -> str:
    """Return a path as percent-encoded ASCII, from which `decode_path` restores its bytes."""
    return quote_from_bytes(path, safe="/")


def decode_path(encoded: str) -> bytes:
    return unquote_to_bytes(encoded)


async def fetch_job_folders(session: ClusterSession, job_id: str) -> JobFolders:
    """Fetch the folders that a job's scheduler and its launch name.

    Raises NoSuchJob, UsageError if none is known or reached, and the errors of an unreachable
    cluster.
    """
    session.store.backend.require(Capability.FILES)
    place = await locate_logs(session.store, job_id)
    state_folder = session.actions.journal.path.parent
    launched = await launched_job(state_folder, session.name, place.row)
    named = [("work dir", str(place.row["work_dir"] or ""))]
    if launched is not None:
        named.append(("launch", launched.folder))
    if not place.files.host:
        logs = (place.files.stdout, place.files.stderr)
        named += [("output", os.path.dirname(log or "")) for log in logs]
    if launched is not None and "%a" not in launched.checkpoints:
        named.append(("checkpoints", launched.checkpoints))
    folders = _merge_roles(named)
    if not folders:
        raise UsageError(
            f"no folder of job {visible(job_id)} is known",
            "The scheduler reports no working directory of it.",
        )
    return JobFolders(place.job_id, place.row, folders)


def _merge_roles(named: Sequence[tuple[str, str]]) -> tuple[JobFolder, ...]:
    """Merge the roles of each absolute path; the logs of many jobs are /dev/null."""
    roles: dict[bytes, list[str]] = {}
    for role, path in named:
        if path.startswith("/") and path != "/dev":
            known = roles.setdefault(os.path.normpath(to_bytes(path)), [])
            if role not in known:
                known.append(role)
    return tuple(JobFolder(path, ", ".join(names)) for path, names in roles.items())


class Depth(StrEnum):
    """Entries of a folder to list: its own, everything below it, or only the path itself."""

    FLAT = "flat"
    DEEP = "deep"
    SELF = "self"


def folder_query(path: bytes, depth: Depth = Depth.FLAT) -> Query[Folder]:
    """List a folder; the path of a file lists that file.

    The parser raises UnreadableOutput with the reason if there is nothing to list.
    """
    token = secrets.token_hex(8)
    script = shell_text("services/job_files/list_folder.sh")
    argv = ("sh", "-c", script, "sh", token, safe_path(to_text(path)), str(depth))

    def parse(answer: Answer) -> Folder:
        require_whole(answer)
        head, *fields = answer.stdout.split(b"\0")
        known, _, kind = head.rpartition(b" ")
        if known != token.encode():
            raise refused(answer, f"cannot list {show_path(path)}")
        if kind in _PROBLEMS:
            raise UnreadableOutput(f"{show_path(path)}: {_PROBLEMS[kind]}", argv=("find",))
        if answer.status and len(fields) < 4 and b"printf" in answer.stderr:
            raise refused(answer, "the find command there has no -printf", "It must be GNU find.")
        notes = answer.stderr.decode("utf-8", "replace").splitlines()
        entries = _parse_entries(fields[1:])
        if kind == b"file" and not entries:
            # It went away meanwhile.
            raise UnreadableOutput(f"{show_path(path)}: {_PROBLEMS[b'missing']}", argv=("find",))
        return Folder(fields[0], entries, is_file=kind == b"file", notes=tuple(notes))

    return Query(argv, parse, _LIMIT_SECONDS, ("find", show_path(path)))


def _parse_entries(fields: list[bytes]) -> tuple[Entry, ...]:
    """Parse an entry of each three fields; the last field is the empty rest."""
    entries = []
    for facts, name, target in zip(fields[0::3], fields[1::3], fields[2::3], strict=False):
        kind, identity, size, modified_at, owner = (*facts.split(b" ", 4), *[b""] * 5)[:5]
        entries.append(
            Entry(
                name,
                _KINDS.get(kind, "other"),
                identity=identity.decode("ascii", "replace"),
                size=int(size),
                modified_at=float(modified_at),
                owner=owner.decode("utf-8", "replace"),
                target=target,
            )
        )
    return tuple(entries)


def build_table(folder: Folder, judgements: Mapping[bytes, Judgement]) -> pa.Table:
    """Build the rows of domain.schema.FILES, newest first."""
    entries = sorted(folder.entries, key=lambda entry: (-entry.modified_at, entry.name))
    found = [judgements.get(entry.name) for entry in entries]
    paths = [folder.join(entry) for entry in entries]
    columns: dict[str, list[Any]] = {
        "name": [show_path(entry.name) for entry in entries],
        "kind": [entry.kind for entry in entries],
        "size_bytes": [entry.size if entry.kind == "file" else None for entry in entries],
        "modified_at": [datetime.fromtimestamp(entry.modified_at, UTC) for entry in entries],
        "owner": [visible(entry.owner) for entry in entries],
        "checkpoint": [one and one.checkpoint for one in found],
        "format": [one and one.format for one in found],
        "problem": [(one and one.problem) or None for one in found],
        "target": [show_path(entry.target) if entry.target else None for entry in entries],
        "path": [show_path(path) for path in paths],
        "encoded_path": [encode_path(path) for path in paths],
    }
    return pa.table(columns, schema=FILES)


def build_folders_table(folders: JobFolders) -> pa.Table:
    """Build a row of domain.schema.FILES for each folder of a job."""
    rows = [
        {
            "name": show_path(folder.path),
            "kind": "folder",
            "format": folder.roles,
            "path": show_path(folder.path),
            "encoded_path": encode_path(folder.path),
        }
        for folder in folders.folders
    ]
    return pa.Table.from_pylist(rows, FILES)
