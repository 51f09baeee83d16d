"""An error of the app's own ends it with a sentence, not with a traceback and everyone's job names
in it.
"""

from __future__ import annotations

import os
import pty
import re
import sys
from pathlib import Path

import pytest

CASE = Path(__file__).parents[2] / "fixtures" / "slurm" / "22.05" / "everyday"
PROGRAM = f"""
import sys
import hpcdash.ui.app as app
async def on_mount(self):
    raise ValueError("boom")
app.HpcdashApp.on_mount = on_mount
sys.argv = ["hpcdash", "replay", {str(CASE)!r}]
from hpcdash.cli import main
main._is_source_tree = lambda: IS_SOURCE_TREE
main.main()
"""


@pytest.mark.parametrize("is_source_tree", [False, True])
def test_a_crash_is_told_in_a_sentence_and_to_a_developer_with_its_traceback(
    is_source_tree: bool,
) -> None:
    program = PROGRAM.replace("IS_SOURCE_TREE", str(is_source_tree))
    child, terminal = pty.fork()
    if child == 0:
        os.environ["TERM"] = "xterm-256color"
        os.execv(sys.executable, [sys.executable, "-c", program])
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
    assert "internal error of hpcdash: ValueError: boom" in words
    assert ("Traceback (most recent call last)" in words) == is_source_tree
    assert ("run it again with --debug" in words) != is_source_tree
