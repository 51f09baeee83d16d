"""What opening a program's first chart costs the event loop: its longest waits, and the processor's
time of its blocks.

    python -m benchmarks.chart_opening [TIMES]     exits 1 when a block takes longer than promised

Each time in a new program, in which nothing of a chart was imported, without a terminal; the log
has 5000 steps.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

STEPS = 5000
SIZE = (160, 45)
DEFAULT_TIMES = 5
PROMISED_MS = 50.0
_PULSE_SECONDS = 0.002
_WATCHED_SECONDS = 2.0


async def open_once(folder: Path) -> tuple[float, float, float]:
    """In ms: the loop's longest wait, the longest block's processor time, and until the chart is
    drawn.
    """
    from tests.ui.logs.log_stage import RUNNING
    from tests.ui.metrics.chart_stage import chart_dashboard, training_log
    from tests.ui.stage import settled

    (folder / "job.out").write_bytes(training_log(range(1, STEPS + 1)))
    waits: list[float] = []
    blocks: list[float] = []
    drawn = float("nan")
    plain_run = asyncio.Handle._run  # type: ignore[attr-defined]

    def timed_run(handle: Any) -> None:
        began = time.thread_time()
        plain_run(handle)
        blocks.append((time.thread_time() - began) * 1e3)

    async with chart_dashboard(folder).run_test(size=SIZE) as pilot:
        await settled(pilot)
        asyncio.Handle._run = timed_run  # type: ignore[attr-defined]
        opening = time.perf_counter()
        pilot.app.call_later(pilot.app.main.push, "chart", job_id=RUNNING)  # type: ignore[attr-defined]
        while time.perf_counter() < opening + _WATCHED_SECONDS:
            began = time.perf_counter()
            await asyncio.sleep(_PULSE_SECONDS)
            waits.append((time.perf_counter() - began - _PULSE_SECONDS) * 1e3)
            view = pilot.app.main.view  # type: ignore[attr-defined]
            if drawn != drawn and pilot.app.main.view_name == "chart" and view.picture.panels:  # type: ignore[attr-defined]
                drawn = (time.perf_counter() - opening) * 1e3
        asyncio.Handle._run = plain_run  # type: ignore[attr-defined]
    return max(waits), max(blocks), drawn


def main(times: int = DEFAULT_TIMES) -> None:
    print("longest wait, longest block of the processor's time, drawn after (ms)")
    longest = 0.0
    for _ in range(times):
        said = subprocess.run(
            [
                sys.executable,
                "-m",
                __spec__.name if __spec__ else "benchmarks.chart_opening",
                "once",
            ],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout
        print(said, end="", flush=True)
        longest = max(longest, float(said.split()[1]))
    if longest > PROMISED_MS:
        sys.exit(f"a block took longer than {PROMISED_MS:g} ms")


if __name__ == "__main__":
    if sys.argv[1:] == ["once"]:
        with tempfile.TemporaryDirectory(prefix="hpcdash-bench-") as name:
            print("{:6.1f} {:6.1f} {:6.0f}".format(*asyncio.run(open_once(Path(name)))))
    else:
        main(*map(int, sys.argv[1:]))
