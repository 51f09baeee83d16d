"""Lists of node names in brackets, `n[1-3,07],g1`, to names and back."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from functools import lru_cache
from itertools import product

DEFAULT_LIMIT = 100_000
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_TRAILING_NUMBER = re.compile(r"(.*?)([0-9]{1,18})", re.DOTALL)
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")


def expand(expression: str, limit: int = DEFAULT_LIMIT) -> list[str]:
    """The names of `n[1-3,07-09],g1,rack[1-2]n[01-03]`, in the order written.

    Raises ValueError when the brackets make no sense or there are more than `limit` names.
    """
    total = count(expression)
    if total > limit:
        raise ValueError(f"{_excerpt(expression)} names {total} nodes, more than {limit}")
    names: list[str] = []
    for literals, bodies in map(_parse, _split(expression)):
        if not bodies:
            names.append(literals[0])
            continue
        numbers = [
            [f"{number:0{width}d}" for low, high, width in body for number in range(low, high + 1)]
            for body in bodies
        ]
        for chosen in product(*numbers):
            names.append(
                "".join(part for pair in zip(literals, (*chosen, ""), strict=True) for part in pair)
            )
    return names


def count(expression: str) -> int:
    """Count the names that an expression stands for, without building them.

    Raises ValueError like `expand`.
    """
    total = 0
    for _, bodies in map(_parse, _split(expression)):
        names = 1
        for body in bodies:
            names *= sum(high - low + 1 for low, high, _ in body)
        total += names
    return total


@lru_cache(maxsize=65_536)
def contains(expression: str, name: str) -> bool:
    """Whether `name` is among the names of an expression, without making them; case does not
    matter.

    An expression that cannot be read contains nothing but itself.
    """
    requested = name.lower()
    if "[" not in expression:
        return requested in expression.lower().split(",")
    try:
        parts = [_parse(part) for part in _split(expression.lower())]
    except ValueError:
        return requested == expression.lower()
    return any(_is_one_of(literals, bodies, requested) for literals, bodies in parts)


def compress(names: Iterable[str]) -> str:
    """Names as Slurm writes them: sorted, each once, numbers at their ends in brackets, zero
    padding kept.
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
    """A key to sort names by: n2 before n10, since the longer of two numbers is the larger."""
    parts = ((part, part.lstrip("0")) for part in re.split(r"([0-9]+)", name))
    return tuple(
        (len(number), number) if part[:1].isdigit() else (-1, part) for part, number in parts
    )


def _runs(digits: set[str]) -> list[str]:
    """`1-3`, `07-12`: consecutive numbers of one width together, by their first number."""
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


def _split(expression: str) -> list[str]:
    """The parts between commas that are not in brackets."""
    parts: list[str] = []
    start = depth = 0
    for position, character in enumerate(expression):
        if character == "[":
            depth += 1
        elif character == "]":
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(expression[start:position])
            start = position + 1
        if depth not in {0, 1}:
            raise ValueError(f"the brackets of {_excerpt(expression)} do not match")
    if depth:
        raise ValueError(f"the brackets of {_excerpt(expression)} do not match")
    parts.append(expression[start:])
    return [part for part in parts if part]


def _parse(part: str) -> tuple[tuple[str, ...], list[list[tuple[int, int, int]]]]:
    """Literal pieces around the brackets (one more than there are brackets), and each bracket's
    (low, high, width).
    """
    pieces = _BRACKETS.split(part)
    bodies: list[list[tuple[int, int, int]]] = []
    for body in pieces[1::2]:
        ranges: list[tuple[int, int, int]] = []
        for item in body.split(","):
            match = _RANGE.fullmatch(item)
            low, high = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
            if match is None or high < low:
                raise ValueError(f"{item!r} in {_excerpt(part)} is not a range of numbers")
            ranges.append((low, high, len(match[1])))
        bodies.append(ranges)
    return tuple(pieces[::2]), bodies


def _is_one_of(
    literals: tuple[str, ...], bodies: list[list[tuple[int, int, int]]], name: str
) -> bool:
    if (
        any(literal[:1].isdigit() or not literal for literal in literals[1:-1])
        or literals[-1][:1].isdigit()
    ):
        # Digits beside digits could be divided in several ways.
        if sum(high - low + 1 for body in bodies for low, high, _ in body) > DEFAULT_LIMIT:
            return False
        numbers = [
            [f"{n:0{width}d}" for low, high, width in body for n in range(low, high + 1)]
            for body in bodies
        ]
        pattern = "".join(
            re.escape(literal) + f"(?:{'|'.join(choice)})"
            for literal, choice in zip(literals, numbers, strict=False)
        )
        return re.fullmatch(pattern + re.escape(literals[-1]), name) is not None
    match = re.fullmatch("([0-9]{1,18})".join(re.escape(literal) for literal in literals), name)
    return match is not None and all(
        any(
            low <= int(digits) <= high and digits == f"{int(digits):0{width}d}"
            for low, high, width in body
        )
        for digits, body in zip(match.groups(), bodies, strict=True)
    )


def _excerpt(expression: str) -> str:
    return repr(expression if len(expression) <= 60 else expression[:59] + "…")
