"""The event loop's longest block in each refresh of one's own jobs, in CPU time.

    python -m benchmarks.event_loop [JOBS]     exits 1 when a block takes longer than promised

The dashboard runs in a pseudo-terminal on a stand-in for Slurm's commands, all of whose jobs are
one's own and one of which was launched from here; between two answers a hundredth of them ends and
as many are submitted. Each block of the loop is measured by `time.thread_time`, beside a fixed loop
in the same process: a slow or busy machine changes both.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.stand_in import make_stand_in
from benchmarks.terminal import Terminal
from hpcdash.services.submit.launch_records import LaunchRecord, LaunchRecords

DEFAULT_JOBS = 100_000
REFRESHES = 3
# A block takes no longer than this where the fixed loop takes FIXED_LOOP_MS; elsewhere in
# proportion.
PROMISED_MS = 33.0
FIXED_LOOP_MS = 20.0
_FIXED_LOOP_TURNS = 1_000_000
_CONFIGURATION = "[poll]\nmine_seconds = 3\ncontroller_share = 0.1\ncommands_per_minute = 120\n"
_LAUNCH = LaunchRecord(
    "/nowhere/run-1100", "", "1100", "train-123", "failed", "", 1, time.time(), 'command = "true"'
)
_LOG = "HPCDASH_BENCH_BLOCKS"
_REPORTED_MS = 5.0


def fixed_loop_ms() -> float:
    """CPU milliseconds of a loop that is the same on every machine."""
    began = time.thread_time()
    total = 0
    for number in range(_FIXED_LOOP_TURNS):
        total += number & 7
    return (time.thread_time() - began) * 1e3


def run_dashboard(argv: list[str]) -> None:
    """Run hpcdash in this process, and write its longer blocks to the file that the environment
    names.
    """
    from hpcdash.__main__ import main as hpcdash

    sys.argv = ["hpcdash", *argv]
    plain_run = asyncio.Handle._run  # type: ignore[attr-defined]
    with open(os.environ[_LOG], "w", buffering=1) as log:

        def timed_run(handle: Any) -> None:
            began = time.thread_time()
            plain_run(handle)
            took = (time.thread_time() - began) * 1e3
            if took > _REPORTED_MS:
                log.write(json.dumps([time.time(), took, repr(handle)]) + "\n")

        asyncio.Handle._run = timed_run  # type: ignore[attr-defined]
        log.write(
            json.dumps([time.time(), statistics.median(fixed_loop_ms() for _ in range(9)), "fixed"])
            + "\n"
        )
        hpcdash()


def main(jobs: int = DEFAULT_JOBS) -> None:
    with tempfile.TemporaryDirectory(prefix="hpcdash-bench-") as name:
        folder = Path(name)
        commands = make_stand_in(folder, jobs, own_jobs=jobs)
        configuration, log = folder / "config.toml", folder / "blocks"
        configuration.write_text(_CONFIGURATION)
        settings = {
            "HOME": name,
            "LANG": "C.UTF-8",
            "PATH": f"{commands}:{os.environ.get('PATH', os.defpath)}",
            "SLURM_CONF": "stand-in",
            "HPCDASH_CACHE": f"{name}/cache",
            "HPCDASH_STATE": f"{name}/state",
            "HPCDASH_CONFIG": str(configuration),
            _LOG: str(log),
        }
        LaunchRecords(folder / "state", "local").launched(_LAUNCH)
        terminal = Terminal(
            [sys.executable, "-m", "benchmarks.event_loop", "run", "--local"], settings
        )
        try:
            terminal.wait_for(r"▌", 60.0)
            answers = folder / "answers"
            first = answers.stat().st_size
            began = time.time()
            over = time.perf_counter() + 120.0
            # The last answer counts once the next one has been asked for.
            while answers.stat().st_size <= first + REFRESHES and time.perf_counter() < over:
                terminal.press("down", 1.0)
                terminal.pump(0.02)
        finally:
            terminal.close()
        lines = [json.loads(line) for line in log.read_text().splitlines()]
    fixed = next(took for _, took, what in lines if what == "fixed")
    blocks = sorted(
        ((took, what) for at, took, what in lines if what != "fixed" and at >= began), reverse=True
    )
    limit = PROMISED_MS * fixed / FIXED_LOOP_MS
    print(
        f"{jobs} own jobs, {REFRESHES} refreshes; the fixed loop takes {fixed:.1f} ms, so a block "
        f"at most {limit:.0f}"
    )
    for took, what in blocks[:12]:
        print(f"{took:7.1f} ms  {what}")
    if blocks and blocks[0][0] > limit:
        sys.exit(f"a block took longer than {limit:.0f} ms")


if __name__ == "__main__":
    if sys.argv[1:2] == ["run"]:
        run_dashboard(sys.argv[2:])
    else:
        main(*map(int, sys.argv[1:]))
