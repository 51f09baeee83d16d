"""The first screen does not wait for what it does not need."""

from __future__ import annotations

import subprocess
import sys

# pyarrow itself imports numpy.
HEAVY = ("pandas", "asyncssh", "textual_fastdatatable", "plotext")


def test_the_way_to_the_first_screen_imports_nothing_heavy() -> None:
    script = "import sys, hpcdash.cli.dashboard, hpcdash.ui.app; print(*sys.modules)"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert set(HEAVY) & set(ended.stdout.split()) == set()
