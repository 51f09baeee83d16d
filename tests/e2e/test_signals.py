"""However hpcdash is ended or stopped, the terminal is as it was, and nothing that was typed or
begun is lost.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import termios
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from hpcdash.services.state.database import StateDatabase
from tests.support.pbs import StandIns
from tests.support.program import Program, home_with
from tests.support.screen import Screen, dashboard
from tests.support.sshd import TwoFactorServer, make_key
from tests.support.waiting import until

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """hpcdash on an embedded queue of its own, of a person who has seen the hints."""
    variables = {
        "HPCDASH_QUEUE": str(tmp_path / "queue"),
        "HPCDASH_STATE": str(tmp_path / "state"),
        "PS1": "shell> ",
    }
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "state" / "toured").touch()
    return Program(home_with(tmp_path / "home"), ("--local", "--backend", "local"), variables)


async def write_a_draft(screen: Screen) -> None:
    await screen.until("You have no jobs")
    screen.type("n")
    await screen.until("train.py")
    screen.type("\thalf-done")
    await screen.until("--job-name=half-done")


def drafts(program: Program) -> list[tuple[str]]:
    return StateDatabase(program.home.parent / "state").read("SELECT content FROM drafts")


async def the_draft_is_there(program: Program) -> None:
    async with dashboard(program) as screen:
        await screen.until("You have no jobs")
        screen.type("n")
        await screen.until("--job-name=half-done")
        await screen.until("restored your unsaved form")
    assert drafts(program) == []


# -- the dashboard is ended


@pytest.mark.parametrize("number", SIGNALS)
async def test_a_signal_leaves_the_terminal_as_it_was_and_keeps_what_was_typed(
    program: Program, number: signal.Signals
) -> None:
    async with dashboard(program) as screen:
        before = screen.attributes
        await write_a_draft(screen)
        assert screen.attributes != before
        assert screen.modes_left
        screen.process.send_signal(number)
        assert await screen.ended() == 128 + number
        raw = await screen.all_output()
        assert screen.attributes == before
        assert screen.modes_left == set()
        assert b"Traceback" not in raw
    assert "half-done" in str(drafts(program))


class Ignoring(Program, frozen=True):
    """As nohup starts a program."""

    def argv(self, *words: str) -> tuple[str, ...]:
        return ("sh", "-c", "trap '' HUP; exec \"$@\"", "sh", *Program.argv(self, *words))


@pytest.mark.parametrize("kind", [Program, Ignoring])
async def test_a_terminal_that_is_closed_ends_it_though_no_signal_says_so(
    program: Program, kind: type[Program]
) -> None:
    async with dashboard(kind(program.home, program.before, program.variables)) as screen:
        await write_a_draft(screen)
        screen.hang_up()
        assert await screen.ended() == 128 + signal.SIGHUP
    await the_draft_is_there(program)


async def test_a_person_who_leaves_it_keeps_no_draft(program: Program) -> None:
    async with dashboard(program) as screen:
        await write_a_draft(screen)
        screen.type("\x11")
        assert await screen.ended() == 0
    assert drafts(program) == []


async def test_it_is_not_drawn_where_stderr_is_no_terminal(program: Program) -> None:
    argv = (*program.argv(), "2>/dev/null")
    shell = _Shell(program.home, (), program.variables)
    async with dashboard(shell) as screen:
        await screen.until("shell>")
        screen.type(f"{' '.join(argv)}; echo status=$?\r")
        await screen.until("status=2")


# -- ctrl+z


class _Shell(Program, frozen=True):
    """A person's shell, with job control."""

    def argv(self, *words: str) -> tuple[str, ...]:
        return ("bash", "--norc", "--noprofile", "-i")


@pytest.fixture
async def shell(program: Program) -> AsyncIterator[Screen]:
    """The dashboard, started from a shell."""
    async with dashboard(_Shell(program.home, (), program.variables)) as screen:
        await screen.until("shell>")
        screen.type(f"{' '.join(program.argv())}\r")
        await screen.until("You have no jobs")
        yield screen


