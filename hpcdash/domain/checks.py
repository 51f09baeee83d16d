"""Checks of `hpcdash doctor` and of the first start, with their results."""

from __future__ import annotations

from msgspec import Struct


class Check(Struct, frozen=True):
    """One thing looked at; `detail` may hold words of a cluster, `next_step` has a line or more
    where it is not ok.
    """

    name: str
    ok: bool
    detail: str
    next_step: str = ""
