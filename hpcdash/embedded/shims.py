"""Small stand-ins for srun, scontrol and scancel on a job's PATH, where a script written for a cluster calls them."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

_NAMES = ("srun", "scontrol", "scancel")


def make_shims(folder: Path) -> str:
    """Their folder, made anew; the real ones, where there are any, would ask a scheduler that knows no such job."""
    shims = folder / "bin"
    shims.mkdir(mode=0o700, exist_ok=True)
    # The package may not be installed: it is found where this one is.
    root = Path(__file__).resolve().parent.parent.parent
    for name in _NAMES:
        program = f"import sys; sys.path.insert(0, {str(root)!r}); from hpcdash.embedded.{name} import main; main()"
        words = f"exec {shlex.quote(sys.executable)} -I -S -c {shlex.quote(program)}"
        shim = shims / name
        unfinished = shims / f".{name}"
        unfinished.write_text(f'#!/bin/sh\n{words} "$@"\n')
        unfinished.chmod(0o700)
        unfinished.replace(shim)
    return str(shims)