async def to_shell(screen: Screen) -> None:
    """Until the shell has said that it is stopped, and the screen is cleared."""
    said = screen.raw.count(b"Stopped")
    await screen.until(lambda text: screen.raw.count(b"Stopped") > said)
    screen.type("clear; echo in the $((40 + 2))nd shell\r")
    await screen.until("in the 42nd shell")


async def leave_from_shell(screen: Screen) -> None:
    screen.type("\x11")
    prompts = screen.raw.count(b"shell>")
    await screen.until(lambda text: screen.raw.count(b"shell>") > prompts)
    screen.type("echo status=$?\r")
    await screen.until("status=0")
    # What readline switches on is the shell's own.
    assert screen.modes_left <= {"?2004h"}


async def test_ctrl_z_gives_the_terminal_to_the_shell_and_fg_brings_all_of_it_back(
    shell: Screen,
) -> None:
    shell.type("n")
    await shell.until("train.py")
    shell.type("\thalf-done\x1a")
    await to_shell(shell)
    assert shell.modes_left <= {"?2004h"}
    shell.type("fg\r")
    await shell.until("--job-name=half-done")
    await shell.until("f1 help")
    shell.type("-again")
    await shell.until("--job-name=half-done-again")
    shell.type("\x1b")
    await shell.until("You have no jobs")
    # In a dialog, too.
    shell.type("?")
    await shell.until("╰")
    shell.type("\x1a")
    await to_shell(shell)
    shell.type("fg\r")
    await shell.until("╰")
    shell.type("\x1b")
    await shell.until("You have no jobs")
    await leave_from_shell(shell)


async def test_in_the_background_it_stays_stopped_until_fg(shell: Screen) -> None:
    shell.type("\x1a")
    await to_shell(shell)
    (app,) = psutil.Process(shell.process.pid).children()
    shell.type("bg\r")
    await shell.until("&")
    await until(lambda: app.status() == psutil.STATUS_STOPPED, "it is stopped again")
    shell.type("fg\r")
    await shell.until("You have no jobs")
    await leave_from_shell(shell)


async def test_what_started_it_is_stopped_along_as_make_is(program: Program) -> None:
    (program.home / "Makefile").write_text(f"all:\n\t@{' '.join(program.argv())}\n")
    async with dashboard(_Shell(program.home, (), program.variables)) as screen:
        await screen.until("shell>")
        screen.type("make\r")
        await screen.until("You have no jobs")
        screen.type("\x1a")
        await to_shell(screen)
        screen.type("fg\r")
        await screen.until("You have no jobs")
        await leave_from_shell(screen)


async def test_a_program_that_a_stop_caught_gives_the_terminal_back_at_its_end(
    program: Program,
) -> None:
    async with dashboard(program) as screen:
        before = screen.attributes
        await screen.until("You have no jobs")
        screen.process.send_signal(signal.SIGSTOP)
        await until(
            lambda: psutil.Process(screen.process.pid).status() == psutil.STATUS_STOPPED, "it stops"
        )
        screen.process.send_signal(signal.SIGCONT)
        entered = screen.raw.count(b"\x1b[?1049h")
        await screen.until(lambda text: screen.raw.count(b"\x1b[?1049h") > entered or entered > 1)
        screen.type("m")
        await screen.until("everyone")
        screen.type("\x11")
        assert await screen.ended() == 0
        await screen.all_output()
        assert screen.attributes == before
        assert screen.modes_left == set()


async def test_without_a_shell_to_go_back_to_it_is_not_stopped(program: Program) -> None:
    async with dashboard(program) as screen:
        await screen.until("You have no jobs")
        screen.type("\x1a")
        await screen.until("not started from a shell")
        screen.type("m")
        await screen.until("everyone")


# -- questions of one-shot commands


@pytest.fixture
async def gate(program: Program) -> AsyncIterator[TwoFactorServer]:
    """A login node that asks for a password, and whose key is known."""
    make_key(program.home.parent / "key")
    server = TwoFactorServer("gate", program.home.parent / "key")
    await server.start()
    (program.home / ".ssh" / "config").write_text(
        f"Host gate\n HostName 127.0.0.1\n Port {server.port}\n User alice\n IdentityFile none\n "
        "IdentityAgent none\n"
    )
    known = f"[127.0.0.1]:{server.port} {server.host_key.with_suffix('.pub').read_text()}"
    (program.home / ".ssh" / "known_hosts").write_text(known)
    yield server
    await server.stop()


