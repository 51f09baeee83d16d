"""Where hpcdash keeps what it keeps, on Linux and on macOS."""

from __future__ import annotations

from pathlib import Path

import platformdirs
import pytest
from platformdirs.macos import MacOS
from platformdirs.unix import Unix

from hpcdash.cli.debug_log import log_file
from hpcdash.config.read import config_path
from hpcdash.services.state.folders import cache_root, queue_folder, state_root

_VARIABLES = ("HPCDASH_CONFIG", "HPCDASH_STATE", "HPCDASH_CACHE", "HPCDASH_QUEUE")
_XDG = ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, with no variable that names another folder."""
    for name in (*_VARIABLES, *_XDG):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def places(home: Path) -> list[str]:
    """Of the configuration, the state, the embedded queue (without the machine's name), the cache
    and the log.
    """
    found = (config_path()[0], state_root(), queue_folder().parent, cache_root(), log_file())
    return [str(path.relative_to(home)) for path in found]


def test_on_linux_they_follow_xdg(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platformdirs, "PlatformDirs", Unix)
    state = ".local/state/hpcdash"
    expected = [
        ".config/hpcdash/config.toml",
        state,
        f"{state}/queue",
        ".cache/hpcdash",
        f"{state}/log/hpcdash.log",
    ]
    assert places(home) == expected
    for name in _XDG:
        monkeypatch.setenv(name, str(home / name))
    state = "XDG_STATE_HOME/hpcdash"
    expected = ["XDG_CONFIG_HOME/hpcdash/config.toml", state, f"{state}/queue"]
    assert places(home) == [*expected, "XDG_CACHE_HOME/hpcdash", f"{state}/log/hpcdash.log"]


def test_on_macos_they_are_below_library(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platformdirs, "PlatformDirs", MacOS)
    support = "Library/Application Support/hpcdash"
    expected = [f"{support}/config.toml", support, f"{support}/queue"]
    assert places(home) == [*expected, "Library/Caches/hpcdash", "Library/Logs/hpcdash/hpcdash.log"]
