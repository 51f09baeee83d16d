"""Keys in a log that does not grow, beside one that grows by 50 MB/s: milliseconds a key, memory,
how far it is behind.

    python -m benchmarks.log_keys [SECONDS]

The log is a file of this machine, the scheduler a stand-in: this is hpcdash's own time. The writer
takes part of the machine as well, as a job on a login node would.
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
from collections.abc import Sequence
from pathlib import Path

from benchmarks.stand_in import make_stand_in
from benchmarks.terminal import Terminal

DEFAULT_SECONDS = 15.0
_MAX_BYTES = 4 << 30
# Arguments: the file, and how large it may become. 25 000 different lines of 100 bytes at a time.
_WRITER = """
import sys, time
block = b"".join(b"step %9d " % number + b"loss 0.25 " * 8 + b" end\\n" for number in range(25_000))
with open(sys.argv[1], "ab", buffering=0) as log:
    number, began = 0, time.monotonic()
    while log.tell() < int(sys.argv[2]):
        log.write(block)
        number += 1
        time.sleep(max(0.0, began + number * 0.05 - time.monotonic()))
"""
_SCONTROL = """#!/bin/sh
case "$*" in
  ping) echo "Slurmctld(primary) at standin is UP";;
  *config*) echo "ClusterName = standin";;
  *job*) for id; do :; done
    echo "JobId=$id JobName=bench"
    echo "   JobState=RUNNING Reason=None"
    echo "   Command=/bin/true"
    echo "   StdErr="{log}
    echo "   StdOut="{log};;
esac
"""


def measure(name: str, keys: Sequence[str], *, grows: bool, seconds: float) -> str:
    """One line of figures for these keys, pressed over and over."""
    with tempfile.TemporaryDirectory(prefix="hpcdash-bench-") as folder_name:
        folder = Path(folder_name)
        log = folder / "job.out"
        log.write_bytes(b"".join(b"step %9d loss 0.25\n" % number for number in range(2_000_000)))
        commands = make_stand_in(folder, 1_000)
        (commands / "scontrol").write_text(_SCONTROL.format(log=shlex.quote(str(log))))
        settings = {
            "HOME": str(folder),
            "LANG": "C.UTF-8",
            "PATH": f"{commands}:{os.environ.get('PATH', os.defpath)}",
            "HPCDASH_CACHE": str(folder / "cache"),
            "HPCDASH_STATE": str(folder / "state"),
            "HPCDASH_CONFIG": str(folder / "config.toml"),
            # Slurm's commands without a configuration are taken for no cluster.
            "SLURM_CONF": str(folder / "slurm.conf"),
        }
        (folder / "config.toml").write_text("")
        writer = None
        terminal = Terminal([sys.executable, "-m", "hpcdash", "--local"], settings, 140, 45)
        try:
            terminal.wait_for("▌")
            terminal.reconcile()
            asked = time.perf_counter()
            terminal.press("l")
            terminal.wait_for("100 % of")
            opened = time.perf_counter() - asked
            if grows:
                writer = subprocess.Popen(
                    [sys.executable, "-c", _WRITER, str(log), str(_MAX_BYTES)]
                )
                terminal.wait_for(r"\+4\d\.?\d*M/s", 20)
            took: list[float] = []
            silent = 0
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                for key in keys:
                    one = terminal.press(key, 1.0)
                    if one is None:
                        silent += 1
                    else:
                        took.append(one)
                    # What comes late of one page is not taken for the next one.
                    terminal.reconcile(0.05, 0.3)
            rate = re.search(r"\+([\d.]+.)/s", terminal.text())
            peak = terminal.peak_bytes
        finally:
            if writer is not None:
                writer.terminate()
                writer.wait()
            terminal.close()
    took.sort()
    return (
        f"{name:<34} {1000 * opened:6.0f} ms  {1000 * statistics.median(took):6.1f} "
        f"{1000 * took[int(0.95 * len(took))]:6.1f} {1000 * took[-1]:6.1f} ms of {len(took):>4} "
        f"keys, {silent} without"
        f" a change  {peak / 2**20:4.0f} MiB  {'+' + rate[1] + '/s' if rate else ''}"
    )


PAGES = ("pageup",) * 20 + ("pagedown",) * 10
FOLLOWING = ("w",)


def main(seconds: float = DEFAULT_SECONDS) -> None:
    print("                                     opened     key: median, 95 %, worst")
    for grows in (False, True):
        what = "grows by 50 MB/s" if grows else "is quiet"
        print(measure(f"{what}: paging", PAGES, grows=grows, seconds=seconds), flush=True)
        print(
            measure(f"{what}: wrap while following", FOLLOWING, grows=grows, seconds=seconds),
            flush=True,
        )


if __name__ == "__main__":
    main(*map(float, sys.argv[1:]))
