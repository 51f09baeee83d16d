"""What the command line reads, runs, renders and prints is as it was recorded."""

from __future__ import annotations

import pytest

from tests.contract.lines import recordings
from tests.contract.record import RECORDINGS, Recording, record


@pytest.mark.parametrize("recording", recordings(), ids=lambda recording: recording.name)
def test_it_is_as_it_was_recorded(recording: Recording) -> None:
    assert record(recording) == (RECORDINGS / f"{recording.name}.txt").read_text("utf-8")