def echoes(screen: Screen) -> bool:
    return bool(screen.attributes[3] & termios.ECHO)


@pytest.mark.parametrize("keys", ["\x03", "sec\x03", "\x03\x03\x03", "\x1c"])
async def test_ctrl_c_at_a_password_ends_it_at_once(
    program: Program, gate: TwoFactorServer, keys: str
) -> None:
    async with dashboard(
        Program(program.home, (), program.variables), "--ssh", "gate", "jobs"
    ) as screen:
        before = screen.attributes
        await screen.until("Password:")
        await until(lambda: not echoes(screen), "what is typed is hidden")
        screen.type(keys)
        assert await screen.ended() == 128 + (signal.SIGQUIT if keys == "\x1c" else signal.SIGINT)
        raw = await screen.all_output()
        assert screen.attributes == before
        assert b"Traceback" not in raw
        assert raw.endswith(
            b"Password: \r\n" if keys == "\x1c" else b"\r\nhpcdash: interrupted\r\n"
        )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_at_a_password_has_what_is_typed_next_shown(
    program: Program, gate: TwoFactorServer, number: signal.Signals
) -> None:
    async with dashboard(
        Program(program.home, (), program.variables), "--ssh", "gate", "jobs"
    ) as screen:
        before = screen.attributes
        await screen.until("Password:")
        await until(lambda: not echoes(screen), "what is typed is hidden")
        screen.process.send_signal(number)
        assert await screen.ended() == 128 + number
        assert screen.attributes == before


async def test_answers_are_typed_hidden_or_shown_as_asked(
    program: Program, gate: TwoFactorServer
) -> None:
    async with dashboard(
        Program(program.home, (), program.variables), "--ssh", "gate", "jobs"
    ) as screen:
        await screen.until("Password:")
        await until(lambda: not echoes(screen), "what is typed is hidden")
        screen.type("secret\r")
        await screen.until("Code:")
        await until(lambda: echoes(screen), "what is typed is shown")
        screen.type("123456\r")
        raw = await screen.all_output()
    assert gate.responses == [["secret"], ["123456"]]
    assert b"secret" not in raw
    assert b"123456" in raw


async def test_ctrl_c_at_a_new_host_key_trusts_nothing(
    program: Program, gate: TwoFactorServer
) -> None:
    (program.home / ".ssh" / "known_hosts").unlink()
    async with dashboard(
        Program(program.home, (), program.variables), "--ssh", "gate", "jobs"
    ) as screen:
        await screen.until(lambda text: "[yes/no]" in text.replace("\n", ""))
        screen.type("\x03")
        assert await screen.ended() == 130
        assert (await screen.all_output()).endswith(b"hpcdash: interrupted\r\n")
    assert not (program.home / ".ssh" / "known_hosts").exists()


@pytest.mark.parametrize(
    ("keys", "status", "said"), [("\x03", 130, "interrupted"), ("\x04", 1, "nothing was done")]
)
async def test_a_question_that_is_left_does_nothing(
    program: Program, keys: str, status: int, said: str
) -> None:
    (program.home / "job.sh").write_text("#!/bin/sh\nsleep 300\n")
    assert program("submit", "job.sh").status == 0
    async with dashboard(program, "cancel", "1") as screen:
        await screen.until("[y/N]")
        screen.type(keys)
        assert await screen.ended() == status
        assert said in (await screen.all_output()).decode()
    assert program.rows("jobs")[0]["state"] in ("pending", "running")
    program("cancel", "1", "--yes")


# -- what goes on until it is ended


