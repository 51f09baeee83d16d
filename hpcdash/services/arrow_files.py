"""Arrow files of one's own: written whole or not at all, and read only as they were written."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc as pa_ipc

from hpcdash.private_files import atomic_write, make_folder

# Behind the Arrow file: Arrow reads a table with a flipped bit, and then ends the program.
_DIGEST_BYTES = 16


def read_table(path: Path, columns: Sequence[str] | None = None) -> pa.Table | None:
    """The table of a file with its metadata; None where there is none that this user wrote, or it
    is damaged.

    `columns`: only those with these names, in the file's order. A file without one of them counts
    as damaged.
    """
    try:
        if (arrow := _read(path)) is None:
            return None
        fields = None
        if columns is not None:
            names = pa_ipc.open_file(pa.BufferReader(arrow)).schema.names
            fields = sorted(map(names.index, columns))
        options = pa_ipc.IpcReadOptions(included_fields=fields)
        return pa_ipc.open_file(pa.BufferReader(arrow), options=options).read_all()
    except (OSError, ValueError, pa.ArrowException):
        return None


def read_schema(path: Path) -> pa.Schema | None:
    """The schema of a file with its metadata; None where read_table gives none."""
    try:
        arrow = _read(path)
        return None if arrow is None else pa_ipc.open_file(pa.BufferReader(arrow)).schema
    except (OSError, pa.ArrowException):
        return None


def _read(path: Path) -> memoryview | None:
    """The Arrow file that this user wrote; None where there is none, or it is not as it was
    written.
    """
    if path.parent.is_symlink():
        return None
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as source:
        if os.fstat(source.fileno()).st_uid != os.geteuid():
            return None
        written = memoryview(source.read())
    arrow = written[:-_DIGEST_BYTES]
    digest = written[-_DIGEST_BYTES:]
    return arrow if _digest(arrow) == digest else None


def write_table(path: Path, table: pa.Table, metadata: Mapping[bytes, bytes | str]) -> bool:
    """Write a table into a folder that is ours alone, the file 0600; False where the disk would not
    have it.
    """
    table = table.replace_schema_metadata(metadata)
    try:
        _make_folder(path.parent)
        arrow = pa.BufferOutputStream()
        options = pa_ipc.IpcWriteOptions(compression="lz4", unify_dictionaries=True)
        with pa_ipc.new_file(arrow, table.schema, options=options) as writer:
            writer.write_table(table)
        whole = memoryview(arrow.getvalue())
        atomic_write(path, whole, _digest(whole), sync=False)
    except (OSError, pa.ArrowException):
        return False
    return True


def _make_folder(folder: Path) -> None:
    """Ours alone, however loose the umask is or was; raises OSError where it cannot be."""
    make_folder(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink():
        raise OSError(f"{folder} is a link to somewhere else")
    if folder.stat().st_mode & 0o777 != 0o700:
        folder.chmod(0o700)


def _digest(written: memoryview) -> bytes:
    return hashlib.blake2b(written, digest_size=_DIGEST_BYTES).digest()
