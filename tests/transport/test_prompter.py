"""What the command line shows of a login, and that it rings no phone where nobody is."""

from __future__ import annotations

import asyncio
import os
import select
import tempfile
import termios
from pathlib import Path
from typing import Any

import pytest

from hpcdash.errors import EXIT_UNREACHABLE
from hpcdash.transport.prompter import TerminalPrompter, read_line
from tests.support.pam_sshd import PamSshd, why_no_pam_sshd
from tests.support.program import Program
from tests.support.sshd import login_user


def test_what_a_host_says_goes_to_stderr_and_moves_nothing_there(
    capsys: pytest.CaptureFixture[str],
) -> None:
    TerminalPrompter().show("maya@gate", "Maintenance\non \x1b[31mMonday\r\n\n")
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == "maya@gate: Maintenance\nmaya@gate: on ␛[31mMonday\n"


@pytest.mark.skipif(why_no_pam_sshd() is not None, reason=str(why_no_pam_sshd()))
def test_a_command_of_cron_rings_no_phone(tmp_path: Path) -> None:
    user = login_user("bash")
    with tempfile.TemporaryDirectory(prefix="hpcdash-sshd-") as folder:
        server = PamSshd(Path(folder))
        server.start_pushing("AuthenticationMethods keyboard-interactive\n")
        try:
            (tmp_path / ".ssh").mkdir(mode=0o700)
            (tmp_path / ".ssh" / "known_hosts").write_text(
                f"[127.0.0.1]:{server.port} {server.host_key_line}\n"
            )
            # Without a terminal, as cron runs it.
            hpcdash = Program(tmp_path, ("--ssh", f"{user}@127.0.0.1:{server.port}"))
            done = hpcdash("watch", "--once")
        finally:
            server.stop()
    assert done.status == EXIT_UNREACHABLE
    assert "keyboard-interactive (not tried: no one is present to answer)" in done.stderr
    assert server.pushes == 0


async def test_what_is_typed_as_soon_as_it_is_asked_for_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, theirs = os.openpty()
    set_attributes = termios.tcsetattr
    shown = b""

    def types() -> None:
        nonlocal shown
        shown += os.read(ours, 100)
        if shown.endswith(b"Password: "):
            os.write(ours, b"secret\n")

    def hides_slowly(*words: Any) -> None:
        if select.select([ours], [], [], 0.2)[0]:
            types()
            # A terminal takes a moment to pass on what was typed.
            select.select([], [], [], 0.2)
        set_attributes(*words)

    monkeypatch.setattr(termios, "tcsetattr", hides_slowly)
    asyncio.get_running_loop().add_reader(ours, types)
    try:
        assert await read_line(theirs, "Password: ", is_hidden=True) == "secret"
    finally:
        asyncio.get_running_loop().remove_reader(ours)
        os.close(theirs)
        os.close(ours)
