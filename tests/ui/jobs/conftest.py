"""A real embedded queue for the views of jobs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.embedded.queue_lab import QueueLab


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[QueueLab]:
    # Jobs write their logs where they are submitted from.
    monkeypatch.chdir(tmp_path)
    lab = QueueLab(tmp_path / "queue", tmp_path / "work")
    yield lab
    lab.end()
