"""What the command line reads, runs, renders and prints is as it was recorded."""

from __future__ import annotations

import pytest

from tests.contract.lines import recordings
from tests.contract.record import RECORDINGS, recorded_apart

pytestmark = [pytest.mark.system, pytest.mark.journey]


@pytest.mark.parametrize("name", [recording.name for recording in recordings()])
def test_it_is_as_it_was_recorded(name: str) -> None:
    assert recorded_apart(name) == (RECORDINGS / f"{name}.txt").read_text("utf-8")
