"""Rules of sudo, put where it reads them: whole or not at all, for whoever else asks sudo meanwhile. Knows no test."""

from __future__ import annotations

from pathlib import Path


def install_rules(file: Path, text: str) -> None:
    """Write a file of /etc/sudoers.d; its name has no dot, or sudo leaves it out."""
    unfinished = file.with_name(f"{file.name}.unfinished")
    unfinished.touch(0o440)
    unfinished.write_text(text)
    unfinished.rename(file)
