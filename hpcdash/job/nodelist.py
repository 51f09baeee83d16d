"""Slurm's lists of hosts, `n[1-3,07],g[1-9:2]r[0-1]`, as names."""

from __future__ import annotations

import re
from itertools import product

MOST_HOSTS = 100_000
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18})(?::([0-9]{1,9}))?)?", re.ASCII)
_COMMA_OUTSIDE = re.compile(r",(?![^\[\]]*\])")


def expand(hosts: str) -> tuple[str, ...]:
    """The names that a list stands for, in the order written; `()` for one that makes no sense or has too many.

    >>> expand("gpu[08-10],login")
    ('gpu08', 'gpu09', 'gpu10', 'login')
    """
    names: list[str] = []
    for part in _COMMA_OUTSIDE.split(hosts.strip()):
        pieces = _BRACKETS.split(part)
        if any("[" in literal or "]" in literal for literal in pieces[::2]):
            return ()
        choices = [_numbers(body) for body in pieces[1::2]]
        total = 1
        for choice in choices:
            total *= len(choice)
        if not total or total + len(names) > MOST_HOSTS:
            return ()
        for chosen in product(*choices):
            name = "".join(text for pair in zip(pieces[::2], (*chosen, "")) for text in pair)
            if name:
                names.append(name)
    return tuple(names)


def _numbers(body: str) -> list[str]:
    """`1-3,07,1-9:2` as texts, padded as the first of each range is; empty where it is no list of ranges."""
    texts: list[str] = []
    for item in body.split(","):
        found = _RANGE.fullmatch(item)
        if found is None:
            return []
        low, high, step = int(found[1]), int(found[2] or found[1]), int(found[3] or 1)
        if high < low or not step or (high - low) // step >= MOST_HOSTS:
            return []
        texts += [str(number).zfill(len(found[1])) for number in range(low, high + 1, step)]
    return texts
