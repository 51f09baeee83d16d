"""What `hpcdash doctor` and the first start look at, and what they found."""

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
