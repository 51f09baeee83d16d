"""Latest submissions from here, to show, reuse or compare."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Literal

from msgspec import Struct
from msgspec.structs import astuple

from hpcdash.domain.text import without_surrogates
from hpcdash.services.state.database import StateDatabase, Statement, StateUnusable

MAX_RECENT = 200
# Of a longer text there would be nothing to compare that a person reads.
_LONGEST_TEXT = 1_000_000
_NO_MORE: Statement = (
    "DELETE FROM recents WHERE id NOT IN (SELECT id FROM recents ORDER BY at DESC, id DESC "
    "LIMIT ?)",
    (MAX_RECENT,),
)


class Recent(Struct, frozen=True):
    """A recent submission, `at` in epoch seconds. Bytes of `text` that were no UTF-8 are U+FFFD."""

    cluster: str
    name: str
    text: str
    kind: Literal["request", "script"]
    at: float


class Recents:
    """The last MAX_RECENT submissions of all clusters, in the state database of a folder; None:
    those of this run.
    """

    def __init__(self, folder: Path | None) -> None:
        self._database = None if folder is None else StateDatabase(folder)
        self._session_recents: list[Recent] = []

    def remember(
        self, cluster: str, name: str, text: str, kind: Literal["request", "script"], at: float
    ) -> None:
        """Keep one, without the secrets of a request's environment; one of more than a million
        letters is not kept.

        Raises StateUnusable where it cannot be written: it is kept for this run all the same.
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
        try:
            if self._database is not None:
                self._database.write((sql, astuple(recent)), _NO_MORE)
                return
        except StateUnusable:
            self._keep_for_this_run(recent)
            raise
        self._keep_for_this_run(recent)

    def recent(self, cluster: str) -> tuple[Recent, ...]:
        """Newest first; none of those that cannot be read."""
        found = [one for one in self._session_recents if one.cluster == cluster]
        if self._database is not None:
            with contextlib.suppress(StateUnusable):
                sql = "SELECT cluster, name, text, kind, at FROM recents WHERE cluster = ?"
                found += [Recent(*row) for row in self._database.read(sql, cluster)]
        return tuple(sorted(found, key=lambda one: one.at, reverse=True))

    def newest_recent(self, cluster: str, name: str) -> Recent | None:
        """The newest of that name there."""
        return next(
            (one for one in self.recent(cluster) if one.name == without_surrogates(name)), None
        )

    def _keep_for_this_run(self, recent: Recent) -> None:
        self._session_recents = [*self._session_recents, recent][-MAX_RECENT:]
