"""An error of the app's own ends it with a sentence, not with a traceback and everyone's job names in it."""

from __future__ import annotations

import os
import pty
import re
import sys
from pathlib import Path

CASE = Path(__file__).parents[2] / "fixtures" / "slurm" / "22.05" / "everyday"
PROGRAM = f"""
import sys
import hpcdash.ui.app as app
async def on_mount(self):
    raise ValueError("boom")
app.HpcdashApp.on_mount = on_mount
sys.argv = ["hpcdash", "replay", {str(CASE)!r}]
from hpcdash.cli.main import main
main()
"""


def test_a_crash_is_told_in_a_sentence_and_without_a_traceback() -> None:
    child, terminal = pty.fork()
    if child == 0:
        os.environ["TERM"] = "xterm-256color"
        os.execv(sys.executable, [sys.executable, "-c", PROGRAM])
    shown = b""
    while True:
        try:
            piece = os.read(terminal, 65536)
        except OSError:
            break
        if not piece:
            break
        shown += piece
    os.close(terminal)
    _, status = os.waitpid(child, 0)
    words = re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", shown).decode(errors="replace")
    assert os.waitstatus_to_exitcode(status) == 1
    assert "something went wrong in hpcdash itself: ValueError: boom" in words
    assert "Traceback" not in words
