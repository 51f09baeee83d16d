"""Bytes that jobs' checkpoints add a day, from the markers of whole checkpoints."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence

from hpcdash.backends.queries import Answer, Query
from hpcdash.domain.text import decode
from hpcdash.domain.units import DAY
from hpcdash.shell_files import shell_text

# A command reads so many folders at most.
MAX_FOLDERS = 8
_LIMIT_SECONDS = 60.0


def saves_query(folders: Sequence[str]) -> Query[dict[str, int]]:
    """Query the bytes a day of the checkpoints in some folders; a folder without two whole ones of
    known sizes is left out.
    """
    folders = tuple(folders[:MAX_FOLDERS])
    token = f"\x1e{secrets.token_hex(8)}"

    def parse(answer: Answer) -> dict[str, int]:
        markers: dict[int, list[str]] = {}
        for part in decode(answer.stdout).split(token)[1:]:
            number, _, text = part.partition("\n")
            markers.setdefault(int(number), []).append(text)
        rates = {folders[number]: save_rate(texts) for number, texts in markers.items()}
        return {folder: rate for folder, rate in rates.items() if rate is not None}

    script = shell_text("services/usage/saves.sh")
    return Query(("sh", "-c", script, "sh", token, *folders), parse, _LIMIT_SECONDS, ("sh",))


def save_rate(markers: Sequence[str]) -> int | None:
    """Return the bytes a day between the two newest checkpoints; None: unknown."""
    saves = sorted(save for text in markers if (save := _read_save(text)) is not None)
    if len(saves) < 2:
        return None
    (before, _), (newest, size) = saves[-2:]
    return round(DAY * size / (newest - before)) if newest > before and size else None


def _read_save(text: str) -> tuple[float, int] | None:
    """Return the epoch second and the bytes of a checkpoint; None for an unreadable marker."""
    try:
        marker = json.loads(text)
        sizes = [entry.get("bytes", 0) for entry in marker["files"].values()]
        return float(marker["saved_at"]), sum(map(int, sizes))
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return None
