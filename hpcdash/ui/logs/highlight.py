"""Colours of log lines without their own: levels, tracebacks, numbers, NaN, paths.

Which line explains a failure is judged by domain/root_cause.py.
"""

from __future__ import annotations

import re
from functools import lru_cache

# The level is after a timestamp and a logger's name; further on, the same word is part of the
# message.
_LEVEL_WITHIN = 160
_LEVELS = frozenset({"error", "warning", "note", "debug"})

# Each alternative is linear: its repeats cannot match what follows them, and a lookbehind keeps it
# from starting twice in one word.
_TOKEN = re.compile(
    r"(?P<path>\b(?:https?|ftp|s3|gs|file)://[^\s\"'<>)\]]+|(?<![\w./~])(?:~|\.{1,2})?(?:/[\w.@%+=-]+){2,}/?)"
    r"|(?P<time>(?<![\w.-])\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?)?(?!\w)"
    r"|(?<![\w.:])\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?![\w:]))"
    r"|(?P<error>(?<![\w-])(?:ERROR|FATAL|CRITICAL|(?:[Ff]atal|[Ee]rror)(?=:))(?![\w-])"
    r"|\bNCCL WARN Cuda failure\b)"
    r"|(?P<warning>(?<![\w-])(?:WARN(?:ING)?|[Ww]arning(?=:)|[A-Z][a-z]{1,20}Warning(?=:))(?![\w-]))"
    r"|(?P<note>(?<![\w-])(?:INFO|NOTICE)(?![\w-]))"
    r"|(?P<debug>(?<![\w-])(?:DEBUG|TRACE)(?![\w-]))"
    r"|(?P<bad>(?<![\w.])[+-]?(?:[Nn]a[Nn]|NAN|[Ii]nf(?:inity)?)(?![\w-]))"
    r"|(?P<number>(?<![\w.])[+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?"
    r"(?: ?(?:%|[kKMGTP]i?B(?:/s)?|B/s|GPUs?|ms|us|µs|ns|it/s|s/it|s|min|h|MHz|GHz|°C|W)|[KMBT])?(?!\w|\.\d))"
)
# Prefixes of torchrun and `srun --label`: `[rank0]:`, `3:`.
_PREFIX = r"(?:\[?[\w ]{1,16}\]?: ?)?"
_TRACEBACK = re.compile(
    _PREFIX
    + r"(?:Traceback \(most recent call last\):|(?:During handling of|The above exception) .*)"
)
_FRAME = re.compile(_PREFIX + r' {2,8}File "(?P<path>[^"]{1,1000})", line (?P<number>\d{1,9})')
_EXCEPTION = re.compile(
    _PREFIX
    + r"(?P<error>(?:[A-Za-z_]\w{0,60}\.){0,8}[A-Z]\w{0,60}(?:Error|Exception|Interrupt|Exit|Killed)\b)(?=:|$)"
)
# Start, end and the name of a style.
Highlight = tuple[int, int, str]


@lru_cache(maxsize=2048)
def highlights(text: str, is_beginning: bool = True) -> tuple[Highlight, ...]:
    """Return the parts to colour in a piece of a line, ordered, without overlaps, in linear time.

    Levels, tracebacks and exceptions count only in the first piece of a line.
    """
    found: list[Highlight] = []
    start = 0
    if is_beginning:
        whole = _TRACEBACK.match(text)
        if whole:
            return ((whole.start(), whole.end(), "error"),)
        opening = _FRAME.match(text) or _EXCEPTION.match(text)
        if opening:
            found += [(*opening.span(name), name) for name in opening.groupdict()]
            start = opening.end()
    for match in _TOKEN.finditer(text, start):
        kind = match.lastgroup or ""
        if kind in _LEVELS:
            has_level = any(name in _LEVELS for _, _, name in found)
            if not is_beginning or has_level or match.start() > _LEVEL_WITHIN:
                continue
        found.append((match.start(), match.end(), kind))
    return tuple(found)
