"""Reads lines by a person's own regular expressions. Knows no other format.

Named groups say what is what: `step`, `epoch`, `tokens`, and each other name is a metric's: `loss=(?P<loss>[0-9.]+)`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from hpcdash.errors import ConfigError
from hpcdash.logs.metric_words import NUMBER, Reading, number_of, seconds_of_line, sort_pairs

_EXACT_NUMBER = re.compile(NUMBER)
_PLACES = {"step", "epoch", "tokens"}


def compile_patterns(patterns: Sequence[str]) -> tuple[re.Pattern[str], ...]:
    """The expressions, compiled; raises ConfigError naming one that is none, or that names no metric."""
    compiled = []
    for pattern in patterns:
        try:
            expression = re.compile(pattern)
        except (re.error, OverflowError, RecursionError) as error:
            raise ConfigError(
                f"the pattern {pattern!r} is no regular expression: {error}", "Correct it; Python's `re` explains them."
            ) from None
        if not set(expression.groupindex) - _PLACES:
            raise ConfigError(
                f"the pattern {pattern!r} names no metric", "Give it a named group, as in loss=(?P<loss>[0-9.]+)."
            )
        compiled.append(expression)
    return tuple(compiled)


def read_pattern(pattern: re.Pattern[str], text: str) -> Reading | None:
    """What a pattern finds in a line: None where it does not fit, or no metric it names is a number there."""
    found = pattern.search(text)
    if found is None:
        return None
    said = {name: (raw or "").strip() for name, raw in found.groupdict().items()}
    pairs = [(name, number_of(raw)) for name, raw in said.items() if _EXACT_NUMBER.fullmatch(raw)]
    places = sort_pairs("pattern", [pair for pair in pairs if pair[0] in _PLACES], seconds_of_line(text))
    values = {name: value for name, value in pairs if name not in _PLACES}
    return places._replace(values=values) if values else None
