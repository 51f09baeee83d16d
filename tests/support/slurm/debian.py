"""Installs a Debian of another release in a folder, whose Slurm a lab can use."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from .daemons import LabError
from .requirements import ACCOUNTING_PLUGIN_PACKAGE, PACKAGE_OF_PROGRAM

# With the Python that jobs have on a cluster.
_PACKAGES = dict.fromkeys((*PACKAGE_OF_PROGRAM.values(), ACCOUNTING_PLUGIN_PACKAGE, "python3"))
# Of APT's options here, those that the new one needs: proxies, and mirrors that serve old lists.
_APT_OPTIONS = ("Acquire::http", "Acquire::Check-")
_LOG_LINES = 15


def install(suite: str, folder: Path) -> None:
    """Install `suite` with its Slurm in a new folder: 600 MB. Needs root and mmdebstrap."""
    if folder.exists():
        raise LabError(f"{folder} exists already; to install {suite} anew, delete it first")
    if shutil.which("mmdebstrap") is None:
        raise LabError("mmdebstrap is missing here: apt-get install -y mmdebstrap")
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    options = (f"--aptopt={option}" for option in _apt_options())
    argv = (
        "mmdebstrap",
        "--variant=apt",
        f"--include={','.join(_PACKAGES)}",
        *options,
        suite,
        partial,
        *_mirror(),
    )
    try:
        ended = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace"
        )
        if ended.returncode:
            last_lines = "\n".join(ended.stderr.splitlines()[-_LOG_LINES:])
            raise LabError(
                f"mmdebstrap could not install {suite} (exit status "
                f"{ended.returncode}):\n{last_lines}"
            )
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _mirror() -> list[str]:
    """The mirror of Debian that this machine's APT uses; [] where it has none, as mmdebstrap has
    its own.
    """
    argv = ("apt-get", "indextargets", "--format", "$(LABEL) $(SITE)", "Created-By: Packages")
    listed = subprocess.run(argv, capture_output=True, text=True).stdout.splitlines()
    return [line.split()[1] for line in listed if line.startswith("Debian ")][:1]


def _apt_options() -> list[str]:
    dumped = subprocess.run(("apt-config", "dump"), capture_output=True, text=True).stdout
    return [line.rstrip(";") for line in dumped.splitlines() if line.startswith(_APT_OPTIONS)]
