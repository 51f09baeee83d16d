"""Gives tests an embedded queue of their own, and sees that nothing of it stays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.embedded.queue_lab import QueueLab


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[QueueLab]:
    """4 CPUs, no GPU, a second between TERM and KILL."""
    lab = QueueLab(tmp_path / "queue", tmp_path / "work")
    yield lab
    lab.end()
