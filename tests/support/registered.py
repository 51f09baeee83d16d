"""Backends of the registry with another local configuration, for the length of a test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from hpcdash.backends.registry import BACKENDS


def files_in(folder: Path, scheduler: str, names: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What may name the scheduler's server is looked for in these files of a folder, one a group of the usual."""
    backend = BACKENDS[scheduler]
    usual = backend.probe.local_configuration
    assert usual is not None
    files = tuple(replace(one, files=(str(folder / name),)) for one, name in zip(usual.files, names, strict=True))
    probe = replace(backend.probe, local_configuration=replace(usual, files=files))
    monkeypatch.setitem(BACKENDS, scheduler, replace(backend, probe=probe))
