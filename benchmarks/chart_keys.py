"""Keys in the chart of a million points while its log grows and it is drawn anew: milliseconds a
key, memory.

    python -m benchmarks.chart_keys [SECONDS]

The program runs in a pseudo-terminal of 140 by 45 cells, the log is a file of this machine, the
scheduler a stand-in. `y` draws the whole chart on another scale; `?` opens the help over it, and
`q` closes that.
"""

from __future__ import annotations

import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.log_keys import _SCONTROL
from benchmarks.stand_in import make_stand_in
from benchmarks.terminal import Terminal

DEFAULT_SECONDS = 20.0
POINTS = 1_000_000
# Arguments: the file, and the first step. 200 lines ten times a second.
_WRITER = """
import sys, time
step, began = int(sys.argv[2]), time.monotonic()
with open(sys.argv[1], "ab", buffering=0) as log:
    for number in range(1, 10_000):
        log.write(b"".join(b"step %d loss %.4f\\n" % (one, 2.0 + one % 97 / 1e3) for one in range(step, step + 200)))
        step += 200
        time.sleep(max(0.0, began + number * 0.1 - time.monotonic()))
"""
# A ceiling above which no chart is drawn anew more often.
_CONFIG = "[poll]\ncommands_per_minute = 600\n"


def until(
    terminal: Terminal, key: str, holds: Callable[[str], bool], most_seconds: float = 5.0
) -> float | None:
    """Seconds from a key to a screen of which something is true; None where that does not come."""
    pressed = time.perf_counter()
    terminal.type(key.encode())
    while time.perf_counter() - pressed < most_seconds:
        if terminal.pump(0.005) and holds(terminal.text()):
            return time.perf_counter() - pressed
    return None


def is_log(text: str) -> bool:
    """Whether the line of hints says that y is logarithmic."""
    return "   log" in text.splitlines()[-3]


def measure(*, grows: bool, seconds: float) -> str:
    """One line of figures."""
    with tempfile.TemporaryDirectory(prefix="hpcdash-bench-") as folder_name:
        folder = Path(folder_name)
        log = folder / "job.out"
        log.write_bytes(
            b"".join(
                b"step %d loss %.4f\n" % (step, 2.0 + 8e4 / (step + 1e4)) for step in range(POINTS)
            )
        )
        commands = make_stand_in(folder, 10)
        (commands / "scontrol").write_text(_SCONTROL.format(log=shlex.quote(str(log))))
        (folder / "config.toml").write_text(_CONFIG)
        settings = {
            "HOME": str(folder),
            "LANG": "C.UTF-8",
            "PATH": f"{commands}:{os.environ.get('PATH', os.defpath)}",
            "HPCDASH_CACHE": str(folder / "cache"),
            "HPCDASH_STATE": str(folder / "state"),
            "HPCDASH_CONFIG": str(folder / "config.toml"),
            "SLURM_CONF": str(folder / "slurm.conf"),
        }
        writer = None
        terminal = Terminal([sys.executable, "-m", "hpcdash", "--local"], settings, 140, 45)
        redrawn: list[float] = []
        dialogs: list[float] = []
        lost = 0
        try:
            terminal.wait_for("▌")
            terminal.reconcile()
            asked = time.perf_counter()
            terminal.type(b"g")
            terminal.wait_for("newest")
            opened = time.perf_counter() - asked
            terminal.wait_for(r"(?s)\A(?!.*reading backwards).*\b[1-9]\d{5,} points", 120)
            whole = time.perf_counter() - asked
            if grows:
                writer = subprocess.Popen([sys.executable, "-c", _WRITER, str(log), str(POINTS)])
                time.sleep(1.0)
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                was_log = is_log(terminal.text())
                wanted: tuple[tuple[list[float], str, Callable[[str], bool]], ...] = (
                    (redrawn, "y", lambda text, was=was_log: is_log(text) != was),  # type: ignore[misc]
                    (
                        dialogs,
                        "?",
                        lambda text: "keys of the chart" in text or "esc closes" in text,
                    ),
                    (dialogs, "q", lambda text: "esc closes" not in text and "points" in text),
                )
                for taken, key, holds in wanted:
                    one = until(terminal, key, holds)
                    if one is None:
                        lost += 1
                    else:
                        taken.append(one)
                    terminal.reconcile(0.05, 0.3)
            steps = terminal.text()
            peak = terminal.peak_bytes
        finally:
            if writer is not None:
                writer.terminate()
                writer.wait()
            terminal.close()
    found = re.findall(r"(\d+) points", steps)
    return (
        f"{'grows by 2000 points/s' if grows else 'is quiet':<24} {1000 * opened:5.0f} ms "
        f"{whole:5.1f} s  "
        f"y: {_figures(redrawn)}  ? and q: {_figures(dialogs)}  {lost} without an answer  "
        f"{peak / 2**20:4.0f} MiB  "
        f"{found[0] if found else '?'} points"
    )


def _figures(seconds: list[float]) -> str:
    """Median and worst, in ms, of how many."""
    if not seconds:
        return "none"
    return (
        f"{1000 * statistics.median(seconds):4.0f} {1000 * max(seconds):4.0f} ms of {len(seconds)}"
    )


def main(seconds: float = DEFAULT_SECONDS) -> None:
    print("                          opened    whole   key to screen: median, worst")
    for grows in (False, True):
        print(measure(grows=grows, seconds=seconds), flush=True)


if __name__ == "__main__":
    main(*map(float, sys.argv[1:]))
