"""The filter language: from `state:running limit>2h (train or eval) !debug` to a mask over a table.

Words are looked for in the columns a person reads first; `key:value` is equality, `key!:value` its opposite (which a
null satisfies), `key:none` is null, and `> >= < <=` compare, with null never on either side. See `parse`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, tzinfo

import pyarrow as pa

from hpcdash.domain.conditions import All, Condition, Either, Everything, HasWord, Not, Pattern
from hpcdash.domain.query_comparisons import Comparisons
from hpcdash.domain.query_text import QueryText
from hpcdash.errors import QueryError

MAX_DEPTH = 40
MAX_LENGTH = 4000

_JOB_WORD_COLUMNS = ("name", "id", "user", "queue")
_NODE_WORD_COLUMNS = ("name", "state", "queues", "reason", "features")

_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OPERATOR = re.compile(r"!:|!=|!~|>=|<=|==|:|=|>|<|~")
_DETACHED_OPERATOR = re.compile(r"\s+(" + _OPERATOR.pattern + ")")
_WORD = re.compile(r"[^\s()]+")
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter that was read; `mask` is asked again for every new table."""

    expression: str
    condition: Condition

    @property
    def matches_all(self) -> bool:
        return isinstance(self.condition, Everything)

    def mask(self, table: pa.Table, now_epoch: float) -> pa.Array:
        """As many booleans as rows, without nulls; `now_epoch` (seconds) is what `2h ago` counts from."""
        return self.condition.mask(table, now_epoch)


def parse(expression: str, schema: pa.Schema, zone: tzinfo = UTC) -> Filter:
    """Reads a filter for tables of a schema of domain.schema; an empty one matches every row.

    `zone` is where `today` and `10:30` are. Raises QueryError, and nothing else, with the offset of the bad token.
    """
    if len(expression) > MAX_LENGTH:
        raise QueryError(f"a filter has at most {MAX_LENGTH} characters", expression[:60] + "…", 0)
    return Filter(expression, _Reader(_SURROGATE.sub("\ufffd", expression), schema, zone).read())


def apply(table: pa.Table, wanted: Filter, now_epoch: float) -> pa.Table:
    """The rows that a filter matches, in their order."""
    return table if wanted.matches_all else table.filter(wanted.mask(table, now_epoch))


class _Reader:
    """Reads one expression: its words, comparisons and parentheses."""

    def __init__(self, expression: str, schema: pa.Schema, zone: tzinfo) -> None:
        self.text = QueryText(expression)
        self.comparisons = Comparisons(self.text, schema, zone)
        names = schema.names
        candidates = _JOB_WORD_COLUMNS if "id" in names else _NODE_WORD_COLUMNS if "features" in names else ("name",)
        self.word_columns = tuple(name for name in candidates if name in names)

    def read(self) -> Condition:
        self.text.skip_space()
        if self.text.ended():
            return Everything()
        condition = self._either(0)
        if not self.text.ended():
            raise self.text.bad("this parenthesis closes nothing", self.text.at)
        return condition

    def _either(self, depth: int) -> Condition:
        if depth > MAX_DEPTH:
            raise self.text.bad(f"parentheses go no deeper than {MAX_DEPTH}", self.text.at)
        parts = [self._all(depth)]
        while self.text.take_keyword("or"):
            parts.append(self._all(depth))
        return parts[0] if len(parts) == 1 else Either(tuple(parts))

    def _all(self, depth: int) -> Condition:
        parts = [self._one(depth)]
        while True:
            if not self.text.take_keyword("and") and (
                self.text.ended() or self.text.next() == ")" or self.text.sees_keyword("or")
            ):
                break
            parts.append(self._one(depth))
        return parts[0] if len(parts) == 1 else All(tuple(parts))

    def _one(self, depth: int) -> Condition:
        is_negated = False
        while self.text.take_not():
            is_negated = not is_negated
        start = self.text.at
        if self.text.ended():
            raise self.text.bad("something is missing here", start)
        if self.text.next() == ")" or self.text.sees_keyword("or") or self.text.sees_keyword("and"):
            raise self.text.bad("something is missing before this", start)
        if self.text.next() == "(":
            self.text.at += 1
            self.text.skip_space()
            condition = self._either(depth + 1)
            if self.text.ended():
                raise self.text.bad("this parenthesis is never closed", start)
            self.text.at += 1
        else:
            condition = self._term()
        self.text.skip_space()
        return Not(condition) if is_negated else condition

    def _term(self) -> Condition:
        start = self.text.at
        if self.text.next() == '"':
            return HasWord(self.word_columns, Pattern(self.text.quoted_text()))
        if _OPERATOR.match(self.text.expression, start):
            raise self.text.bad("a column is missing before this", start)
        key = _KEY.match(self.text.expression, start)
        if key is not None:
            detached = _DETACHED_OPERATOR.match(self.text.expression, key.end())
            operator = _OPERATOR.match(self.text.expression, detached.start(1) if detached else key.end())
            if operator is not None:
                return self.comparisons.read(key[0], operator[0], start, operator.end())
        word = _WORD.match(self.text.expression, start)
        if word is None:
            raise self.text.bad("something is missing here", start)
        self.text.at = word.end()
        return HasWord(self.word_columns, Pattern(word[0], "*" in word[0]))
