"""On which line of a TOML text each key stands. Pure."""

from __future__ import annotations

import bisect
import re
import tomllib
from collections.abc import Mapping

from hpcdash.config.problems import KeyPath

# Deeper keys are found by the table they are in.
_DEEPEST = 6
# No key of ours has nearly as many parts, and the time tomllib takes grows with the square of their
# number.
MOST_KEY_PARTS = 32
_BLANK = re.compile(r"[ \t]+")
_GAP = re.compile(r"[ \t\r\n]+|#[^\n]*")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_SCALAR = re.compile(r"[^,\]}\n#]*")
# The end of a string, by its start, or an escape inside, which is skipped. Up to two quotes may
# precede the three that end a multi-line string.
_STRINGS = {
    '"""': re.compile(r'\\.|"{3,5}', re.DOTALL),
    "'''": re.compile(r"'{3,5}"),
    '"': re.compile(r'\\.|["\n]'),
    "'": re.compile(r"['\n]"),
}


def key_lines(text: str) -> dict[KeyPath, int]:
    """Key path → the 1-based line where it is first named, for a text that tomllib accepts.

    Elements of arrays and tables of an array are numbered from 0: ("a", 1, "b"). Of other texts,
    what came before the first place that cannot be followed.
    """
    scanner = _Scanner(text)
    try:
        scanner.document()
    except _Lost:
        pass
    return scanner.lines


def overlong_key_line(text: str) -> int | None:
    """The line of the first key of more than MOST_KEY_PARTS parts, None where there is none; for
    any text.
    """
    if all(line.count(".") < MOST_KEY_PARTS for line in text.split("\n")):
        return None
    scanner = _Scanner(text)
    try:
        scanner.document()
    except _Overlong as key:
        return scanner.line_at(key.position)
    except _Lost:
        pass
    return None


def find_line(lines: Mapping[KeyPath, int], path: KeyPath) -> int | None:
    """The line of a key, or of the nearest table that holds it; None where neither is named in the
    text.
    """
    for length in range(len(path), 0, -1):
        if path[:length] in lines:
            return lines[path[:length]]
    return None


class _Lost(Exception):
    """The text is not TOML from here on."""


class _Overlong(_Lost):
    """A key has more than MOST_KEY_PARTS parts."""

    def __init__(self, position: int) -> None:
        super().__init__()
        self.position = position


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.lines: dict[KeyPath, int] = {}
        self._newlines = [match.start() for match in re.finditer("\n", text)]
        self._tables_in: dict[KeyPath, int] = {}

    def document(self) -> None:
        table: KeyPath = ()
        while True:
            self._skip(_GAP)
            if self.position >= len(self.text):
                return
            if self.text[self.position] == "[":
                table = self._header()
            else:
                self._value(self._pair(table))

    def _header(self) -> KeyPath:
        start = self.position
        is_array = self.text.startswith("[[", start)
        self.position += 2 if is_array else 1
        parts = self._key()[: _DEEPEST + 1]
        self._expect("]]" if is_array else "]")
        path: KeyPath = ()
        for part in parts[:-1]:
            path = self._last_table((*path, part))
        path = (*path, parts[-1])
        if is_array:
            self._tables_in[path] = self._tables_in.get(path, 0) + 1
        path = self._last_table(path)
        self._mark(path, start)
        return path

    def _last_table(self, path: KeyPath) -> KeyPath:
        """A header that goes through an array of tables means its last table."""
        count = self._tables_in.get(path)
        return path if count is None else (*path, count - 1)

    def _pair(self, table: KeyPath) -> KeyPath:
        start = self.position
        path = (*table, *self._key())[: _DEEPEST + 1]
        self._expect("=")
        self._skip(_BLANK)
        self._mark(path, start)
        return path

    def _key(self) -> list[str]:
        start = self.position
        parts: list[str] = []
        while True:
            self._skip(_BLANK)
            part = self.position
            if not self._string():
                self._skip(_BARE)
            if self.position == part:
                raise _Lost
            parts.append(_unquoted(self.text[part : self.position]))
            if len(parts) > MOST_KEY_PARTS:
                raise _Overlong(start)
            self._skip(_BLANK)
            if not self.text.startswith(".", self.position):
                return parts
            self.position += 1

    def _value(self, path: KeyPath) -> None:
        """Pass over one value, however nested, marking what is inside arrays and inline tables."""
        containers: list[_Container] = []
        here: KeyPath | None = path
        while True:
            if here is not None:
                opening = self.text[self.position : self.position + 1]
                if opening in ("[", "{"):
                    containers.append(_Container(here, is_array=opening == "["))
                    self.position += 1
                else:
                    self._scalar()
            if not containers:
                return
            here = self._next_inside(containers)

    def _next_inside(self, containers: list[_Container]) -> KeyPath | None:
        """The path of the next value in the innermost container, which is left when there is
        none.
        """
        self._skip(_GAP)
        if self.text.startswith(",", self.position):
            self.position += 1
            self._skip(_GAP)
        next_char = self.text[self.position : self.position + 1]
        if not next_char:
            raise _Lost
        if next_char in "]}":
            self.position += 1
            containers.pop()
            return None
        container = containers[-1]
        if not container.is_array:
            return self._pair(container.path)
        path = (*container.path, container.passed)[: _DEEPEST + 1]
        container.passed += 1
        self._mark(path, self.position)
        return path

    def _scalar(self) -> None:
        if not self._string() and (match := _SCALAR.match(self.text, self.position)):
            self.position = match.end()

    def _string(self) -> bool:
        """Pass over a string in quotes, if one is here."""
        for quotes, pattern in _STRINGS.items():
            if self.text.startswith(quotes, self.position):
                for match in pattern.finditer(self.text, self.position + len(quotes)):
                    if match.group().startswith(quotes):
                        self.position = match.end()
                        return True
                    if match.group() == "\n":
                        break
                raise _Lost
        return False

    def _skip(self, pattern: re.Pattern[str]) -> None:
        while match := pattern.match(self.text, self.position):
            self.position = match.end()

    def _expect(self, token: str) -> None:
        if not self.text.startswith(token, self.position):
            raise _Lost
        self.position += len(token)

    def line_at(self, position: int) -> int:
        return bisect.bisect_left(self._newlines, position) + 1

    def _mark(self, path: KeyPath, position: int) -> None:
        line = self.line_at(position)
        for length in range(1, min(len(path), _DEEPEST) + 1):
            self.lines.setdefault(path[:length], line)


class _Container:
    __slots__ = ("is_array", "passed", "path")

    def __init__(self, path: KeyPath, *, is_array: bool) -> None:
        self.path = path
        self.is_array = is_array
        self.passed = 0


def _unquoted(key: str) -> str:
    if key.startswith("'"):
        return key[1:-1]
    if not key.startswith('"'):
        return key
    if "\\" not in key:
        return key[1:-1]
    try:
        return str(tomllib.loads(f"key = {key}")["key"])
    except ValueError:
        raise _Lost from None
