"""The filter language: from `state:running limit>2h (train or eval) !debug` to a mask over a
table.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from datetime import UTC, tzinfo

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from hpcdash.domain.columns import as_array
from hpcdash.domain.query_conditions import (
    All,
    ColumnKind,
    Either,
    Everything,
    FilterCondition,
    HasWord,
    InstantCompares,
    InstantIs,
    NamesHold,
    Not,
    NumberCompares,
    NumberIs,
    Pattern,
    TextIs,
    TextMatches,
    column_kind,
    read_number,
    read_switch,
)
from hpcdash.domain.schema import public_names
from hpcdash.domain.states import JobState, NodeState
from hpcdash.domain.text import counted, without_surrogates
from hpcdash.domain.units import parse_instant
from hpcdash.errors import QueryError

_REST_OF_INSTANT = re.compile(r"(?:\s+[a-zA-Z]{1,7})?\s+ago(?=[\s)]|$)", re.IGNORECASE)
_REST_OF_DATE = re.compile(r"\s+[0-9]{1,2}:[0-9]{2}(?::[0-9]{2})?(?=[\s)]|$)")
_DATE = re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}")
_ID_WITHOUT_SERVER = re.compile(r"[0-9]+(\[[0-9,:-]*\])?")
_STATES = frozenset(state.value for state in (*JobState, *NodeState))
MAX_DEPTH = 40
MAX_LENGTH = 4000
_JOB_WORD_COLUMNS = ("name", "id", "_other_id", "user", "queue", "labels")
_NODE_WORD_COLUMNS = ("name", "state", "queues", "reason", "features")
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OPERATOR = re.compile(r"!:|!=|!~|>=|<=|==|:|=|>|<|~")
_DETACHED_OPERATOR = re.compile(r"\s+(" + _OPERATOR.pattern + ")")
_WORD = re.compile(r"[^\s()]+")
_LAST_KEY = re.compile(r"(?:^|(?<=[\s(!]))([A-Za-z_][A-Za-z0-9_]*)?$")
_LAST_VALUE = re.compile(
    r"(?:^|(?<=[\s(!]))([A-Za-z_][A-Za-z0-9_]*)(?:!?[:=])(?:[^\s\",]*,)*([^\s\",]*)$"
)


class Value(Struct, frozen=True):
    """Operand of a comparison with a column; `position` is where it stands in the filter."""

    text: str
    is_quoted: bool
    position: int

    @property
    def is_none(self) -> bool:
        return not self.is_quoted and self.text.lower() == "none"

    @property
    def pattern(self) -> Pattern:
        return (
            Pattern(None)
            if self.is_none
            else Pattern(self.text, not self.is_quoted and "*" in self.text)
        )


class QueryText:
    """Scanner of an expression; `at` is the offset of the next character.

    It raises QueryError for a malformed expression.
    """

    def __init__(self, expression: str) -> None:
        self.expression = expression
        self.at = 0

    def is_at_end(self) -> bool:
        return self.at >= len(self.expression)

    def peek(self) -> str:
        """Return the next character; there must be one."""
        return self.expression[self.at]

    def error(self, message: str, position: int) -> QueryError:
        """Return an error to raise, with the expression and the position of its fault."""
        return QueryError(message, self.expression, position)

    def skip_space(self) -> None:
        while not self.is_at_end() and self.peek().isspace():
            self.at += 1

    def skip_not(self) -> bool:
        """Skip `!` or `not`; return False if neither is next."""
        if not self.is_at_end() and self.peek() == "!":
            self.at += 1
            self.skip_space()
            return True
        return self.skip_keyword("not")

    def skip_keyword(self, keyword: str) -> bool:
        """Skip a keyword and the space after it; return False if it is not the next word."""
        if not self.is_at_keyword(keyword):
            return False
        self.at += len(keyword)
        self.skip_space()
        return True

    def is_at_keyword(self, keyword: str) -> bool:
        end = self.at + len(keyword)
        return self.expression[self.at : end].lower() == keyword and (
            end == len(self.expression)
            or self.expression[end].isspace()
            or self.expression[end] in '()!"'
        )

    def quoted_text(self) -> str:
        """Read a text in quotes, the first of which is next."""
        start = self.at
        text: list[str] = []
        self.at += 1
        while not self.is_at_end() and self.peek() != '"':
            if self.expression[self.at : self.at + 2] in {'\\"', "\\\\"}:
                self.at += 1
            text.append(self.peek())
            self.at += 1
        if self.is_at_end():
            raise self.error("unclosed quote", start)
        self.at += 1
        return "".join(text)

    def raw_text(self, *, ends_at_comma: bool) -> str:
        """Read up to a space, a closing parenthesis that was not opened, or a comma outside
        brackets.
        """
        start = self.at
        parentheses = brackets = 0
        while not self.is_at_end() and not self.peek().isspace():
            character = self.peek()
            if character == "\\" and not ends_at_comma:
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
            elif character == "," and ends_at_comma:
                break
            self.at += 1
        self.at = min(self.at, len(self.expression))
        return self.expression[start : self.at]

    def values(self, kind: ColumnKind) -> Iterator[Value]:
        """Read the values between commas, at least one."""
        while True:
            start = self.at
            if not self.is_at_end() and self.peek() == '"':
                yield Value(self.quoted_text(), True, start)
            else:
                text = self.raw_text(ends_at_comma=True)
                if kind is ColumnKind.INSTANT:
                    text += self._instant_rest(text)
                if not text:
                    raise self.error("a value is missing here", start)
                yield Value(text, False, start)
            if self.is_at_end() or self.peek() != ",":
                return
            self.at += 1

    def _instant_rest(self, text: str) -> str:
        rest = _REST_OF_INSTANT.match(self.expression, self.at)
        if rest is None and _DATE.fullmatch(text):
            rest = _REST_OF_DATE.match(self.expression, self.at)
        if rest is None:
            return ""
        self.at = rest.end()
        return rest[0]


# Common names of a column; the first that the table has is selected.
ALIASES: dict[str, tuple[str, ...]] = {
    "limit": ("limit_seconds",),
    "elapsed": ("elapsed_seconds",),
    "time": ("elapsed_seconds",),
    "memory": ("memory_bytes",),
    "mem": ("memory_bytes",),
    "memory_used": ("memory_used_bytes",),
    "partition": ("queue", "queues"),
    "queue": ("queues", "name"),
    "status": ("state",),
    "native": ("native_state",),
    "submitted": ("submitted_at",),
    "eligible": ("eligible_at",),
    "started": ("started_at",),
    "ends": ("ends_at",),
    "since": ("reason_since",),
    "node": ("node_list", "name"),
    "nodelist": ("node_list",),
    "job": ("id",),
    "jobid": ("id",),
    "array": ("array_id",),
    "task": ("array_task",),
    "cpu": ("cpus",),
    "gpu": ("gpus",),
    "exit": ("exit_code",),
    "signal": ("exit_signal",),
    "flag": ("flags",),
    "feature": ("features",),
    "dir": ("work_dir",),
    "stdout": ("stdout_path",),
    "stderr": ("stderr_path",),
}


def filter_keys(schema: pa.Schema) -> dict[str, str]:
    """Return the keys that a filter on this schema may use, with their columns."""
    columns = public_names(schema)
    keys = dict(zip(columns, columns, strict=True))
    for alias, targets in ALIASES.items():
        target = next((name for name in targets if name in columns), None)
        if target is not None:
            keys.setdefault(alias, target)
    return keys


def _id_patterns(value: Value) -> tuple[Pattern, ...]:
    """Return the patterns of a job ID.

    Without a server it stands for any PBS server, and a number for its tasks and components too.
    """
    if value.is_none or value.is_quoted or not _ID_WITHOUT_SERVER.fullmatch(value.text):
        return (value.pattern,)
    parts = () if "[" in value.text else (Pattern(f"{value.text}{sign}*", True) for sign in "_[+")
    return (value.pattern, Pattern(f"{value.text}.*", True), *parts)


def _state_pattern(value: Value) -> Pattern:
    """Return the pattern of a state, or of those with a beginning: `comp` is completing and
    completed.
    """
    if value.is_none or value.is_quoted or value.text.lower() in _STATES:
        return value.pattern
    return Pattern(value.text.rstrip("*") + "*", True)


class Filter(Struct, frozen=True):
    """A parsed filter, for any number of tables."""

    expression: str
    condition: FilterCondition

    @property
    def matches_all(self) -> bool:
        return isinstance(self.condition, Everything)

    def mask(self, table: pa.Table, now_epoch: float) -> pa.Array:
        """Return a boolean per row, without nulls; `2h ago` counts from `now_epoch` (seconds)."""
        return self.condition.mask(table, now_epoch)


def parse(expression: str, schema: pa.Schema, zone: tzinfo = UTC) -> Filter:
    """Parse a filter for tables of a schema of domain.schema; an empty filter matches every row.

    `zone` is the time zone of `today` and `10:30`. Raises only QueryError, with the offset of the
    bad token.
    """
    if len(expression) > MAX_LENGTH:
        raise QueryError(
            f"a filter can have at most {MAX_LENGTH} characters", expression[:60] + "…", 0
        )
    return Filter(expression, _Parser(without_surrogates(expression), schema, zone).parse())


def apply(table: pa.Table, requested: Filter, now_epoch: float) -> pa.Table:
    """Return the rows that a filter matches, in their order."""
    return table if requested.matches_all else table.filter(requested.mask(table, now_epoch))


def count_unknown_gpus(table: pa.Table, requested: Filter, now_epoch: float) -> int:
    """Count the rows with unknown GPUs that a filter on GPUs could match; 0 for other filters."""
    loose = _any_gpus(requested.condition)
    if loose == requested.condition or not table["gpus"].null_count:
        return 0
    could_match = pc.and_(loose.mask(table, now_epoch), pc.is_null(as_array(table["gpus"])))
    return int(pc.sum(could_match).as_py() or 0)


def format_unknown_gpus(count: int) -> str:
    """Format `GPUs of 3 rows unknown`; '' for none."""
    return f"GPUs of {counted(count, 'row')} unknown" if count else ""


def _any_gpus(condition: FilterCondition) -> FilterCondition:
    """Return the condition with its comparisons of GPUs replaced by Everything."""
    match condition:
        case NumberCompares(column="gpus") | NumberIs(column="gpus"):
            return Everything()
        case Not(part):
            loose = _any_gpus(part)
            return loose if isinstance(loose, Everything) else Not(loose)
        case All(parts) | Either(parts):
            return type(condition)(tuple(map(_any_gpus, parts)))
    return condition


class _Parser:
    """Parser of one expression: its words, comparisons and parentheses."""

    def __init__(self, expression: str, schema: pa.Schema, zone: tzinfo) -> None:
        self.text = QueryText(expression)
        self.schema = schema
        self.zone = zone
        self.keys = filter_keys(schema)
        names = schema.names
        by_column = {"id": _JOB_WORD_COLUMNS, "features": _NODE_WORD_COLUMNS, "name": ("name",)}
        columns = next((columns for key, columns in by_column.items() if key in names), ())
        self.word_columns = tuple(name for name in columns if name in names)

    def parse(self) -> FilterCondition:
        self.text.skip_space()
        if self.text.is_at_end():
            return Everything()
        condition = self._either(0)
        if not self.text.is_at_end():
            raise self.text.error("unmatched closing parenthesis", self.text.at)
        return condition

    def _either(self, depth: int) -> FilterCondition:
        if depth > MAX_DEPTH:
            raise self.text.error(
                f"parentheses can be nested at most {MAX_DEPTH} deep", self.text.at
            )
        parts = [self._all(depth)]
        while self.text.skip_keyword("or"):
            parts.append(self._all(depth))
        return parts[0] if len(parts) == 1 else Either(tuple(parts))

    def _all(self, depth: int) -> FilterCondition:
        parts = [self._negatable(depth)]
        while self.text.skip_keyword("and") or not self._is_group_end():
            parts.append(self._negatable(depth))
        return parts[0] if len(parts) == 1 else All(tuple(parts))

    def _is_group_end(self) -> bool:
        return self.text.is_at_end() or self.text.peek() == ")" or self.text.is_at_keyword("or")

    def _negatable(self, depth: int) -> FilterCondition:
        is_negated = False
        while self.text.skip_not():
            is_negated = not is_negated
        start = self.text.at
        if self.text.is_at_end():
            raise self.text.error("missing condition here", start)
        if self._is_group_end() or self.text.is_at_keyword("and"):
            raise self.text.error("missing condition before this", start)
        if self.text.peek() == "(":
            self.text.at += 1
            self.text.skip_space()
            condition = self._either(depth + 1)
            if self.text.is_at_end():
                raise self.text.error("unclosed parenthesis", start)
            self.text.at += 1
        else:
            condition = self._term()
        self.text.skip_space()
        return Not(condition) if is_negated else condition

    def _term(self) -> FilterCondition:
        start = self.text.at
        if self.text.peek() == '"':
            return HasWord(self.word_columns, Pattern(self.text.quoted_text()))
        if _OPERATOR.match(self.text.expression, start):
            raise self.text.error("a column is missing before this", start)
        key = _KEY.match(self.text.expression, start)
        if key is not None:
            detached = _DETACHED_OPERATOR.match(self.text.expression, key.end())
            operator = _OPERATOR.match(
                self.text.expression, detached.start(1) if detached else key.end()
            )
            if operator is not None:
                return self._comparison(key[0], operator[0], start, operator.end())
        word = _WORD.match(self.text.expression, start)
        if word is None:
            raise self.text.error("missing condition here", start)
        self.text.at = word.end()
        return HasWord(self.word_columns, Pattern(word[0], "*" in word[0]))

    def _comparison(self, key: str, operator: str, start: int, value_at: int) -> FilterCondition:
        """Parse the values after a key and its operator.

        `start` is the position of the key, `value_at` that of the operator's end.
        """
        name = self.keys.get(key.lower())
        if name is None:
            near = difflib.get_close_matches(key.lower(), self.keys, 1, 0.6)
            hint = f"did you mean {near[0]}?" if near else 'quote it to search for the text: "…"'
            raise self.text.error(f"no column {key}; {hint}", start)
        self.text.at = value_at
        self.text.skip_space()
        if self.text.is_at_end() or self.text.peek() == ")":
            raise self.text.error(f"a value is missing after {key}{operator}", self.text.at)
        kind = column_kind(name, self.schema.field(name).type)
        if operator in {"~", "!~"}:
            condition = self._regex(key, name, kind)
            return Not(condition) if operator == "!~" else condition
        if operator in {">", ">=", "<", "<="}:
            return self._ordered(key, name, kind, operator)
        condition = self._equal(name, kind, list(self.text.values(kind)))
        return Not(condition) if operator[0] == "!" else condition

    def _equal(self, name: str, kind: ColumnKind, values: list[Value]) -> FilterCondition:
        if kind is ColumnKind.NAMES:
            return NamesHold(name, tuple(value.pattern for value in values))
        if kind is ColumnKind.TEXT:
            patterns: list[Pattern] = []
            for value in values:
                if name in {"id", "array_id"}:
                    patterns += _id_patterns(value)
                else:
                    patterns.append(_state_pattern(value) if name == "state" else value.pattern)
            return TextIs(name, tuple(patterns))
        if kind is ColumnKind.INSTANT:
            return InstantIs(name, tuple(map(self._parse_instant, values)), self.zone)
        return NumberIs(name, tuple(self._parse_number(kind, value) for value in values))

    def _ordered(self, key: str, name: str, kind: ColumnKind, operator: str) -> FilterCondition:
        values = list(self.text.values(kind))
        value = values[0]
        if len(values) > 1:
            raise self.text.error(f"{key}{operator} accepts only one value", values[1].position)
        if name == "id" and "_number" in self.schema.names:
            name = "_number"
            kind = ColumnKind.COUNT
        if kind in {ColumnKind.TEXT, ColumnKind.NAMES, ColumnKind.SWITCH}:
            raise self.text.error(
                f"{key} holds {kind.value}, which cannot be ordered; use {key}:{value.text}",
                value.position,
            )
        if value.is_none:
            raise self.text.error(f"none cannot be ordered; use {key}:none", value.position)
        if kind is ColumnKind.INSTANT:
            self._parse_instant(value)
            return InstantCompares(name, operator, value.text, self.zone)
        number = self._parse_number(kind, value)
        if number is None:
            raise self.text.error(
                f"{value.text} cannot be compared; use {key}:none", value.position
            )
        return NumberCompares(name, operator, number)

    def _regex(self, key: str, name: str, kind: ColumnKind) -> FilterCondition:
        start = self.text.at
        if kind not in {ColumnKind.TEXT, ColumnKind.NAMES}:
            raise self.text.error(
                f"{key} holds {kind.value}; a regular expression is for text", start
            )
        condition = TextMatches(
            name,
            self.text.quoted_text()
            if self.text.peek() == '"'
            else self.text.raw_text(ends_at_comma=False),
        )
        try:
            condition.check()
        except pa.ArrowInvalid as error:
            reason = str(error).removeprefix("Invalid regular expression: ")
            raise self.text.error(f"bad regular expression: {reason}", start) from None
        return condition

    def _parse_number(self, kind: ColumnKind, value: Value) -> int | float | None:
        if value.is_none:
            return None
        try:
            return (
                read_switch(value.text)
                if kind is ColumnKind.SWITCH
                else read_number(kind, value.text)
            )
        except ValueError as error:
            raise self.text.error(str(error), value.position) from None

    def _parse_instant(self, value: Value) -> str | None:
        """Return the text of an instant, which is evaluated for each table; None for `none`."""
        if value.is_none:
            return None
        try:
            # Whether a text is an instant depends on now only at the ends of the calendar.
            parse_instant(value.text, 1_000_000_000, self.zone)
        except ValueError as error:
            raise self.text.error(str(error), value.position) from None
        return value.text


def completions(prefix: str, schema: pa.Schema, table: pa.Table | None = None) -> list[str]:
    """Complete `prefix` to whole filters: its last word to a key, or its last value to a known one.

    Values are the states, yes and no, and, with a `table`, the distinct words of its columns.
    Nothing is offered for a prefix that is too long for a filter.
    """
    if len(prefix) > MAX_LENGTH:
        return []
    keys = filter_keys(schema)
    if value := _LAST_VALUE.search(prefix):
        name = keys.get(value[1].lower())
        fragment = value[2].lower()
        known = _known_values(name, schema, table) if name else []
        return [
            prefix[: value.start(2)] + word
            for word in known
            if word.lower().startswith(fragment) and word != value[2]
        ]
    if key := _LAST_KEY.search(prefix):
        fragment = (key[1] or "").lower()
        # An alias is offered where the column's own name does not begin the same way.
        names = [
            name
            for name in keys
            if name.startswith(fragment)
            and (keys[name] == name or not keys[name].startswith(fragment))
        ]
        return [prefix[: len(prefix) - len(fragment)] + name + ":" for name in names]
    return []


def _known_values(name: str, schema: pa.Schema, table: pa.Table | None) -> list[str]:
    column_type = schema.field(name).type
    if table is not None and name in table.column_names and pa.types.is_dictionary(column_type):
        text = pc.unique(table[name]).to_pylist()
        return sorted(_quoted(word) for word in text if word is not None)
    if name == "state":
        return [state.value for state in (JobState if "id" in schema.names else NodeState)]
    return ["yes", "no"] if pa.types.is_boolean(column_type) else []


def _quoted(word: str) -> str:
    if re.fullmatch(r"[^\s()\",*\\]+", word):
        return word
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'
