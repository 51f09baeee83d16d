"""Runs a person's pager or editor on a file in the terminal that the dashboard has left."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

_FALLBACKS = {"pager": ("less", "more"), "editor": ("nano", "vi")}
_VARIABLES = {"pager": ("PAGER",), "editor": ("VISUAL", "EDITOR")}


def run_outside(program: str, file: Path) -> str:
    """Run 'pager' or 'editor' on a file and wait for its end; the complaint where that fails, else ''."""
    words = _words_of(program)
    if not words:
        names = " or ".join(f"${name}" for name in _VARIABLES[program])
        return f"no {program} was found; set {names}"
    # less shows colours only when told to, and its own -F would close a short file at once.
    environment = {**os.environ, "LESS": os.environ.get("LESS", "-R").replace("F", "")}
    try:
        status = subprocess.call([*words, str(file)], env=environment)
    except OSError as error:
        return f"{words[0]}: {error.strerror}"
    return f"{words[0]} ended with status {status}" if status else ""


def _words_of(program: str) -> list[str]:
    for name in _VARIABLES[program]:
        if os.environ.get(name, "").strip():
            try:
                return shlex.split(os.environ[name])
            except ValueError:
                continue
    return [found for name in _FALLBACKS[program] if (found := shutil.which(name))][:1]
