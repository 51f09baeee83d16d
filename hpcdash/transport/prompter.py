"""Prompts of ssh on the program's terminal."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import termios
import threading
from collections.abc import Iterator

from hpcdash.domain.text import visible
from hpcdash.transport.base import HostKeyQuestion, Prompt

# Limit of a line in one read.
_LINE_BYTES = 1 << 16


class TerminalPrompter:
    """Prompter on /dev/tty, so that stdout and stdin stay free for data; one prompt at a time.

    The terminal is restored if a prompt is cancelled.
    """

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    def can_prompt(self) -> bool:
        with _terminal() as terminal:
            return terminal is not None

    def show(self, hop: str, text: str) -> None:
        for line in filter(str.strip, text.splitlines()):
            print(f"{visible(hop)}: {visible(line)}", file=sys.stderr, flush=True)

    def waiting(self, hop: str) -> None:
        self.show(
            hop,
            "no answer yet; it may be waiting for you to approve the login on your phone or "
            "another device",
        )

    async def answer(self, prompt: Prompt) -> list[str] | None:
        if not prompt.fields:
            return []
        async with self._turn:
            with _terminal() as terminal:
                return None if terminal is None else await _read_answers(terminal, prompt)

    async def accept_host_key(self, question: HostKeyQuestion) -> bool:
        async with self._turn:
            with _terminal() as terminal:
                if terminal is None:
                    return False
                _write(
                    terminal,
                    f"Unknown host {visible(question.hop)}{_requester(question)}.\n",
                    f"Its {visible(question.algorithm)} key fingerprint is "
                    f"{visible(question.fingerprint)}\n",
                    f"Trust it and store it in {visible(question.known_hosts_path)}? [yes/no] ",
                )
                answer = await read_line(terminal) or ""
                return answer.strip().lower() in ("yes", "y")


def _requester(prompt: Prompt | HostKeyQuestion) -> str:
    return f", for {visible(prompt.requester)}" if prompt.requester else ""


async def _read_answers(terminal: int, prompt: Prompt) -> list[str] | None:
    _write(terminal, f"{visible(prompt.hop)} asks{_requester(prompt)}\n")
    for line in f"{prompt.title}\n{prompt.instructions}".splitlines():
        if line.strip():
            _write(terminal, f"{visible(line)}\n")
    answers = []
    for field in prompt.fields:
        label = f"{visible(field.label.strip())} "
        answer = await read_line(terminal, label, is_hidden=field.secret)
        if answer is None:
            return None
        answers.append(answer)
    return answers


async def read_line(terminal: int, label: str = "", *, is_hidden: bool = False) -> str | None:
    """Read a line from the terminal, hidden if `is_hidden`; None for ctrl+d at its start.

    The event loop continues meanwhile, and so does the connection to the cluster.
    """
    loop = asyncio.get_running_loop()
    typed = asyncio.Event()
    with _hidden_input(terminal) if is_hidden else contextlib.nullcontext():
        # Hiding the input discards what was typed before, so the label is printed afterwards.
        _write(terminal, label)
        loop.add_reader(terminal, typed.set)
        try:
            await typed.wait()
            raw = os.read(terminal, _LINE_BYTES)
        except asyncio.CancelledError:
            # The next message starts a line.
            _write(terminal, "\n")
            raise
        finally:
            loop.remove_reader(terminal)
    if is_hidden or not raw:
        _write(terminal, "\n")
    return raw.decode(sys.getfilesystemencoding(), "surrogateescape").rstrip("\n") if raw else None


def _write(terminal: int, *texts: str) -> None:
    # It may be stdin, which need not be open for writing.
    with contextlib.suppress(OSError):
        os.write(terminal, "".join(texts).encode(sys.getfilesystemencoding(), "replace"))


@contextlib.contextmanager
def _hidden_input(terminal: int) -> Iterator[None]:
    """Hide typed text in this context, also after ctrl+z and fg."""
    before = termios.tcgetattr(terminal)
    hidden = [*before]
    hidden[3] &= ~termios.ECHO
    loop = asyncio.get_running_loop()
    termios.tcsetattr(terminal, termios.TCSAFLUSH, hidden)
    # Only the main thread handles signals, and Python programs prompt from another.
    is_main = threading.current_thread() is threading.main_thread()
    if is_main:
        loop.add_signal_handler(
            signal.SIGCONT, termios.tcsetattr, terminal, termios.TCSANOW, hidden
        )
    try:
        yield
    finally:
        if is_main:
            loop.remove_signal_handler(signal.SIGCONT)
        with contextlib.suppress(termios.error):
            termios.tcsetattr(terminal, termios.TCSAFLUSH, before)


@contextlib.contextmanager
def _terminal() -> Iterator[int | None]:
    """Open the controlling terminal; None if there is none."""
    try:
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
    except OSError:
        yield None
        return
    try:
        yield terminal
    finally:
        os.close(terminal)
