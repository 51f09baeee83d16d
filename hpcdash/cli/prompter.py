"""Asks on the terminal what a login node wants to know; refuses where there is no terminal."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import sys
from collections.abc import Iterator
from typing import TextIO

from hpcdash.domain.text import visible
from hpcdash.transport.base import HostKeyQuestion, Prompt


class TerminalPrompter:
    """Talks to /dev/tty, so that stdout and stdin stay free for data."""

    def can_ask(self) -> bool:
        with _terminal() as terminal:
            return terminal is not None

    def show(self, hop: str, words: str) -> None:
        for line in filter(str.strip, words.splitlines()):
            print(f"{visible(hop)}: {visible(line)}", file=sys.stderr, flush=True)

    def waiting(self, hop: str) -> None:
        self.show(hop, "no answer yet; it may wait for you to approve the login on your phone or another device")

    async def answer(self, prompt: Prompt) -> list[str] | None:
        if not prompt.fields:
            return []
        return await asyncio.to_thread(self._answer, prompt)

    async def accept_host_key(self, question: HostKeyQuestion) -> bool:
        return await asyncio.to_thread(self._accept, question)

    def _answer(self, prompt: Prompt) -> list[str] | None:
        with _terminal() as terminal:
            if terminal is None:
                return None
            terminal.write(f"{visible(prompt.hop)} asks\n")
            for line in f"{prompt.title}\n{prompt.instructions}".splitlines():
                if line.strip():
                    terminal.write(f"{visible(line)}\n")
            terminal.flush()
            answers = []
            for field in prompt.fields:
                label = f"{visible(field.label.strip())} "
                try:
                    if field.secret:
                        answers.append(getpass.getpass(label, stream=terminal))
                    else:
                        terminal.write(label)
                        terminal.flush()
                        answers.append(terminal.readline().rstrip("\n"))
                except (EOFError, KeyboardInterrupt):
                    return None
            return answers

    def _accept(self, question: HostKeyQuestion) -> bool:
        with _terminal() as terminal:
            if terminal is None:
                return False
            terminal.write(
                f"{visible(question.hop)} is not known yet.\n"
                f"Its {visible(question.algorithm)} key has the fingerprint {visible(question.fingerprint)}\n"
                f"Trust it, and remember it in {visible(question.known_hosts_path)}? [yes/no] "
            )
            terminal.flush()
            return terminal.readline().strip().lower() in ("yes", "y")


@contextlib.contextmanager
def _terminal() -> Iterator[TextIO | None]:
    """The controlling terminal; None where there is none."""
    try:
        # Line buffered for reading and writing at once.
        with open("/dev/tty", "r+b", buffering=0) as raw:
            import io

            yield io.TextIOWrapper(raw, encoding=sys.getfilesystemencoding(), errors="replace", write_through=True)
    except OSError:
        yield None
