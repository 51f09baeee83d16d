"""Backends of the registry with another local configuration, for the length of a test."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import pytest
from msgspec.structs import replace


def files_in(
    folder: Path, scheduler: str, names: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What may name the scheduler's server is looked for in these files of a folder, one a group of
    the usual.
    """
    probe = import_module(f"hpcdash.backends.{scheduler}.probe")
    usual = probe.LOCAL_CONFIGURATION
    files = tuple(
        replace(one, files=(str(folder / name),))
        for one, name in zip(usual.files, names, strict=True)
    )
    monkeypatch.setattr(probe, "LOCAL_CONFIGURATION", replace(usual, files=files))
