"""Metrics read from a million lines of each kind of log, beside grep over the same file.

    python -m benchmarks.metrics [LINES]

Seconds are those of the processor. Exits 1 when a million lines of nanoGPT or JSON take more than 2
of them, of Megatron more than 5, or when another thread waits longer than 20 ms for the interpreter
once in a hundred times.
"""

from __future__ import annotations

import random
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from hpcdash.services.metrics.reader import MetricReader

CHUNK_BYTES = 256 << 10
MAX_SECONDS_A_MILLION = {"megatron": 5.0, "nanogpt": 2.0, "json": 2.0}
MAX_GAP_SECONDS = 0.020


def megatron(i: int) -> str:
    return (
        f" [2026-01-{1 + i // 86400 % 28:02d} {i // 3600 % 24:02d}:{i // 60 % 60:02d}:{i % 60:02d}]"
        f" iteration {i:8d}/ 1000000 | consumed samples: {i * 256:12d} | elapsed time per "
        "iteration (ms):"
        f" {1200 + random.random() * 50:.1f} | learning rate: {1.5e-4 * random.random():.6E} | "
        "global batch size:   256"
        f" | lm loss: {2 + random.random():.6E} | loss scale: 1.0 | grad norm: "
        f"{random.random():.3f}"
        " | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
    )


def nanogpt(i: int) -> str:
    took, mfu = 12 + random.random(), 17 + random.random()
    return f"iter {i}: loss {2 + random.random():.4f}, time {took:.2f}ms, mfu {mfu:.2f}%\n"


def json_lines(i: int) -> str:
    loss, norm = 2 + random.random(), random.random()
    return (
        f'{{"step": {i}, "loss": {loss}, "lr": {random.random():.6f}, "grad_norm": {norm:.4f}}}\n'
    )


def torchtitan(i: int) -> str:
    return (
        f"\x1b[36m[titan] 2026-03-04 {i // 3600 % 24:02d}:{i // 60 % 60:02d}:{i % 60:02d},338 - "
        "root - INFO - "
        f"\x1b[31mstep: {i:2d}  \x1b[32mloss: {2 + random.random():8.5f}  \x1b[33mgrad_norm: "
        f"{random.random():7.4f}"
        f"  \x1b[34mmemory: 10.05GiB(10.57%)  \x1b[36mtps: {random.randint(1000, 9999):,}"
        f"  \x1b[36mtflops: {300 + random.random():.2f}  \x1b[35mmfu: 14.02%\x1b[39m\n"
    )


def bars(i: int) -> str:
    n = i % 1000
    beside = f"[00:10<00:12, 43.2it/s, loss={random.random():.3f}, v_num=7]"
    return f"\rEpoch {i // 1000}: {n // 10:3d}%|████▌     | {n}/1000 {beside}"


def prose(i: int) -> str:
    seconds = random.random()
    return (
        f"INFO:root: loaded shard {i} of /path/to/the/data/set_{i % 7}.parquet in "
        f"{seconds:.2f}s rows=1000\n"
    )


KINDS: dict[str, tuple[Callable[[int], str], str]] = {
    "megatron": (megatron, r"lm loss: \K\S+"),
    "nanogpt": (nanogpt, r"loss \K[^,]+"),
    "json": (json_lines, r'"loss": \K[^,]+'),
    "torchtitan": (torchtitan, r"loss: +\K\S+"),
    "bars": (bars, r"loss=\K[^,]+"),
    "prose": (prose, r"loss \K\S+"),
}


class Gaps:
    """How long a thread that wants to run every half millisecond waited for the interpreter, 99
    times of 100.
    """

    def __enter__(self) -> Gaps:
        self._waits: list[float] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        self.usual_seconds = sorted(self._waits)[int(len(self._waits) * 0.99)]

    def _watch(self) -> None:
        before = time.perf_counter()
        while not self._is_over.is_set():
            time.sleep(0.0005)
            now = time.perf_counter()
            self._waits.append(now - before - 0.0005)
            before = now


def read_file(path: Path) -> int:
    reader = MetricReader()
    count = 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            count += len(reader.feed(chunk).offsets)
    return count + len(reader.feed(b"", is_end=True).offsets)


def main() -> int:
    lines = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    random.seed(1)
    is_slow = False
    print(
        "| lines | MB | samples | grep s | read s | ratio | lines/s | gap ms "
        "|\n|---|---|---|---|---|---|---|---|"
    )
    for name, (line, pattern) in KINDS.items():
        count = lines // 10 if name == "bars" else lines
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "log"
            with path.open("w") as file:
                file.writelines(map(line, range(count)))
            size = path.stat().st_size
            path.read_bytes()
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            # Into /dev/null grep would stop at the first match.
            with (Path(folder) / "out").open("wb") as out:
                subprocess.run(["grep", "-oP", pattern, str(path)], stdout=out, check=False)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            grep_seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            begin = time.process_time()
            samples = read_file(path)
            seconds = time.process_time() - begin
            with Gaps() as gaps:
                read_file(path)
        print(
            f"| {name}, {count:,} | {size / 1e6:.0f} | {samples:,} | {grep_seconds:.2f} | "
            f"{seconds:.2f}"
            f" | {seconds / grep_seconds:.1f} | {count / seconds:,.0f} | "
            f"{gaps.usual_seconds * 1e3:.1f} |",
            flush=True,
        )
        if (most := MAX_SECONDS_A_MILLION.get(name)) is not None:
            is_slow |= seconds / count * 1e6 > most or gaps.usual_seconds > MAX_GAP_SECONDS
    return int(is_slow)


if __name__ == "__main__":
    sys.exit(main())
