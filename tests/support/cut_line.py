"""A line to a login node that is cut at a chosen byte, or once a command there has come to a point.

For tests.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import socket
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

_CHUNK_BYTES = 1 << 14

# Stands for a command that submits: `called` is when it has read all of its stdin, `answered` when
# the real one has ended, `printed` when its answer is on stdout. In `stops` are the points where it
# waits to be let go on.
_SUBMITS = """\
#!/bin/bash
here={folder}
case " $* " in *{only}*) ;; *) exec {real} "$@" ;; esac
{apart}
stop() {{
    case " $(cat "$here/stops") " in *" $1 "*) echo "$1" >"$here/reached"; read -r _ <"$here/go-$1" ;; esac
}}
echo "$*" >>"$here/calls"
cat >"$here/script"
stop called
{real} "$@" <"$here/script" >"$here/answer" 2>"$here/complaint"
status=$?
stop answered
cat "$here/complaint" >&2
cat "$here/answer"
stop printed
exit $status
"""
# In a session of its own it outlives the line.
_APART = '[ -n "$CUT_LINE_APART" ] || CUT_LINE_APART=1 exec setsid --fork --wait "$0" "$@"'
_LOOKS = """\
#!/bin/bash
here={folder}
echo "$*" >>"$here/looks"
case " $(cat "$here/stops") " in *" looked "*) echo looked >"$here/reached"; read -r _ <"$here/go-looked" ;; esac
exec {real} "$@"
"""
POINTS = ("called", "answered", "printed", "looked")


class CutLine:
    """A TCP relay on loopback to a port here.

    `up` is towards that port; bytes are counted over all connections. `delay_seconds` is added each
    way, and no more than `bytes_per_second` pass each way.
    """

    def __init__(
        self, port: int, *, delay_seconds: float = 0.0, bytes_per_second: float = 0.0
    ) -> None:
        self.delay_seconds = delay_seconds
        self.bytes_per_second = bytes_per_second
        self.port = 0
        self.connections = 0
        self.bytes_down = 0
        self._target = port
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._flows = self._held = _open_event()
        self._left: dict[str, int] = {}
        self._at_end = self.cut

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._target)
        self._writers += [writer, there_writer]
        flows = self._flows
        for way, source, sink in (("up", reader, there_writer), ("down", there_reader, writer)):
            task = asyncio.create_task(self._copy(way, source, sink, flows))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _copy(
        self,
        way: str,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        flows: asyncio.Event,
    ) -> None:
        loop = asyncio.get_running_loop()
        try:
            while chunk := await source.read(_CHUNK_BYTES):
                self.bytes_down += len(chunk) if way == "down" else 0
                left = self._left.get(way)
                if left is not None:
                    self._left[way] = left - len(chunk)
                    if len(chunk) > left:
                        del self._left[way]
                        sink.write(chunk[:left])
                        await sink.drain()
                        chunk = chunk[left:]
                        self._at_end()
                await flows.wait()
                if self.bytes_per_second:
                    await asyncio.sleep(len(chunk) / self.bytes_per_second)
                if self.delay_seconds:
                    loop.call_later(self.delay_seconds, sink.write, chunk)
                else:
                    sink.write(chunk)
                    await sink.drain()
        except OSError:
            pass
        finally:
            loop.call_later(self.delay_seconds, sink.close)

    def cut_after(self, way: str, count: int) -> None:
        """Let that many more bytes through, `up` or `down`; the next one cuts the line in its
        place.
        """
        self._left[way], self._at_end = count, self.cut

    def hold_after(self, way: str, count: int) -> None:
        """Let that many more bytes through, `up` or `down`; the next one has the line fall silent
        in its place.
        """
        self._left[way], self._at_end = count, self.fall_silent

    def cut(self) -> None:
        """Reset all connections, for both sides to see."""
        for writer in self._writers:
            sock = writer.get_extra_info("socket")
            try:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            except OSError:
                pass
            writer.transport.abort()
        self._writers.clear()

    def fall_silent(self) -> None:
        """Pass nothing on and say nothing, as a network that went away; connections made from now
        on are whole.
        """
        self._held, self._flows = self._flows, _open_event()
        self._held.clear()

    def come_back(self) -> None:
        """Pass on what was held, and all that follows."""
        self._held.set()

    def close_door(self) -> None:
        """Refuse new connections."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def stop(self) -> None:
        self.close_door()
        self.cut()
        for task in tuple(self._tasks):
            task.cancel()