@pytest.mark.parametrize(
    "words", [("log", "1", "-f"), ("metrics", "1", "-f"), ("watch",)], ids=lambda words: words[0]
)
async def test_what_follows_ends_with_its_signal_and_without_a_word(
    program: Program, words: tuple[str, ...]
) -> None:
    script = "#!/bin/sh\nfor at in 1 2 3; do echo step $at: loss 2.$at; done\nexec sleep 300\n"
    (program.home / "job.sh").write_text(script)
    assert program("submit", "job.sh").status == 0
    shown = {"log": "loss 2.3", "metrics": "step 3", "watch": "to send"}[words[0]]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        async with dashboard(program, *words) as screen:
            before = screen.attributes
            await screen.until(shown)
            screen.process.send_signal(number)
            assert await screen.ended() == 128 + number
            assert screen.attributes == before
            raw = await screen.all_output()
            assert b"interrupted" not in raw
            assert b"Traceback" not in raw
    program("cancel", "1", "--yes")


# -- a submission that is cut off


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_a_submission_that_is_cut_off_is_unknown_in_the_journal(
    tmp_path: Path, number: signal.Signals
) -> None:
    stand_ins = StandIns.install(tmp_path / "pbs", "everyday")
    qsub = Path(str(stand_ins.path)) / "qsub"
    qsub.unlink(missing_ok=True)
    qsub.write_text(f"#!/bin/sh\ncat > /dev/null\necho $$ > {tmp_path}/began\nexec sleep 300\n")
    qsub.chmod(0o755)
    variables = {"PATH": f"{stand_ins.path}:/usr/bin:/bin", "PBS_CONF_FILE": "/dev/null"}
    program = Program(home_with(tmp_path / "home"), ("--local", "--backend", "pbs"), variables)
    (program.home / "job.sh").write_text("#!/bin/sh\ntrue\n")
    async with dashboard(program, "submit", "job.sh") as screen:
        began = tmp_path / "began"
        await until(lambda: began.exists() and began.read_text().strip(), "qsub is called")
        screen.process.send_signal(number)
        assert await screen.ended() == 128 + number
        raw = (await screen.all_output()).decode()
    if number != signal.SIGHUP:
        assert "submit job.sh: outcome unknown. Check with: hpcdash journal --settle" in raw
    (noted,) = program("journal", "--format", "json").json["actions"]
    assert noted["state"] == "unknown"
    assert not psutil.pid_exists(int(began.read_text()))


# -- the worst


def test_what_hangs_is_waited_for_only_so_long(tmp_path: Path) -> None:
    script = """
import asyncio, sys, threading
from hpcdash.cli import ending
ending.GRACE_SECONDS = 0.3
async def work():
    print("ready", flush=True)
    await asyncio.to_thread(threading.Event().wait)
ending.run_async(work())
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"ready\n"
        process.terminate()
        assert process.wait() == 143
        assert process.stderr.read() == b""


# Modules in the order they are loaded. Before the first of them Python itself starts, and says what
# it likes.
_LOADED = (
    "hpcdash.cli",
    "hpcdash.cli.commands",
    "hpcdash.cli.main",
    "asyncio",
    "hpcdash.services.cluster.clock",
)


@pytest.mark.parametrize("module", _LOADED)
def test_ctrl_c_while_it_starts_shows_no_traceback(program: Program, module: str) -> None:
    process = subprocess.Popen(
        program.argv("jobs"),
        env={**program.environment, "PYTHONPROFILEIMPORTTIME": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stderr is not None
        assert any(line.rpartition("|")[2].strip() == module for line in process.stderr), module
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
        process.wait()
    assert "Traceback" not in said, said


@pytest.mark.parametrize(("grace_seconds", "signals"), [(0.3, 1), (60, 2)])
def test_a_dashboard_that_does_not_heed_signals_ends_with_its_terminal_given_back(
    grace_seconds: float, signals: int
) -> None:
    # As the dashboard does, which a signal may interrupt in a write of its own.
    script = f"""
import os, time
from hpcdash.cli import ending
ending.GRACE_SECONDS = {grace_seconds}
class Stuck:
    is_outside = False
    def end_soon(self, number):
        os.write(1, b"told %d\\n" % number)
        return True
    def restore_terminal(self):
        os.write(1, b"restored\\n")
with ending.ends_with_signals(Stuck()):
    print("ready", flush=True)
    while True:
        time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        for _ in range(signals):
            process.terminate()
            assert process.stdout.readline() in (b"told 15\n", b"restored\n")
        assert process.wait() == 143
        assert process.stdout.read() in (b"", b"restored\n")
