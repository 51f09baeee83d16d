"""Problems of a configuration, with messages that name the place."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Sequence

from msgspec import Struct

from hpcdash.errors import ConfigError

KeyPath = tuple[str | int, ...]
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_SHOWN_CHARACTERS = 40
_LISTED_PROBLEMS = 20
_LARGEST_SHOWN_NUMBER = 10**15


class Problem(Struct, frozen=True):
    """Problem of a file: `line` is 1-based, None without a line; `key` is the dotted path, '' for
    the whole file.
    """

    line: int | None
    key: str
    message: str


class ConfigProblems(ConfigError):
    """All problems of one file, in its order; as a ConfigError it has the place of the first."""

    def __init__(
        self,
        file: str,
        problems: Sequence[Problem],
        next_step: str = "`hpcdash config example` prints a file with every key explained.",
    ) -> None:
        first, *others = problems
        listed = [first.message]
        for other in others[: _LISTED_PROBLEMS - 1]:
            error = ConfigError(other.message, file=file, line=other.line, key=other.key)
            listed.append(str(error))
        if len(problems) > _LISTED_PROBLEMS:
            listed.append(f"… and {len(problems) - _LISTED_PROBLEMS} more")
        super().__init__("\n".join(listed), next_step, file=file, line=first.line, key=first.key)
        self.problems = tuple(problems)


def printable(text: str) -> str:
    r"""Return a text on one line, with a \u escape for every character that does not print."""

    def escape(char: str) -> str:
        number = ord(char)
        return f"\\u{number:04X}" if number < 0x10000 else f"\\U{number:08X}"

    return "".join(char if char.isprintable() else escape(char) for char in text)


def quoted(text: str) -> str:
    """Return a TOML basic string that reads back as `text`, which has no lone surrogate."""
    return printable(json.dumps(text, ensure_ascii=False))


def key_text(key: str) -> str:
    """Return a key as TOML writes it: bare if possible."""
    return key if _BARE_KEY.fullmatch(key) else quoted(key)


def dotted(path: KeyPath) -> str:
    """Return the text of a path: `clusters.juno.port`, `ui.columns.jobs[2]`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += ("." if text else "") + key_text(part[:_SHOWN_CHARACTERS])
    return text


def shown(value: object) -> str:
    """Return a short text of a TOML value for a message."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return quoted(value if len(value) <= _SHOWN_CHARACTERS else value[:_SHOWN_CHARACTERS] + "…")
    if isinstance(value, int):
        # Python refuses to print an integer of more than 4300 digits.
        return str(value) if abs(value) <= _LARGEST_SHOWN_NUMBER else "a very large number"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        return "an array"
    return "a table" if isinstance(value, dict) else "a date or time"


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return `; did you mean "port"?` for the choice nearest to a word; '' for none."""
    near = difflib.get_close_matches(word[:_SHOWN_CHARACTERS], sorted(choices), n=1)
    return f"; did you mean {quoted(near[0])}?" if near else ""
