"""What `key:value`, `key>value` and `key~value` of a filter ask of a table: the key's column, its kind, the values."""

from __future__ import annotations

import difflib
import re
from datetime import tzinfo

import pyarrow as pa

from hpcdash.domain.conditions import (
    Condition,
    InstantCompares,
    InstantIs,
    Kind,
    NodesHold,
    Not,
    NumberCompares,
    NumberIs,
    Pattern,
    TextIs,
    TextMatches,
    kind_of,
    read_number,
    read_switch,
)
from hpcdash.domain.query_keys import keys_of
from hpcdash.domain.query_text import QueryText, Value
from hpcdash.domain.states import JobState, NodeState
from hpcdash.domain.units import parse_instant

_ID_WITHOUT_SERVER = re.compile(r"[0-9]+(\[[0-9,:-]*\])?")
_STATES = frozenset(state.value for state in (*JobState, *NodeState))


class Comparisons:
    """Reads the values of one comparison after the other from a filter's text; `schema` is the table's."""

    def __init__(self, text: QueryText, schema: pa.Schema, zone: tzinfo) -> None:
        self.text = text
        self.schema = schema
        self.zone = zone
        self.keys = keys_of(schema)

    def read(self, key: str, operator: str, start: int, value_at: int) -> Condition:
        """What follows a key and its operator; `start` is where the key is, `value_at` where the operator ended."""
        name = self.keys.get(key.lower())
        if name is None:
            near = difflib.get_close_matches(key.lower(), self.keys, 1, 0.6)
            hint = f"did you mean {near[0]}?" if near else 'quote it to look for the words: "…"'
            raise self.text.bad(f"there is no column {key}; {hint}", start)
        self.text.at = value_at
        self.text.skip_space()
        if self.text.ended() or self.text.next() == ")":
            raise self.text.bad(f"a value is missing after {key}{operator}", self.text.at)
        kind = kind_of(name, self.schema.field(name).type)
        if operator in {"~", "!~"}:
            condition = self._regex(key, name, kind)
            return Not(condition) if operator == "!~" else condition
        if operator in {">", ">=", "<", "<="}:
            return self._ordered(key, name, kind, operator)
        condition = self._equal(name, kind, list(self.text.values(kind)))
        return Not(condition) if operator[0] == "!" else condition

    def _equal(self, name: str, kind: Kind, values: list[Value]) -> Condition:
        if kind is Kind.TEXT and name in {"id", "array_id"}:
            return TextIs(name, tuple(pattern for value in values for pattern in _id_patterns(value)))
        if kind is Kind.TEXT:
            patterns = (_state_pattern(value) if name == "state" else value.pattern for value in values)
            return TextIs(name, tuple(patterns))
        if kind is Kind.NODES:
            return NodesHold(name, tuple(value.pattern for value in values))
        for value in values:
            self._check(kind, value)
        if kind is Kind.INSTANT:
            return InstantIs(name, tuple(None if value.is_none else value.text for value in values), self.zone)
        if kind is Kind.SWITCH:
            return NumberIs(name, tuple(None if value.is_none else read_switch(value.text) for value in values))
        return NumberIs(name, tuple(None if value.is_none else read_number(kind, value.text) for value in values))

    def _ordered(self, key: str, name: str, kind: Kind, operator: str) -> Condition:
        values = list(self.text.values(kind))
        value = values[0]
        if len(values) > 1:
            raise self.text.bad(f"{key}{operator} takes one value", values[1].position)
        if name == "id" and "_number" in self.schema.names:
            name, kind = "_number", Kind.COUNT
        if kind in {Kind.TEXT, Kind.NODES, Kind.SWITCH}:
            raise self.text.bad(
                f"{key} holds {kind.value}, which has no order; write {key}:{value.text}", value.position
            )
        if value.is_none:
            raise self.text.bad(f"none is neither more nor less; write {key}:none", value.position)
        self._check(kind, value)
        if kind is Kind.INSTANT:
            return InstantCompares(name, operator, value.text, self.zone)
        number = read_number(kind, value.text)
        if number is None:
            raise self.text.bad(f"nothing is compared with {value.text}; write {key}:none", value.position)
        return NumberCompares(name, operator, number)

    def _regex(self, key: str, name: str, kind: Kind) -> Condition:
        start = self.text.at
        if kind not in {Kind.TEXT, Kind.NODES}:
            raise self.text.bad(f"{key} holds {kind.value}; a regular expression is for text", start)
        condition = TextMatches(
            name, self.text.quoted_text() if self.text.next() == '"' else self.text.raw_text(commas=False)
        )
        try:
            condition.check()
        except pa.ArrowInvalid as error:
            reason = str(error).removeprefix("Invalid regular expression: ")
            raise self.text.bad(f"bad regular expression: {reason}", start) from None
        return condition

    def _check(self, kind: Kind, value: Value) -> None:
        if value.is_none:
            return
        try:
            if kind is Kind.INSTANT:
                # Whether a text is an instant depends on now only at the ends of the calendar.
                parse_instant(value.text, 1_000_000_000, self.zone)
            elif kind is Kind.SWITCH:
                read_switch(value.text)
            else:
                read_number(kind, value.text)
        except ValueError as error:
            raise self.text.bad(str(error), value.position) from None


def _id_patterns(value: Value) -> tuple[Pattern, ...]:
    """An id, at any server of PBS's where it names none; a number is its array's tasks and its components too."""
    if value.is_none or value.is_quoted or not _ID_WITHOUT_SERVER.fullmatch(value.text):
        return (value.pattern,)
    parts = () if "[" in value.text else (Pattern(f"{value.text}{sign}*", True) for sign in "_[+")
    return (value.pattern, Pattern(f"{value.text}.*", True), *parts)


def _state_pattern(value: Value) -> Pattern:
    """A state, or the beginning of some: `run` is running, `comp` is completing and completed."""
    if value.is_none or value.is_quoted or value.text.lower() in _STATES:
        return value.pattern
    return Pattern(value.text.rstrip("*") + "*", True)
