"""The demonstration's first screen, and what an idle dashboard on the embedded queue costs."""

from __future__ import annotations

import os
import re
import statistics
import sys
import tempfile
import time

import psutil

from benchmarks.terminal import Terminal

_RUNS = 3
_IDLE_SECONDS = 30.0
_FULL_SCREEN_SECONDS = 2.0
_IDLE_SHARE = 0.08
_ROW = re.compile(r"^.{2,40}[▸◦‖✗✓◔] ", re.MULTILINE)
_ROWS_OF_A_FULL_SCREEN = 8
_LOST_FOCUS = b"\x1b[O"


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="hpcdash-bench-") as home:
        environment = {
            **{
                name: value for name, value in os.environ.items() if not name.startswith("HPCDASH_")
            },
            "HOME": home,
            "HPCDASH_STATE": f"{home}/state",
            "HPCDASH_CACHE": f"{home}/cache",
            "XDG_CONFIG_HOME": f"{home}/config",
        }
        first, full, left = zip(*(demonstration(environment) for _ in range(_RUNS)), strict=True)
        print(
            f"demo, medians of {_RUNS}: first row after {statistics.median(first):.2f} s,", end=" "
        )
        print(f"{_ROWS_OF_A_FULL_SCREEN} rows after {statistics.median(full):.2f} s,", end=" ")
        print(f"gone {statistics.median(left):.2f} s after q")
        seen, unseen = idle(environment)
        print(
            f"idle on the embedded queue: {100 * seen:.1f} % of a core, {100 * unseen:.1f} % "
            "without focus"
        )
    return 1 if statistics.median(full) > _FULL_SCREEN_SECONDS or seen > _IDLE_SHARE else 0


def demonstration(environment: dict[str, str]) -> tuple[float, float, float]:
    """Seconds from the start to the first row and to a full screen, and from `q` to the program's
    end.
    """
    terminal = Terminal([sys.executable, "-m", "hpcdash", "demo"], environment, 120, 40)
    try:
        first = until_rows(terminal, 1)
        full = until_rows(terminal, _ROWS_OF_A_FULL_SCREEN)
        terminal.reconcile(0.2, 1.0)
        pressed = time.perf_counter()
        terminal.type(b"q")
        try:
            while terminal.pump(10.0):
                pass
        except EOFError:
            pass
        return first, full, time.perf_counter() - pressed
    finally:
        terminal.close()


def until_rows(terminal: Terminal, count: int) -> float:
    """When so many rows were on the screen, in seconds since the start."""
    while len(_ROW.findall(terminal.text())) < count:
        if time.perf_counter() - terminal.started > 30:
            raise TimeoutError(f"no {count} rows came within 30 s:\n{terminal.text()}")
        terminal.pump(0.01)
    return time.perf_counter() - terminal.started


def idle(environment: dict[str, str]) -> tuple[float, float]:
    """The share of a core that the dashboard and its commands take, with focus and without."""
    argv = [sys.executable, "-m", "hpcdash", "--local", "--backend", "local"]
    terminal = Terminal(argv, environment, 120, 40)
    try:
        terminal.wait_for("connected")
        terminal.reconcile(0.5, 3.0)
        seen = share(terminal)
        terminal.type(_LOST_FOCUS)
        terminal.wait_for("focus")
        return seen, share(terminal)
    finally:
        terminal.close()


def share(terminal: Terminal) -> float:
    began, before = time.perf_counter(), cpu_seconds(terminal.pid)
    while time.perf_counter() - began < _IDLE_SECONDS:
        terminal.pump(0.5)
    return (cpu_seconds(terminal.pid) - before) / (time.perf_counter() - began)


def cpu_seconds(pid: int) -> float:
    """Of a process and of the children it has waited for."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)


if __name__ == "__main__":
    sys.exit(main())
