"""A user's regular expressions for lines of a log, with a limit on their time.

Named groups are `step`, `last_step`, `epoch`, `tokens`, and each other name is a metric's:
`loss=(?P<loss>[0-9.]+)`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from hpcdash.domain.text import counted
from hpcdash.errors import ConfigError

PLACES = {"step", "last_step", "epoch", "tokens"}
# A line that no format fits, and the setting that reads it.
EXAMPLE_LINE = "round 12: objective -0.31"
EXAMPLE = """\
[metrics]
patterns = ['round (?P<step>\\d+): objective (?P<loss>\\S+)']"""
# Time limit of one line; a usual line takes some millionths of a second.
LINE_SECONDS = 0.25
# Time limit of all lines: the burst, and so much for each line read.
_BURST_SECONDS = 1.0
_SECONDS_A_LINE = 1e-4
# regex writes counts out, and would take all memory for some; lines have 8 KiB at most.
_MAX_UNROLLED = 50_000
_TOKEN = re.compile(
    r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{(?P<count>[0-9]+)(?:,[0-9]*)?\}|.", re.DOTALL
)
# On a machine that is busy a limit on real time may pass without any work having been done.
_MAX_TRIES = 8
_REMEDY = ": a repetition within a repetition, as in (a+)+, may be the cause"


class MetricPattern:
    """Regular expression with its cost in this process; if it takes too long, it is given up.

    Raises ValueError for a text that is no expression.
    """

    def __init__(self, text: str) -> None:
        # Python's own `re` cannot be stopped, and keeps every other thread waiting meanwhile.
        import regex

        self.text = text
        try:
            self._expression: Any = regex.compile(text)
        except regex.error as error:
            raise ValueError(str(error)) from None
        self._seconds = 0.0
        self._lines = 0
        self._lines_left_out = 0
        self.is_given_up = False

    @property
    def problem(self) -> str:
        """Problem of a pattern or of lines that took too long and are left out; '' for none."""
        if self.is_given_up:
            effect = "takes too long and is no longer used"
        elif self._lines_left_out:
            effect = f"took too long on {counted(self._lines_left_out, 'line')} (skipped)"
        else:
            return ""
        return f"the pattern {self.text!r} of [metrics] {effect}{_REMEDY}"

    def search(self, text: str) -> dict[str, str | None] | None:
        """Return the named groups of the first match; None if there is none, or none in time."""
        if self.is_given_up:
            return None
        # Not real time, of which other processes take their part.
        start = time.thread_time()
        try:
            match = self._search(text, start)
        except TimeoutError:
            self._lines_left_out += 1
            match = None
        self._lines += 1
        self._seconds += min(time.thread_time() - start, LINE_SECONDS)
        self.is_given_up = self._seconds > _BURST_SECONDS + _SECONDS_A_LINE * self._lines
        return None if match is None else match.groupdict()

    def _search(self, text: str, start: float) -> Any:
        """Return the match or None; raises TimeoutError."""
        for _ in range(_MAX_TRIES):
            try:
                return self._expression.search(text, timeout=LINE_SECONDS)
            except TimeoutError:
                if time.thread_time() - start >= LINE_SECONDS / 2:
                    raise
        raise TimeoutError


def compile_patterns(patterns: Sequence[str]) -> tuple[MetricPattern, ...]:
    """Compile expressions; raises ConfigError for one that is invalid or has no metric."""
    return tuple(map(_compiled, patterns))


def pattern_problems(patterns: Iterable[str]) -> list[str]:
    """Return the messages on compiled patterns that were left out because they took too long."""
    return [problem for text in patterns if (problem := _compiled(text).problem)]


# All logs share a pattern and the count of its cost.
@lru_cache(maxsize=256)
def _compiled(pattern: str) -> MetricPattern:
    try:
        names = set(re.compile(pattern).groupindex)
        if _unrolled(pattern) > _MAX_UNROLLED:
            raise ValueError("its repeat count exceeds the maximum line length")
        compiled = MetricPattern(pattern)
    except (ValueError, re.error, OverflowError, RecursionError) as error:
        raise ConfigError(
            f"the pattern {pattern!r} is not a regular expression: {error}",
            "Correct it; see the documentation of Python's `re`.",
        ) from None
    if not names - PLACES:
        raise ConfigError(
            f"the pattern {pattern!r} has no metric",
            "Add a named group, as in loss=(?P<loss>[0-9.]+).",
        )
    return compiled


def _unrolled(pattern: str) -> int:
    """Return the number of characters, sets and the like in an expression without counts.

    Counts (`{8}`) are expanded.
    """
    sizes = [0]
    last = 0
    for token in _TOKEN.finditer(pattern):
        if token[0] == "(":
            sizes.append(0)
        elif token[0] == ")":
            last = sizes.pop()
            sizes[-1] += last
        elif token["count"]:
            sizes[-1] += last * (int(token["count"]) - 1)
            last *= int(token["count"])
        else:
            sizes[-1] += 1
            last = 1
    return sizes[0]
