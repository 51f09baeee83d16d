"""The oldest Python that hpcdash.job is for, where this machine has it."""

import shutil
import subprocess
from pathlib import Path

import pytest


def oldest_python() -> str:
    """A Python of the oldest version, from PATH or pyenv. Skips where there is none."""
    found = [
        shutil.which("python3.8"),
        *map(str, Path("~/.pyenv/versions").expanduser().glob("3.8.*/bin/python")),
    ]
    for python in filter(None, found):
        said = subprocess.run([python, "-V"], capture_output=True, text=True, check=False)
        if said.stdout.startswith("Python 3.8."):
            return python
    pytest.skip("there is no Python 3.8 here")
