"""`hpcdash serve` in a real Chromium: the jobs, a log and a chart of a training, as a person sees
them.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import psutil
import pytest

pytest.importorskip("aiohttp", reason="the extra [web] is not installed")
pytest.importorskip("textual_serve", reason="the extra [web] is not installed")

from tests.cli.test_serve_command import dashboards, gone, serving
from tests.support.chromium import chromium, why_no_chromium
from tests.support.program import Program, home_with

pytestmark = pytest.mark.journey
_TRAIN = """#!/bin/bash
#SBATCH -J gpt -o out.log -t 60
awk 'BEGIN { for (s = 1; s <= 2000; s++) printf "step %d/2000 | train loss: %.4f\\n", s, 9 / sqrt(s) }'
sleep 600
"""


@pytest.fixture
def program(tmp_path: Path) -> Program:
    if reason := why_no_chromium():
        if os.environ.get("CI"):
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    state = {"HPCDASH_QUEUE": str(tmp_path / "queue"), "HPCDASH_STATE": str(tmp_path / "state")}
    return Program(home_with(tmp_path / "home"), ("--local", "--backend", "local"), state)


async def test_jobs_a_log_and_a_chart_are_drawn_in_chromium(
    program: Program, tmp_path: Path
) -> None:
    script = program.home / "job.sh"
    script.write_text(_TRAIN)
    assert program("submit", str(script)).text == "1\n"
    async with serving(program) as (running, said), chromium(tmp_path / "chromium") as tab:
        link = re.search(r"http://\S+", said)
        assert link is not None
        await tab.open(link[0])
        text = await tab.until(
            lambda text: "gpt" in text and "▸ running" in text and "● live" in text
        )
        assert "read-only" in text
        pictures = [await tab.screenshot(tmp_path / "jobs.png")]

        await tab.press("l")
        text = await tab.until("step 2000/2000 | train loss: 0.2012")
        assert "jobs › log › 1 › stdout" in text
        pictures.append(await tab.screenshot(tmp_path / "log.png"))

        await tab.press("q")
        await tab.until("▸ running")
        await tab.press("g")
        text = await tab.until(
            lambda text: all(part in text for part in ("newest 0.2012", "⠉⠉⠉", "└──", "1 000"))
        )
        pictures.append(await tab.screenshot(tmp_path / "chart.png"))

        columns, rows = max(map(len, text.split("\n"))), len(text.split("\n"))
        await tab.resize(800, 480)

        def is_smaller(text: str) -> bool:
            lines = text.split("\n")
            is_whole = lines[0].startswith(" local ›") and "? help" in lines[-1] and "└──" in text
            return is_whole and len(lines) < rows and max(map(len, lines)) < columns

        await tab.until(is_smaller)
        pictures.append(await tab.screenshot(tmp_path / "small.png"))

        assert len({*pictures}) == len(pictures)
        for picture in pictures:
            assert await tab.colours(picture) > 30

        own = link[0].partition("/?")[0].removeprefix("http")
        assert [
            one for one in tab.requests if not re.match(rf"(?:http|ws){re.escape(own)}/|data:", one)
        ] == []
        assert tab.complaints == []
        assert "token" not in "".join(await tab.history())
        assert await tab.evaluate("document.cookie") == ""

        # The link is used up, in this browser too; whoever is in stays in.
        page = (await tab.history())[-1]
        await tab.open(link[0])
        await tab.until("Each link works once")
        await tab.open(page)
        await tab.until("▸ running")
        shown = dashboards(running.pid)
        await tab.open("about:blank")
        await gone(shown)

        await tab.open(page)
        await tab.until("▸ running")
        process = psutil.Process(running.pid)
        running.terminate()
        await gone([process])
        await tab.until("its connection is gone", around=True)
