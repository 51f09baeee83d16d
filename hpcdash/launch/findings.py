"""What is found wrong, or odd, with what would be submitted. Knows neither who found it nor where it is shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Finding:
    """`field` is a key of REQUEST.toml (`time`, `container.image`), `line 7` of a script, or '' for the whole.

    `words` and `next_step` may quote remote text: make them visible before they are shown.
    """

    severity: Severity
    field: str
    words: str
    next_step: str = ""
