"""Checkpoints in a folder on a cluster: whether each is whole, from a few bytes of its files."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from hpcdash.job.checkpoint import MARKER
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.files import Chunk, FileRange, files_query
from hpcdash.services.job_files.listing import BROKEN, WHOLE, Entry, Folder, Judgement, to_text

# Of the newest entries of a folder.
_MAX_FILES = 60
_MAX_FOLDERS = 40
# Files that an index or a marker may name.
_MAX_NAMED = 400
_MAX_INDEX_BYTES = 1 << 20
_MAX_HEADER_BYTES = 1 << 20
# The end of a zip file: https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT, 4.3.14 to 16.
_ZIP_END = struct.Struct("<4s4H2LH")
_ZIP64_END = struct.Struct("<4sQ2H2L4Q")
_ZIP_TAIL_BYTES = 128
_IN_ZIP64 = 0xFFFFFFFF
_ZIP_HEAD = b"PK\3\4"
# A file's first bytes are stored under its name with this, which no name contains.
_HEAD = b"/"
_ZIP_SUFFIXES = (b".pt", b".pth", b".ckpt", b".bin")
_SAFETENSORS = b".safetensors"
_INDEX = b".index.json"
_SUFFIXES = (_SAFETENSORS, _INDEX, *_ZIP_SUFFIXES)
_INDEXES = (b"model.safetensors.index.json", b"pytorch_model.bin.index.json")
_DCP_METADATA = b".metadata"
_DCP_PART = b".distcp"


async def judge_checkpoints(store: ClusterStore, folder: Folder) -> dict[bytes, Judgement]:
    """Judge the newest checkpoints in a folder, by name, with at most two commands.

    Entries that are no checkpoint, or of an unknown format, are left out. Raises the errors of an
    unreachable cluster.
    """
    judge = _Judge(store, folder)
    await judge.read()
    return judge.found


class _Judge:
    def __init__(self, store: ClusterStore, folder: Folder) -> None:
        self._store = store
        self._folder = folder
        self.found: dict[bytes, Judgement] = {}
        # Files that each checkpoint consists of, by its name; sizes that are known.
        self._named: dict[bytes, tuple[str, dict[bytes, int | None]]] = {}
        self._headers: dict[bytes, int] = {}

    async def read(self) -> None:
        newest = sorted(self._folder.entries, key=lambda one: one.modified_at, reverse=True)
        files = [one for one in newest if one.kind == "file" and one.name.endswith(_SUFFIXES)]
        folders = [one for one in newest if one.kind == "folder"][:_MAX_FOLDERS]
        first: list[tuple[bytes, FileRange]] = []
        for entry in files[:_MAX_FILES]:
            path = self._folder.join(entry)
            if entry.name.endswith(_SAFETENSORS):
                first.append((entry.name, _range(path, 0, 8)))
            elif entry.name.endswith(_INDEX):
                first.append((entry.name, _range(path, 0, _MAX_INDEX_BYTES)))
            else:
                first.append((entry.name, _range(path, None, _ZIP_TAIL_BYTES)))
                first.append((entry.name + _HEAD, _range(path, 0, len(_ZIP_HEAD))))
        for entry in folders:
            for name in (MARKER.encode(), *_INDEXES):
                within = os.path.join(entry.name, name)
                path = os.path.join(self._folder.path, within)
                first.append((within, _range(path, 0, _MAX_INDEX_BYTES)))
            for name in (_DCP_METADATA, b"__0_0" + _DCP_PART):
                within = os.path.join(entry.name, name)
                first.append((within, _range(os.path.join(self._folder.path, within), 0, 0)))
        chunks = await self._read(first)
        for entry in files[:_MAX_FILES]:
            if entry.name in chunks:
                self._judge_file(entry, chunks)
        for entry in folders:
            self._judge_folder(entry, chunks)
        await self._read_more()

    async def _read(self, ranges: Sequence[tuple[bytes, FileRange]]) -> dict[bytes, Chunk]:
        if not ranges:
            return {}
        chunks = await self._store.run_query(files_query([one for _, one in ranges]))
        return dict(zip((name for name, _ in ranges), chunks, strict=True))

    def _judge_file(self, entry: Entry, chunks: Mapping[bytes, Chunk]) -> None:
        chunk = chunks[entry.name]
        if chunk.stat.problem:
            return
        if entry.name.endswith(_SAFETENSORS):
            if len(chunk.content) < 8:
                self._note(entry.name, "safetensors", "shorter than its header")
                return
            length = int.from_bytes(chunk.content, "little")
            if length + 8 > chunk.stat.size:
                self._note(entry.name, "safetensors", "ends within its header")
            elif length <= _MAX_HEADER_BYTES:
                self._headers[entry.name] = length
        elif entry.name.endswith(_INDEX):
            self._name_files(entry.name, "HF index", os.path.dirname(entry.name), chunk)
        elif chunks[entry.name + _HEAD].content == _ZIP_HEAD:
            self._note(entry.name, "torch", zip_problem(chunk.content, chunk.stat.size))

    def _judge_folder(self, entry: Entry, chunks: Mapping[bytes, Chunk]) -> None:
        marker = chunks[os.path.join(entry.name, MARKER.encode())]
        if marker.stat.is_there:
            self._name_marked(entry.name, marker)
            return
        for name in _INDEXES:
            index = chunks[os.path.join(entry.name, name)]
            if index.stat.is_there:
                self._name_files(entry.name, "HF index", entry.name, index)
                return
        metadata = chunks[os.path.join(entry.name, _DCP_METADATA)].stat
        part = chunks[os.path.join(entry.name, b"__0_0" + _DCP_PART)].stat
        if part.is_there or (metadata.is_there and not metadata.problem):
            # torch writes .metadata once all ranks have written their parts.
            problem = "" if metadata.size else "without its .metadata, which is written last"
            if not problem and not part.is_there:
                problem = "without its parts"
            self._note(entry.name, "DCP", problem)

    def _name_files(self, name: bytes, form: str, folder: bytes, chunk: Chunk) -> None:
        index = _read_json(chunk)
        weights = index.get("weight_map") if index is not None else None
        if not isinstance(weights, dict):
            self._note(name, form, "its index is unreadable")
            return
        self._name(name, form, folder, dict.fromkeys(weights.values()))

    def _name_marked(self, name: bytes, chunk: Chunk) -> None:
        marker = _read_json(chunk)
        files = marker.get("files") if marker is not None else None
        if not isinstance(files, dict):
            self._note(name, "hpcdash", f"its {MARKER} is unreadable")
            return
        sizes = {
            file: sums["bytes"]
            for file, sums in files.items()
            if isinstance(sums, dict) and isinstance(sums.get("bytes"), int)
        }
        self._name(name, "hpcdash", name, sizes)

    def _name(self, name: bytes, form: str, folder: bytes, sizes: Mapping[Any, int | None]) -> None:
        """Note the files of a checkpoint, to check them; they must be within its folder."""
        files: dict[bytes, int | None] = {}
        for file, size in sizes.items():
            path = file.encode("utf-8", "surrogateescape") if isinstance(file, str) else b"/"
            if path.startswith(b"/") or b".." in path.split(b"/") or b"\0" in path:
                self._note(name, form, "names a file outside of its folder")
                return
            files[os.path.join(folder, path)] = size
        self._named[name] = form, dict(list(files.items())[:_MAX_NAMED])

    async def _read_more(self) -> None:
        """Read the headers and stat the files that the first answer named."""
        ranges = [
            (name, _range(os.path.join(self._folder.path, name), 8, length))
            for name, length in self._headers.items()
        ]
        for _, files in self._named.values():
            for file in files:
                ranges.append((file, _range(os.path.join(self._folder.path, file), 0, 0)))
        # A file may be a checkpoint itself and be named by an index: its header counts.
        ranges = list({name: (name, one) for name, one in reversed(ranges)}.values())
        chunks = await self._read(ranges[:_MAX_NAMED])
        for name in self._headers:
            if name in chunks:
                self._note(name, "safetensors", safetensors_problem(chunks[name]))
        for name, (form, files) in self._named.items():
            self._note(name, form, _missing_problem(files, chunks))

    def _note(self, name: bytes, form: str, problem: str) -> None:
        self.found[name] = Judgement(form, BROKEN if problem else WHOLE, problem)


def _range(path: bytes, begin: int | None, length: int) -> FileRange:
    return FileRange(to_text(path), begin, length)


def _read_json(chunk: Chunk) -> dict[str, Any] | None:
    try:
        value = json.loads(chunk.content)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _missing_problem(files: Mapping[bytes, int | None], chunks: Mapping[bytes, Chunk]) -> str:
    for file, size in files.items():
        chunk = chunks.get(file)
        if chunk is None:
            continue
        name = os.path.basename(file).decode("utf-8", "backslashreplace")
        if not chunk.stat.is_there:
            return f"{name} is missing"
        if size is not None and chunk.stat.size != size:
            return f"{name} has {chunk.stat.size} of {size} bytes"
    return ""


def safetensors_problem(chunk: Chunk) -> str:
    """Return why a safetensors file is broken, from its header, or ''; see
    https://huggingface.co/docs/safetensors.
    """
    header = _read_json(chunk)
    if header is None:
        return "its header is unreadable"
    ends = []
    for tensor in header.values():
        offsets = tensor.get("data_offsets") if isinstance(tensor, dict) else None
        if isinstance(offsets, list) and len(offsets) == 2 and isinstance(offsets[1], int):
            ends.append(offsets[1])
    expected = chunk.offset + len(chunk.content) + max(ends, default=0)
    if chunk.stat.size != expected:
        return f"has {chunk.stat.size} of {expected} bytes"
    return ""


def zip_problem(tail: bytes, size: int) -> str:
    """Return why a zip file is broken, from its last bytes, or ''.

    torch writes no comment, so its end record is the last 22 bytes.
    """
    if len(tail) < _ZIP_END.size or not tail[-_ZIP_END.size :].startswith(b"PK\5\6"):
        return "ends within its data"
    end = _ZIP_END.unpack(tail[-_ZIP_END.size :])
    length = end[5]
    offset = end[6]
    if _IN_ZIP64 in (length, offset):
        at = tail.find(b"PK\6\6")
        if at < 0 or len(tail) - at < _ZIP64_END.size:
            return "its end is unreadable"
        end = _ZIP64_END.unpack(tail[at : at + _ZIP64_END.size])
        length = end[8]
        offset = end[9]
    if offset + length > size:
        return f"has {size} of at least {offset + length} bytes"
    return ""
