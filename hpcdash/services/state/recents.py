"""What was submitted last from here, to be shown, taken again, or compared with."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

MOST_RECENT = 200
# Of a longer text there would be nothing to compare that a person reads.
_LONGEST_TEXT = 1_000_000
_FILE = re.compile(r"[0-9]{15}-[a-z0-9_]{8}\.json")
_SURROGATE = re.compile("[\ud800-\udfff]")
_UNFINISHED = ".new-"


class Recent(msgspec.Struct, frozen=True):
    """What was submitted, with `at` in epoch seconds. What was no UTF-8 in `text` is U+FFFD."""

    cluster: str
    name: str
    text: str
    kind: Literal["request", "script"]
    at: float


class Recents:
    """The last MOST_RECENT submissions of all clusters: a file each, 0600, in the folder `submitted` of a state folder.

    Without a folder they are those of this run alone. Several programs may write at a time.
    """

    def __init__(self, state_folder: Path | None) -> None:
        self.folder = state_folder / "submitted" if state_folder else None
        self._of_this_run: list[Recent] = []

    def remember(self, cluster: str, name: str, text: str, kind: Literal["request", "script"], at: float) -> None:
        """Keep one; one of more than a million letters is not kept.

        Raises OSError where the folder cannot be written: it is kept for this run all the same.
        """
        if len(text) > _LONGEST_TEXT:
            return
        recent = Recent(_encodable(cluster), _encodable(name), _encodable(text), kind, float(at))
        if self.folder is None:
            self._keep_for_this_run(recent)
            return
        try:
            self._write(self.folder, recent)
        except OSError:
            self._keep_for_this_run(recent)
            raise

    def recent(self, cluster: str) -> tuple[Recent, ...]:
        """Newest first; what cannot be read of the files is left out."""
        found = [one for one in self._all() if one.cluster == _encodable(cluster)]
        return tuple(sorted(found, key=lambda one: one.at, reverse=True))

    def last_of(self, cluster: str, name: str) -> Recent | None:
        """The newest of that name there."""
        return next((one for one in self.recent(cluster) if one.name == _encodable(name)), None)

    def _keep_for_this_run(self, recent: Recent) -> None:
        self._of_this_run = [*self._of_this_run, recent][-MOST_RECENT:]

    def _all(self) -> Iterator[Recent]:
        yield from self._of_this_run
        for path in _files(self.folder) if self.folder else ():
            with contextlib.suppress(OSError, msgspec.DecodeError):
                yield msgspec.json.decode(path.read_bytes(), type=Recent)

    def _write(self, folder: Path, recent: Recent) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # mkstemp makes the file 0600.
        descriptor, unfinished = tempfile.mkstemp(dir=folder, prefix=_UNFINISHED)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(msgspec.json.encode(recent))
            # The random part of its name keeps apart what is submitted in the same millisecond.
            letters = unfinished.rpartition(_UNFINISHED)[2]
            os.replace(unfinished, folder / f"{max(0, int(recent.at * 1000)):015}-{letters}.json")
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(unfinished)
            raise
        for old in _files(folder)[MOST_RECENT:]:
            with contextlib.suppress(OSError):
                old.unlink()


def _files(folder: Path) -> list[Path]:
    """Newest first; none where there is no folder."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return [folder / name for name in sorted(filter(_FILE.fullmatch, names), reverse=True)]


def _encodable(text: str) -> str:
    # JSON cannot hold the lone surrogates of bytes that are no UTF-8.
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)
