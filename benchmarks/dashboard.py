"""The dashboard in a terminal: seconds to the first table, milliseconds a key while refreshes are
taken in, memory.

    python -m benchmarks.dashboard [--nodes NODES] [JOBS …]   # with the wall of so many nodes
    python -m benchmarks.dashboard --history [JOBS …]   # memory, with so many in the history of a PBS

The stand-in's `squeue` prints what is generated, so this is hpcdash's own time and not a
scheduler's. Beside each figure stands its ratio to `python -c 'import textual.app'` in the same
run: machines are noisy.
"""

from __future__ import annotations

import itertools
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.stand_in import make_pbs_stand_in, make_stand_in
from benchmarks.terminal import Terminal

DEFAULT_JOBS = (1_000, 10_000, 30_000, 100_000)
DEFAULT_ENDED = (10, 11_100)
PROMISED_HISTORY_BYTES = 150 << 20
_RUNS = 5
_KEYS_SECONDS = 12.0
_ROWS_DOWN = 60
# As quick as the configuration allows, so that refreshes come while keys are pressed.
_CONFIGURATION = (
    "[poll]\nmine_seconds = 3\neveryone_seconds = 3\ncontroller_share = "
    "0.1\ncommands_per_minute = 120\n"
)


def import_seconds() -> float:
    """The median time of starting Python and importing Textual."""
    times = []
    for _ in range(_RUNS):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", "import textual.app"], check=True)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


HEADING = (
    "   jobs   first: cached   live, no cache  everyone's    key: median, 95 %, worst     memory"
)


def measure_dashboard(
    jobs: int,
    folder: Path,
    settings: Mapping[str, str],
    unit_seconds: float,
    where: Sequence[str] = ("--local",),
) -> str:
    """One line of figures of the dashboard with these environment variables, its cache and settings
    in `folder`.
    """
    configuration = folder / "config.toml"
    configuration.write_text(_CONFIGURATION)
    settings = {
        "HOME": str(folder),
        "LANG": "C.UTF-8",
        "HPCDASH_CACHE": str(folder / "cache"),
        "HPCDASH_CONFIG": str(configuration),
        **settings,
    }
    argv = [sys.executable, "-m", "hpcdash", *where]
    cached: list[float] = []
    live: list[float] = []
    # Every second start has no cache: its first table is the scheduler's answer.
    for times in [live, cached] * _RUNS:
        if times is live:
            shutil.rmtree(settings["HPCDASH_CACHE"], ignore_errors=True)
        terminal = Terminal(argv, settings)
        try:
            times.append(terminal.wait_for(r"▌"))
            terminal.reconcile()
        finally:
            terminal.close()
    terminal = Terminal(argv, settings)
    try:
        terminal.wait_for(r"▌")
        terminal.reconcile()
        asked = time.perf_counter()
        terminal.press("m")
        terminal.wait_for(r"everyone's[\s\S]*▌")
        shown = time.perf_counter() - asked
        terminal.reconcile()
        took: list[float] = []
        # Down a page of rows and up again, so that no key meets the end of a short table.
        keys = itertools.cycle(["down"] * _ROWS_DOWN + ["up"] * _ROWS_DOWN)
        end = time.perf_counter() + _KEYS_SECONDS
        while time.perf_counter() < end:
            seconds_or_none = terminal.press(next(keys), 1.0)
            if seconds_or_none is not None:
                took.append(seconds_or_none)
            terminal.pump(0.02)
        peak = terminal.peak_bytes
    finally:
        terminal.close()
    took.sort()
    times = "".join(
        f"{seconds:8.2f} s {seconds / unit_seconds:5.1f}x "
        for seconds in (statistics.median(cached), statistics.median(live), shown)
    )
    return (
        f"{jobs:>7} {times}"
        f"  {1000 * statistics.median(took):7.1f} {1000 * took[int(0.95 * len(took))]:7.1f} "
        f"{1000 * took[-1]:7.1f} ms"
        f"  {peak / 2**20:7.0f} MiB"
    )


def measure(jobs: int, unit_seconds: float, nodes: int) -> str:
    """One line of figures for a queue of so many jobs and nodes, made up."""
    with tempfile.TemporaryDirectory(prefix="hpcdash-bench-") as name:
        folder = Path(name)
        commands = make_stand_in(folder, jobs, nodes=nodes)
        # Slurm's commands without a configuration would be taken for no cluster.
        settings = {
            "PATH": f"{commands}:{os.environ.get('PATH', os.defpath)}",
            "SLURM_CONF": "stand-in",
        }
        return measure_dashboard(jobs, folder, settings, unit_seconds)


def measure_history(ended: int) -> int:
    """Prints a line of figures for everyone's history of so many jobs; the most memory, in
    bytes.
    """
    with tempfile.TemporaryDirectory(prefix="hpcdash-bench-") as name:
        folder = Path(name)
        commands = make_pbs_stand_in(folder, ended)
        settings = {
            "HOME": name,
            "LANG": "C.UTF-8",
            "PATH": f"{commands}:{os.environ.get('PATH', os.defpath)}",
            "HPCDASH_CACHE": f"{name}/cache",
        }
        terminal = Terminal(
            [sys.executable, "-m", "hpcdash", "--local", "--backend", "pbs"], settings
        )
        try:
            terminal.wait_for("4 history")
            terminal.reconcile(1.0)
            before, _ = terminal.memory_bytes()
            terminal.press("4")
            terminal.reconcile(1.0)
            asked = time.perf_counter()
            terminal.press("m")
            terminal.wait_for(r"everyone's[\s\S]*▌")
            shown = time.perf_counter() - asked
            terminal.reconcile(2.0)
            after, most = terminal.memory_bytes()
        finally:
            terminal.close()
    print(
        f"{ended:>7}  {shown:8.2f} s  {before >> 20:7} {after >> 20:7} {most >> 20:7} MiB",
        flush=True,
    )
    return most


def main(counts: list[int], nodes: int) -> None:
    unit_seconds = import_seconds()
    print(f"python -c 'import textual.app': {unit_seconds:.2f} s, the unit of the ratios")
    print(HEADING)
    for jobs in counts:
        print(measure(jobs, unit_seconds, nodes), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--history"]:
        print("  ended  everyone's on the screen   memory: at first, then, at most")
        peaks = [
            measure_history(ended)
            for ended in [int(word) for word in sys.argv[2:]] or DEFAULT_ENDED
        ]
        sys.exit(1 if max(peaks) > PROMISED_HISTORY_BYTES else 0)
    arguments = sys.argv[1:]
    node_count = int(arguments[1]) if arguments[:1] == ["--nodes"] else 0
    main(
        [int(word) for word in arguments[2 * bool(node_count) :]] or list(DEFAULT_JOBS), node_count
    )
