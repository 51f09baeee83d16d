"""The text of a filter, read from left to right: keywords, quoted text, lists of values."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from hpcdash.domain.conditions import Kind, Pattern
from hpcdash.errors import QueryError

_SPACE = re.compile(r"\s*")
_REST_OF_INSTANT = re.compile(r"(?:\s+[a-zA-Z]{1,7})?\s+ago(?=[\s)]|$)", re.IGNORECASE)
_REST_OF_DATE = re.compile(r"\s+[0-9]{1,2}:[0-9]{2}(?::[0-9]{2})?(?=[\s)]|$)")
_DATE = re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}")


@dataclass(frozen=True, slots=True)
class Value:
    """What a column is compared with; `position` is where it stands in the filter."""

    text: str
    is_quoted: bool
    position: int

    @property
    def is_none(self) -> bool:
        return not self.is_quoted and self.text.lower() == "none"

    @property
    def pattern(self) -> Pattern:
        return Pattern(None) if self.is_none else Pattern(self.text, not self.is_quoted and "*" in self.text)


class QueryText:
    """One expression; `at` is the offset of the next character. What is malformed raises QueryError."""

    def __init__(self, expression: str) -> None:
        self.expression = expression
        self.at = 0

    def ended(self) -> bool:
        """Whether nothing is left."""
        return self.at >= len(self.expression)

    def next(self) -> str:
        """The next character; there has to be one."""
        return self.expression[self.at]

    def bad(self, message: str, position: int) -> QueryError:
        """An error to raise, with what was written and where it is wrong."""
        return QueryError(message, self.expression, position)

    def skip_space(self) -> None:
        space = _SPACE.match(self.expression, self.at)
        self.at = space.end() if space else self.at

    def take_not(self) -> bool:
        """Go beyond `!` or `not`; false where neither is next."""
        if not self.ended() and self.next() == "!":
            self.at += 1
            self.skip_space()
            return True
        return self.take_keyword("not")

    def take_keyword(self, keyword: str) -> bool:
        """Go beyond a keyword and the space after it; false where it is not the next word."""
        if not self.sees_keyword(keyword):
            return False
        self.at += len(keyword)
        self.skip_space()
        return True

    def sees_keyword(self, keyword: str) -> bool:
        end = self.at + len(keyword)
        return self.expression[self.at : end].lower() == keyword and (
            end == len(self.expression) or self.expression[end].isspace() or self.expression[end] in '()!"'
        )

    def quoted_text(self) -> str:
        """Up to the quote that closes the one that is next."""
        start = self.at
        text: list[str] = []
        self.at += 1
        while not self.ended() and self.next() != '"':
            if self.expression[self.at : self.at + 2] in {'\\"', "\\\\"}:
                self.at += 1
            text.append(self.next())
            self.at += 1
        if self.ended():
            raise self.bad("this quote is never closed", start)
        self.at += 1
        return "".join(text)

    def raw_text(self, commas: bool) -> str:
        """Up to a space or a parenthesis that closes nothing in it; a comma outside brackets ends it when `commas`."""
        start = self.at
        parentheses = brackets = 0
        while not self.ended() and not self.next().isspace():
            character = self.next()
            if character == "\\" and not commas:
                self.at += 1
            elif brackets and character != "]":
                pass
            elif character in "[]":
                brackets = 1 if character == "[" else 0
            elif character == "(":
                parentheses += 1
            elif character == ")":
                if parentheses == 0:
                    break
                parentheses -= 1
            elif character == "," and commas:
                break
            self.at += 1
        self.at = min(self.at, len(self.expression))
        return self.expression[start : self.at]

    def values(self, kind: Kind) -> Iterator[Value]:
        """The values of a comma list, at least one."""
        while True:
            start = self.at
            if not self.ended() and self.next() == '"':
                yield Value(self.quoted_text(), True, start)
            else:
                text = self.raw_text(commas=True)
                if kind is Kind.INSTANT:
                    text += self._rest_of_instant(text)
                if not text:
                    raise self.bad("a value is missing here", start)
                yield Value(text, False, start)
            if self.ended() or self.next() != ",":
                return
            self.at += 1

    def _rest_of_instant(self, text: str) -> str:
        rest = _REST_OF_INSTANT.match(self.expression, self.at)
        if rest is None and _DATE.fullmatch(text):
            rest = _REST_OF_DATE.match(self.expression, self.at)
        if rest is None:
            return ""
        self.at = rest.end()
        return rest[0]
