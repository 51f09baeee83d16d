"""How long a log takes to open at its end, to follow and to draw, beside tail on the same file in
the same run.

python -m benchmarks.logs          exits 1 when following is slower than promised
"""

from __future__ import annotations

import asyncio
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.parse import best_seconds
from hpcdash.cli.log import LogFollower
from hpcdash.services.logs.file import LogFile
from hpcdash.services.logs.lines import shown_line
from hpcdash.services.logs.pieces import pieces
from hpcdash.services.logs.window import LogWindow
from hpcdash.transport.local import LocalTransport

SPARSE_BYTES = 10 << 30
GROWN_BYTES = 1 << 30
SPLIT_BYTES = 4 << 20
SCREEN_ROWS = 60
# Bytes a second of `hpcdash log -f` beside those of `tail -f`.
PROMISED_SHARE = 0.25
_ROUNDS = 5
_PLAIN = (
    b"2026-01-01 12:00:00 INFO epoch 3 step 1200 loss 0.1234 lr 0.001 throughput 123.4 samples/s\n"
)
_COLOURED = (
    b"\x1b[32m2026-01-01 12:00:00\x1b[0m | \x1b[1mINFO    \x1b[0m | \x1b[36mtrain\x1b[0m "
    b"- loss \x1b[31m0.12\x1b[0m\n"
)
_BARS = "\r 42%|████▏     | 420/1000 [00:12<00:16, 35.1it/s]".encode() * 600 + b"\n"


class _Swallowed:
    """Takes a log's bytes as stdout would, and notes when all have come."""

    def __init__(self, expected_bytes: int) -> None:
        self.left_bytes = expected_bytes
        self._loop = asyncio.get_running_loop()
        self.all_came = asyncio.Event()

    def write(self, content: bytes, offset: int) -> None:
        self.left_bytes -= len(content)
        if self.left_bytes <= 0:
            self._loop.call_soon_threadsafe(self.all_came.set)

    def pause(self) -> None:
        """Nothing is shown."""

    def end_line(self) -> None:
        """Nothing is shown."""


async def opened_seconds(path: Path) -> float:
    """From nothing to the last screen of rows, as the log view does it on this machine."""
    file = LogFile(LocalTransport(), str(path))
    rounds = []
    for _ in range(_ROUNDS):
        started = time.perf_counter()
        window = LogWindow(file, time.time)
        await window.follow(0.0)
        assert len([shown_line(row.content) for row in window.rows[-SCREEN_ROWS:]]) == SCREEN_ROWS
        rounds.append(time.perf_counter() - started)
    return min(rounds)


def tail_seconds(path: Path) -> float:
    return best_seconds(
        lambda: subprocess.run(
            ["tail", "-n", "100", str(path)], stdout=subprocess.DEVNULL, check=True
        )
    )


def _grow(path: Path) -> subprocess.Popen[bytes]:
    """A file that grows as fast as a program can write it."""
    return subprocess.Popen(
        ["sh", "-c", 'yes "$2" | head -c "$3" >>"$1"', "sh", path, _PLAIN[:-1], str(GROWN_BYTES)]
    )


async def followed_seconds(path: Path) -> float:
    """How long the loop of `hpcdash log -f` takes for a file that grows meanwhile."""
    output = _Swallowed(GROWN_BYTES)
    ours = LogFollower(LogFile(LocalTransport(), str(path)), output)

    async def is_over() -> bool:
        return False

    ours.note(await ours.file.stat())
    started = time.perf_counter()
    with _grow(path):
        following = asyncio.create_task(ours.follow(is_over))
        await output.all_came.wait()
    seconds = time.perf_counter() - started
    following.cancel()
    return seconds


def tail_followed_seconds(path: Path) -> float:
    """The same with `tail -f`, its output read and thrown away here."""
    path.write_bytes(b"")
    started = time.perf_counter()
    with (
        _grow(path),
        subprocess.Popen(["tail", "-c", "+1", "-f", str(path)], stdout=subprocess.PIPE) as tail,
    ):
        assert tail.stdout is not None
        left_bytes = GROWN_BYTES
        while left_bytes > 0:
            left_bytes -= len(tail.stdout.read1(1 << 20))
        seconds = time.perf_counter() - started
        tail.terminate()
    return seconds


def draw_milliseconds(line: bytes) -> float:
    """A screen of such lines."""

    def draw() -> None:
        for _ in range(SCREEN_ROWS):
            shown_line(line)

    return best_seconds(draw) * 1e3


def _report(name: str, ours: float, theirs: float, unit: Callable[[float], str]) -> float:
    ratio = ours / theirs
    print(f"{name:<34} {unit(ours):>12} {unit(theirs):>12} {ratio:8.1f}")
    return ratio


def main() -> int:
    print(f"Python {platform.python_version()}, {platform.machine()}")
    print(f"{'':<34} {'hpcdash':>12} {'beside':>12} {'ratio':>8}")
    with tempfile.TemporaryDirectory(prefix="hpcdash-benchmark-") as folder:
        sparse, growing = Path(folder) / "sparse.out", Path(folder) / "growing.out"
        with sparse.open("wb") as file:
            file.truncate(SPARSE_BYTES)
            file.seek(0, 2)
            file.write(_PLAIN * 20_000)
        opened, tailed = asyncio.run(opened_seconds(sparse)), tail_seconds(sparse)
        _report(
            "last screen of 10 GiB, tail -n 100",
            opened,
            tailed,
            lambda seconds: f"{seconds * 1e3:.1f} ms",
        )
        growing.touch()
        followed, tail_followed = (
            asyncio.run(followed_seconds(growing)),
            tail_followed_seconds(growing),
        )
    rates = (GROWN_BYTES / followed, GROWN_BYTES / tail_followed)
    share = _report(
        "follow 1 GiB as it grows, tail -f", *rates, lambda rate: f"{rate / 1e6:.0f} MB/s"
    )
    content = (_PLAIN * (SPLIT_BYTES // len(_PLAIN) + 1))[:SPLIT_BYTES]
    cut, split = (
        best_seconds(lambda: pieces(content, 0)),
        best_seconds(lambda: content.split(b"\n")),
    )
    _report(
        "cut 4 MiB into pieces, bytes.split", cut, split, lambda seconds: f"{seconds * 1e3:.1f} ms"
    )
    for name, line in (
        ("plain", _PLAIN),
        ("coloured", _COLOURED),
        ("progress bars of 30 KiB", _BARS),
    ):
        print(f"draw {SCREEN_ROWS} {name:<26} {draw_milliseconds(line):>9.2f} ms")
    return 0 if share >= PROMISED_SHARE else 1


if __name__ == "__main__":
    sys.exit(main())
