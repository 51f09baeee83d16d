"""Makes every screen the same on every machine: UTC, UTF-8 signs, colours."""

from __future__ import annotations

import locale
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcdash.services.cluster.queries import CommandBudget
from hpcdash.ui.widgets import cells


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pilot looks whether the program is idle every 5 ms instead of every 20, twice for each
    key.
    """
    monkeypatch.setattr("textual._wait.SLEEP_GRANULARITY", 0.005, raising=False)
    monkeypatch.setattr("textual._wait.SLEEP_IDLE", 0.0025, raising=False)
    # A notice stands until its test has read it.
    monkeypatch.setattr(
        "textual.notifications.Notification.time_left", property(lambda notification: 3600.0)
    )
    # What a row rested on shows is there at once.
    monkeypatch.setattr("hpcdash.ui.jobs.overview.REST_SECONDS", 0.01)
    monkeypatch.setattr("hpcdash.ui.jobs.overview.LOCATED_SECONDS", 0.01)


@pytest.fixture
def snap_compare(snap_compare: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Pictures have one rate of commands and one time of an answer: how many were asked by then is
    chance.
    """
    monkeypatch.setattr(CommandBudget, "per_minute", property(lambda budget: 3))
    answered = property(lambda budget: 0.012, lambda budget, seconds: None)
    monkeypatch.setattr(CommandBudget, "last_seconds", answered, raising=False)
    return snap_compare


@pytest.fixture(autouse=True)
def same_terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """UTC, signs beyond ASCII, colours, and a journal of the test's own."""
    before = locale.setlocale(locale.LC_CTYPE)
    locale.setlocale(locale.LC_CTYPE, "C.UTF-8")
    cells.signs.cache_clear()
    for name in ("NO_COLOR", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HPCDASH_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()
    locale.setlocale(locale.LC_CTYPE, before)
    cells.signs.cache_clear()
