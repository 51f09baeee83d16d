"""What stood in the forms of new submissions when the dashboard was ended from outside, until they are opened again."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hpcdash.private_files import write_private


@dataclass(frozen=True, slots=True)
class KeptDraft:
    """Texts by field, the keys of a request that have no field, and whether it is a batch script as it is."""

    texts: Mapping[str, str]
    rest: Mapping[str, Any] = field(default_factory=dict)
    as_it_is: bool = False


class Drafts:
    """One a cluster, in `drafts.json` of a state folder."""

    def __init__(self, state_folder: Path) -> None:
        self.path = state_folder / "drafts.json"

    def keep(self, cluster: str, draft: KeptDraft) -> None:
        """In the place of the one before. Raises OSError."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._write({**self._read(), cluster: asdict(draft)})

    def take(self, cluster: str) -> KeptDraft | None:
        """The one that was kept, and is no more; None where there is none, or none that can be read."""
        kept = self._read()
        found = kept.pop(cluster, None)
        try:
            draft = KeptDraft(**found) if found else None
        except TypeError:
            return None
        if draft is not None:
            with contextlib.suppress(OSError):
                self._write(kept)
        return draft

    def _read(self) -> dict[str, dict[str, Any]]:
        try:
            found = json.loads(self.path.read_bytes())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _write(self, drafts: Mapping[str, object]) -> None:
        if not drafts:
            self.path.unlink(missing_ok=True)
            return
        # TOML has dates, JSON has not; what is typed may hold bytes that are no UTF-8.
        write_private(self.path, json.dumps(drafts, default=str).encode())
