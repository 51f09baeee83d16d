"""Records of the forwards that run on this machine: their folder, sockets and redirect pages."""

from __future__ import annotations

import html
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from hpcdash.embedded.machine import node_name
from hpcdash.private_files import atomic_write, make_private
from hpcdash.services.state.journal import is_alive, started_ticks

_MAX_RECORD_BYTES = 1 << 16
_PAGE = """<!doctype html><meta charset="utf-8"><meta name="referrer" content="no-referrer">
<title>hpcdash</title><meta http-equiv="refresh" content="0; url={url}"><a href="{url}">Open</a>
"""


class ForwardRecord(Struct, frozen=True):
    """A forward of this user on this machine, without the token of its address.

    `local` is host:port or the path of a unix socket; `pid` is its process, started at `ticks`.
    """

    cluster: str
    job: str
    node: str
    port: int
    local: str
    status: str
    pid: int
    ticks: int | None = None


class ForwardRecords:
    """The records in a folder of this machine, 0700, below that of the user's state."""

    def __init__(self, state_folder: Path) -> None:
        self.folder = state_folder / "forwards" / node_name()

    def prepare(self) -> None:
        """Make the folder. Raises NotPrivate if others could put files into it."""
        make_private(self.folder, "HPCDASH_STATE")

    def path(self, token: str, ending: str) -> Path:
        """Return the path of a file of this process's forward with this token."""
        return self.folder / f"{os.getpid()}-{token}{ending}"

    def write(self, token: str, record: ForwardRecord) -> None:
        content = msgspec.json.encode(record)
        atomic_write(self.path(token, ".json"), content, sync=False)

    def write_page(self, token: str, url: str) -> Path:
        """Write the page that leads a browser to an address, whose token no command line shows."""
        self.prepare()
        path = self.path(token, ".html")
        atomic_write(path, _PAGE.format(url=html.escape(url, quote=True)).encode(), sync=False)
        return path

    def remove(self, token: str) -> None:
        """Remove the files of this process's forward with this token."""
        for ending in (".json", ".html", ".sock"):
            self.path(token, ending).unlink(missing_ok=True)

    def read(self) -> list[ForwardRecord]:
        """Return the forwards that run, and remove what killed ones left."""
        return sorted(self._living(), key=lambda record: (record.cluster, record.job, record.port))

    def _living(self) -> Iterator[ForwardRecord]:
        try:
            files = list(self.folder.iterdir())
        except OSError:
            return
        living = set()
        for file in files:
            if file.suffix != ".json":
                continue
            record = _read_record(file)
            if record is not None and is_alive(record.pid, record.ticks):
                living.add(file.stem)
                yield record
        for file in files:
            pid = file.stem.partition("-")[0]
            if file.stem not in living and not (pid.isdigit() and started_ticks(int(pid))):
                file.unlink(missing_ok=True)


def _read_record(file: Path) -> ForwardRecord | None:
    try:
        with file.open("rb") as stream:
            return msgspec.json.decode(stream.read(_MAX_RECORD_BYTES), type=ForwardRecord)
    except (OSError, msgspec.DecodeError):
        return None
