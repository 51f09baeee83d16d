from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.sshd import Sshd, login_user, why_no_sshd


@pytest.fixture(scope="session")
def sshd() -> Iterator[Sshd]:
    """One sshd for all tests that leave it as it was."""
    yield from _running_sshd()


@pytest.fixture
def own_sshd() -> Iterator[Sshd]:
    """An sshd for one test, which may stop it or change its key."""
    yield from _running_sshd()


def _running_sshd() -> Iterator[Sshd]:
    reason = why_no_sshd()
    if reason:
        pytest.skip(reason)
    # pytest's own folders are closed to the users who log in; this one is not.
    with tempfile.TemporaryDirectory(prefix="hpcdash-sshd-") as folder:
        server = Sshd(Path(folder))
        server.start()
        try:
            yield server
        finally:
            server.stop()


@pytest.fixture(scope="session")
def user() -> str:
    name = login_user("bash")
    if name is None:
        pytest.skip("no user with bash as login shell")
    return name


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty home, also for sockets, whose paths must be short."""
    with tempfile.TemporaryDirectory(prefix="hpcdash-run-") as folder:
        home = Path(folder)
        (home / ".ssh").mkdir(mode=0o700)
        monkeypatch.setenv("HOME", folder)
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
        yield home
