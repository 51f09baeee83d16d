"""Latest submissions from here, to show, reuse or compare."""

from __future__ import annotations

import contextlib
from collections import deque
from operator import attrgetter
from pathlib import Path
from typing import Literal

from msgspec import Struct
from msgspec.structs import astuple

from hpcdash.domain.text import without_surrogates
from hpcdash.services.state.database import StateDatabase, Statement, StateUnusable

MAX_RECENT = 200
# Nobody reads the comparison of longer texts.
_LONGEST_TEXT = 1_000_000
_DELETE_EXCESS: Statement = (
    "DELETE FROM recents WHERE id NOT IN (SELECT id FROM recents ORDER BY at DESC, id DESC "
    "LIMIT ?)",
    (MAX_RECENT,),
)


class Recent(Struct, frozen=True):
    """A recent submission, `at` in epoch seconds. Bytes that are not UTF-8 are U+FFFD in `text`."""

    cluster: str
    name: str
    text: str
    kind: Literal["request", "script"]
    at: float


class Recents:
    """The last MAX_RECENT submissions on all clusters, in the state database of a folder.

    Without a folder they are those of this run.
    """

    def __init__(self, folder: Path | None) -> None:
        self._database = None if folder is None else StateDatabase(folder)
        self._session_recents: deque[Recent] = deque(maxlen=MAX_RECENT)

    def remember(
        self, cluster: str, name: str, text: str, kind: Literal["request", "script"], at: float
    ) -> None:
        """Store a submission of up to a million letters, without the secrets of its environment.

        Raises StateUnusable if it cannot be written: it is stored for this run all the same.
        """
        from hpcdash.config.toml_text import without_secrets

        if len(text) > _LONGEST_TEXT:
            return
        recent = Recent(
            cluster, name, without_secrets(text) if kind == "request" else text, kind, float(at)
        )
        sql = (
            "INSERT OR REPLACE INTO recents (cluster, name, text, kind, at) VALUES (?, ?, ?, ?, ?)"
        )
        if self._database is not None:
            try:
                self._database.write((sql, astuple(recent)), _DELETE_EXCESS)
                return
            except StateUnusable:
                self._session_recents.append(recent)
                raise
        self._session_recents.append(recent)

    def recent(self, cluster: str) -> tuple[Recent, ...]:
        """Return the submissions on a cluster, newest first; without those that cannot be read."""
        found = [recent for recent in self._session_recents if recent.cluster == cluster]
        if self._database is not None:
            with contextlib.suppress(StateUnusable):
                sql = "SELECT cluster, name, text, kind, at FROM recents WHERE cluster = ?"
                found += [Recent(*row) for row in self._database.read(sql, cluster)]
        return tuple(sorted(found, key=attrgetter("at"), reverse=True))

    def newest_recent(self, cluster: str, name: str) -> Recent | None:
        """Return the newest submission with a name on a cluster."""
        stored_name = without_surrogates(name)
        return next((recent for recent in self.recent(cluster) if recent.name == stored_name), None)
