"""Lines of the keys of a TOML text."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from contextlib import suppress

from hpcdash.config.problems import KeyPath, Problem, dotted

# Deeper keys are found by the table they are in.
_DEEPEST = 6
# No key of ours has nearly as many parts, and the time tomllib takes grows with the square of their
# number.
MAX_KEY_PARTS = 32
_MARKS = frozenset(("", *"\n[]{},.="))
_VALUE_ENDS = frozenset(("", *"\n,]}"))
# A string or a run of plain characters; a mark, the end of a line among them; what separates them;
# a quote without its other. Up to two quotes may precede the three that end a multi-line string.
_TOKEN = re.compile(
    r'''
    (?P<text> """ (?: [^"\\] | \\. | "(?!"") )* "{3,5} | \'\'\' (?: [^'] | '(?!\'\') )* '{3,5}
        | (?!"""|\'\'\') (?: " (?: [^"\\\n] | \\. )* " | ' [^'\n]* ' )
        | [^ \t\r\n\[\]{},.=\#"']+ )
    | (?P<mark> [\n\[\]{},.=] ) | [ \t\r]+ | \#[^\n]* | (?P<lost> ["'] )
    ''',
    re.DOTALL | re.VERBOSE,
)


def key_lines(text: str) -> dict[KeyPath, int]:
    """Return the 1-based line where each key is first named in a text that tomllib accepts.

    Elements of arrays and tables of an array are numbered from 0: ("a", 1, "b"). Of another text,
    the keys before the first syntax error.
    """
    scanner = _Scanner(text)
    with suppress(ValueError, IndexError, RecursionError):
        scanner.scan()
    return scanner.lines


def overlong_key_line(text: str) -> int | None:
    """Return the line of the first key of more than MAX_KEY_PARTS parts, in any text; None for
    none.
    """
    if all(line.count(".") < MAX_KEY_PARTS for line in text.split("\n")):
        return None
    dots = 0
    for token, line in _tokens(text):
        if token == ".":
            dots += 1
            if dots == MAX_KEY_PARTS:
                return line
        elif token in _MARKS:
            dots = 0
    return None


def find_line(lines: Mapping[KeyPath, int], path: KeyPath) -> int | None:
    """Return the line of a key, or of the nearest table that holds it; None if neither is named."""
    parents = (path[:length] for length in range(len(path), 0, -1))
    return next((lines[parent] for parent in parents if parent in lines), None)


def located(text: str, problems: Iterable[tuple[KeyPath, str]]) -> list[Problem]:
    """Return problems of a text with their lines, in its order.

    Problems of missing keys come last: a misspelt key is often the cause.
    """
    lines = key_lines(text)
    found = [Problem(find_line(lines, path), dotted(path), message) for path, message in problems]
    return sorted(found, key=lambda problem: problem.line or len(text))


def _tokens(text: str) -> list[tuple[str, int]]:
    """Return the tokens of a text with their lines, up to a string without an end."""
    tokens = []
    line = 1
    for match in _TOKEN.finditer(text):
        if match.lastgroup == "lost":
            break
        if match.lastgroup is not None:
            tokens.append((match[0], line))
        line += match[0].count("\n")
    return tokens


class _Scanner:
    """Scanner of the keys of a text; raises IndexError or ValueError where that is not TOML."""

    def __init__(self, text: str) -> None:
        self.lines: dict[KeyPath, int] = {}
        # In reverse: the next token is the last element.
        self._tokens = [("", text.count("\n") + 1), *reversed(_tokens(text))]
        self._last_number: dict[KeyPath, int] = {}

    def scan(self) -> None:
        table: KeyPath = ()
        while self._has_next():
            if self._skip("["):
                table = self._header()
            else:
                self._pair(table)

    def _header(self) -> KeyPath:
        is_array = self._skip("[")
        path: KeyPath = ()
        for part in self._key()[: _DEEPEST + 1]:
            path = (*self._last_table(path), part)
        if is_array:
            self._last_number[path] = self._last_number.get(path, -1) + 1
        path = self._last_table(path)
        self._mark(path)
        while self._skip("]"):
            pass
        return path

    def _last_table(self, path: KeyPath) -> KeyPath:
        """Return the path of the last table of an array; any other path as it is."""
        return (*path, self._last_number[path]) if path in self._last_number else path

    def _pair(self, table: KeyPath) -> None:
        path = (*table, *self._key())[: _DEEPEST + 1]
        self._mark(path)
        if not self._skip("="):
            raise ValueError
        self._value(path)

    def _key(self) -> list[str]:
        parts: list[str] = []
        while not parts or self._skip("."):
            token, _ = self._tokens.pop()
            if token in _MARKS:
                raise ValueError
            is_quoted = token.startswith(('"', "'"))
            parts.append(next(iter(tomllib.loads(f"{token} = 0"))) if is_quoted else token)
        return parts

    def _value(self, path: KeyPath) -> None:
        """Pass over a value, marking what is inside arrays and inline tables."""
        if self._skip("["):
            number = 0
            while self._has_next() and not self._skip("]"):
                inner = (*path, number)[: _DEEPEST + 1]
                self._mark(inner)
                self._value(inner)
                number += 1
        elif self._skip("{"):
            while self._has_next() and not self._skip("}"):
                self._pair(path)
        else:
            self._tokens.pop()
            while self._tokens[-1][0] not in _VALUE_ENDS:
                self._tokens.pop()

    def _has_next(self) -> bool:
        """Pass over ends of lines and commas; return whether anything is left."""
        while self._skip("\n") or self._skip(","):
            pass
        return len(self._tokens) > 1

    def _skip(self, mark: str) -> bool:
        """Pass over a mark; return whether it was there."""
        is_next = self._tokens[-1][0] == mark
        if is_next:
            self._tokens.pop()
        return is_next

    def _mark(self, path: KeyPath) -> None:
        line = self._tokens[-1][1]
        for length in range(1, min(len(path), _DEEPEST) + 1):
            self.lines.setdefault(path[:length], line)
