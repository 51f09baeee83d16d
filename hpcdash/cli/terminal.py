"""Output of one-shot commands on a terminal or a pipe, and their confirmation."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Protocol

import msgspec

from hpcdash.domain.text import visible, visible_text
from hpcdash.errors import Declined, UsageError
from hpcdash.transport.prompter import read_line

# Version of the keys of JSON answers.
JSON_SCHEMA = 1
_NOT_PLAIN = re.compile(r"[^\n -~]")


class ByteStream(Protocol):
    """Protocol of a stream that tables are written to."""

    def write(self, content: bytes, /) -> object: ...

    def flush(self) -> object: ...


def stdout(*, is_json: bool = False) -> ByteStream:
    """Return stdout for UTF-8, with complete characters in each write.

    On a terminal, text is made visible as by `domain.text.visible_text`, and in JSON the same
    characters are written as `\\uXXXX`.
    """
    if not sys.stdout.isatty():
        return sys.stdout.buffer
    return _Terminal(_escape_json if is_json else visible_text)


def terminal_width() -> int | None:
    """Return the columns of the terminal that stdout is; None for a pipe or a file."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def print_text(text: str) -> None:
    """Print the text of a file; lone surrogates become the bytes that were invalid UTF-8."""
    _print(text.encode("utf-8", "surrogateescape"), stdout())


def print_json(answer: Mapping[str, object]) -> None:
    """Print an answer as one JSON object on a line, after the version of its keys."""
    encoded = msgspec.json.encode({"schema": JSON_SCHEMA, **answer})
    _print(encoded + b"\n", stdout(is_json=True))


def print_notes(*notes: str) -> None:
    """Print the non-empty notes to stderr, one per line, each made visible."""
    for note in filter(None, notes):
        print(f"hpcdash: {visible(note)}", file=sys.stderr)


def _print(content: bytes, out: ByteStream) -> None:
    # Earlier output of print comes first.
    sys.stdout.flush()
    out.write(content)
    out.flush()


class _Terminal:
    def __init__(self, make_safe: Callable[[str], str]) -> None:
        self._make_safe = make_safe

    def write(self, content: bytes) -> None:
        shown = self._make_safe(content.decode("utf-8", "replace"))
        sys.stdout.buffer.write(shown.encode(sys.stdout.encoding or "utf-8", "replace"))

    def flush(self) -> None:
        sys.stdout.buffer.flush()


def _escape_json(text: str) -> str:
    return _NOT_PLAIN.sub(lambda found: _json_letter(found[0]), text)


@lru_cache(maxsize=8192)
def _json_letter(letter: str) -> str:
    if visible(letter) == letter:
        return letter
    units = letter.encode("utf-16-be")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def can_prompt() -> bool:
    """Return whether a person can be prompted."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def require_prompt(command: str) -> None:
    """Raise UsageError if a command needs confirmation and nobody can be prompted."""
    if not can_prompt():
        raise UsageError(
            f"{command} needs confirmation, but there is no terminal",
            "Use --yes to skip the prompt.",
        )


async def confirm() -> None:
    """Prompt the person to continue. Raises Declined for any answer but yes."""
    if not await is_agreed():
        raise Declined


async def is_agreed() -> bool:
    """Return whether the person types yes; the event loop and the connection continue meanwhile."""
    print("Continue? [y/N] ", end="", file=sys.stderr, flush=True)
    return (await read_line(sys.stdin.fileno()) or "").strip().lower() in ("y", "yes")
