"""Drafts of new submissions that were open when the dashboard was terminated.

They are stored until they are opened again.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import asdict

from hpcdash.domain.request import without_secret_lines
from hpcdash.services.state.database import StateDatabase, StateUnusable


class StoredDraft(Struct, frozen=True):
    """Texts by field, the keys of a request without a field; `as_it_is` for a batch script."""

    texts: Mapping[str, str]
    rest: Mapping[str, Any] = field(default_factory=dict)
    as_it_is: bool = False


class Drafts:
    """Drafts by cluster, in the state database of a folder."""

    def __init__(self, folder: Path) -> None:
        self._database = StateDatabase(folder)

    def keep(self, cluster: str, draft: StoredDraft) -> None:
        """Replace the draft of a cluster, without the secrets of its environment.

        Raises StateUnusable.
        """
        # TOML has dates, JSON has not; typed text may have bytes that are not UTF-8.
        texts = {
            name: without_secret_lines(text) if name == "environment" else text
            for name, text in draft.texts.items()
        }
        content = json.dumps({**asdict(draft), "texts": texts}, default=str)
        self._database.write(("INSERT OR REPLACE INTO drafts VALUES (?, ?)", (cluster, content)))

    def take(self, cluster: str) -> StoredDraft | None:
        """Return and delete the draft of a cluster; None if there is none that can be read."""
        with contextlib.suppress(StateUnusable, ValueError, TypeError):
            for (content,) in self._database.read(
                "SELECT content FROM drafts WHERE cluster = ?", cluster
            ):
                draft = StoredDraft(**json.loads(content))
                with contextlib.suppress(StateUnusable):
                    self._database.write(("DELETE FROM drafts WHERE cluster = ?", (cluster,)))
                return draft
        return None
