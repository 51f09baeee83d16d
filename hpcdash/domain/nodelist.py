"""Lists of node names in brackets, `n[1-3,07],g1`, to names and back."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from functools import lru_cache
from itertools import product
from math import prod
from typing import TypeAlias

DEFAULT_LIMIT = 100_000
_BALANCED = re.compile(r"(?:[^\[\]]|\[[^\[\]]*\])*")
_PART = re.compile(r"(?:[^\[\],]|\[[^\[\]]*\])+")
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_NUMBER = re.compile(r"[0-9]{1,18}")
_TRAILING_NUMBER = re.compile(r"(.*?)([0-9]{1,18})", re.DOTALL)


# One part of a list: literals, and the ranges (low, high, width) in the brackets between them.
_Part: TypeAlias = tuple[list[str], list[list[tuple[int, int, int]]]]


def expand(expression: str, limit: int = DEFAULT_LIMIT) -> list[str]:
    """Return the names of `n[1-3,07-09],g1,rack[1-2]n[01-03]`, in the order written.

    Raises ValueError if the brackets make no sense or there are more than `limit` names.
    """
    total = count(expression)
    if total > limit:
        raise ValueError(f"{_excerpt(expression)} names {total} nodes, more than {limit}")
    names: list[str] = []
    for literals, bodies in _parse(expression):
        pieces = [[literals[0]]]
        for body, literal in zip(bodies, literals[1:], strict=True):
            numbers = [
                f"{number:0{width}d}"
                for low, high, width in body
                for number in range(low, high + 1)
            ]
            pieces += [numbers, [literal]]
        names += map("".join, product(*pieces))
    return names


def count(expression: str) -> int:
    """Count the names in a list without building them; raises ValueError like `expand`."""
    return sum(
        prod(sum(high - low + 1 for low, high, _ in body) for body in bodies)
        for _, bodies in _parse(expression)
    )


@lru_cache(maxsize=65_536)
def contains(expression: str, name: str) -> bool:
    """Return whether a list contains a name, without building its names; case does not matter.

    A list that cannot be parsed contains nothing but itself.
    """
    requested = name.lower()
    if "[" not in expression:
        return requested in expression.lower().split(",")
    try:
        parts = _parse(expression.lower())
    except ValueError:
        return requested == expression.lower()
    return any(_is_among(requested, part) for part in parts)


def compress(names: Iterable[str]) -> str:
    """Format names as Slurm does: sorted, each once, numbers at their ends in brackets.

    Zero padding is preserved.
    """
    by_prefix: defaultdict[str, set[str]] = defaultdict(set)
    for name in names:
        numbered = _TRAILING_NUMBER.fullmatch(name)
        prefix, digits = numbered.groups() if numbered else (name, "")
        by_prefix[prefix].add(digits)
    shown: list[str] = []
    for prefix in sorted(by_prefix):
        digits = by_prefix[prefix]
        if "" in digits:
            shown.append(prefix)
            digits.discard("")
        runs = _runs(digits)
        if len(digits) == 1:
            shown.append(prefix + runs[0])
        elif runs:
            shown.append(f"{prefix}[{','.join(runs)}]")
    return ",".join(shown)


def natural_order(name: str) -> tuple[tuple[int, str], ...]:
    """Return a sort key for names: n2 before n10, as the longer of two numbers is the larger."""
    parts = ((part, part.lstrip("0")) for part in re.split(r"([0-9]+)", name))
    return tuple(
        (len(number), number) if part[:1].isdigit() else (-1, part) for part, number in parts
    )


def _runs(digits: set[str]) -> list[str]:
    """Format `1-3`, `07-12`: runs of consecutive numbers of one width, by their first number."""
    plain = {int(text) for text in digits if text == str(int(text))}
    padded = sorted((len(text), int(text)) for text in digits if text != str(int(text)))
    runs: list[tuple[int, int, int]] = []
    for width, number in padded:
        if runs and runs[-1][2] == width and runs[-1][1] == number - 1:
            runs[-1] = (runs[-1][0], number, width)
        else:
            runs.append((number, number, width))
    for index, (low, high, width) in enumerate(runs):
        # 09 is followed by 10, which shows no padding.
        while high + 1 in plain and len(str(high + 1)) == width:
            high += 1
            plain.discard(high)
        runs[index] = (low, high, width)
    for number in sorted(plain):
        if runs and runs[-1][2] == 0 and runs[-1][1] == number - 1:
            runs[-1] = (runs[-1][0], number, 0)
        else:
            runs.append((number, number, 0))
    return [
        f"{low:0{width or 1}d}" if low == high else f"{low:0{width or 1}d}-{high:0{width or 1}d}"
        for low, high, width in sorted(runs)
    ]


def _parse(expression: str) -> list[_Part]:
    if not _BALANCED.fullmatch(expression):
        raise ValueError(f"the brackets of {_excerpt(expression)} do not match")
    parts: list[_Part] = []
    for part in _PART.findall(expression):
        pieces = _BRACKETS.split(part)
        bodies: list[list[tuple[int, int, int]]] = []
        for body in pieces[1::2]:
            bodies.append([])
            for item in body.split(","):
                found = _RANGE.fullmatch(item)
                if found is None or int(found[2] or found[1]) < int(found[1]):
                    raise ValueError(f"{item!r} in {_excerpt(part)} is not a range of numbers")
                bodies[-1].append((int(found[1]), int(found[2] or found[1]), len(found[1])))
        parts.append((pieces[::2], bodies))
    return parts


def _is_among(name: str, part: _Part) -> bool:
    literals, bodies = part
    # Each place up to which the name matches: digits beside digits can be divided in several ways.
    ends = {len(literals[0])} if name.startswith(literals[0]) else set()
    for body, literal in zip(bodies, literals[1:], strict=True):
        starts = ends
        ends = set()
        for start in starts:
            digits = _NUMBER.match(name, start)
            for end in range(start + 1, digits.end() + 1 if digits else start):
                text = name[start:end]
                number = int(text)
                is_in_range = any(
                    low <= number <= high and text == f"{number:0{width}d}"
                    for low, high, width in body
                )
                if is_in_range and name.startswith(literal, end):
                    ends.add(end + len(literal))
    return len(name) in ends


def _excerpt(expression: str) -> str:
    return repr(expression if len(expression) <= 60 else expression[:59] + "…")