def _open_event() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


@dataclass(frozen=True, slots=True)
class Gate:
    """Commands in `folder`/bin that stand before the real ones and wait at chosen points.

    Anyone there may run them.
    """

    folder: Path

    @property
    def path(self) -> str:
        return str(self.folder / "bin")

    @property
    def calls(self) -> list[str]:
        """The words of each call that submits."""
        return _lines(self.folder / "calls")

    @property
    def looks(self) -> list[str]:
        """The words of each call that looks at the queue."""
        return _lines(self.folder / "looks")

    async def until(self, point: str) -> None:
        """Return once a command has come to a point where it waits."""
        loop = asyncio.get_running_loop()
        reached: asyncio.Future[None] = loop.create_future()
        number = os.open(self.folder / "reached", os.O_RDWR | os.O_NONBLOCK)

        def read() -> None:
            if point in os.read(number, 4096).decode().split() and not reached.done():
                reached.set_result(None)

        loop.add_reader(number, read)
        try:
            await reached
        finally:
            loop.remove_reader(number)
            os.close(number)

    async def let_go(self, point: str) -> None:
        """Let the one command that waits at a point go on."""
        for _ in range(500):
            try:
                number = os.open(self.folder / f"go-{point}", os.O_WRONLY | os.O_NONBLOCK)
            except OSError as error:
                # It has said that it waits, and opens its pipe next.
                if error.errno != errno.ENXIO:
                    raise
                await asyncio.sleep(0.01)
                continue
            os.write(number, b"go\n")
            os.close(number)
            return
        raise AssertionError(f"nobody waits at {point}")

    def stop_at(self, *points: str) -> None:
        (self.folder / "stops").write_text(" ".join(points))


@contextmanager
def gate(
    submits: str = "sbatch",
    looks: str = "squeue",
    *,
    real: str = "",
    only: str = "",
    does_outlive: bool = False,
) -> Iterator[Gate]:
    """A gate before the programs that submit and look, by name; `does_outlive`: the first survives
    the line's end.

    `real` is what a shell runs in its place, found by its name where '' is given; `only` calls with
    such a word count.
    """
    # pytest's own folders are closed to the users who log in.
    folder = Path(tempfile.mkdtemp(prefix="hpcdash-gate-"))
    try:
        folder.chmod(0o777)
        (folder / "bin").mkdir()
        (folder / "stops").touch()
        apart = _APART if does_outlive else ""
        submitting = _SUBMITS.format(
            folder=folder, real=real or shutil.which(submits), apart=apart, only=only
        )
        for name, text in (
            (submits, submitting),
            (looks, _LOOKS.format(folder=folder, real=shutil.which(looks))),
        ):
            if name:
                (folder / "bin" / name).write_text(text)
                (folder / "bin" / name).chmod(0o755)
        for pipe in ("reached", *(f"go-{point}" for point in POINTS)):
            os.mkfifo(folder / pipe)
            (folder / pipe).chmod(0o666)
        yield Gate(folder)
    finally:
        for process in psutil.process_iter(["cmdline"]):
            if any(str(folder) in word for word in process.info["cmdline"] or ()):
                with suppress(psutil.Error):
                    process.kill()
        shutil.rmtree(folder, ignore_errors=True)


def ssh_config_through(config: str, old_port: int, port: int, folder: Path) -> Path:
    """A copy of an ssh configuration, and of its known_hosts, that goes to another port here.

    Nothing is compressed: a line is cut at a byte of what it carries.
    """
    known = next(line.split()[1] for line in config.splitlines() if "UserKnownHostsFile" in line)
    folder.mkdir(parents=True, exist_ok=True)
    text = Path(known).read_text().replace(f":{old_port} ", f":{port} ")
    (folder / "known_hosts").write_text(text)
    changed = config.replace(f"Port {old_port}", f"Port {port}").replace(
        known, str(folder / "known_hosts")
    )
    path = folder / "config"
    path.write_text(changed + "  ServerAliveInterval 1\n  Compression no\n")
    return path


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []
