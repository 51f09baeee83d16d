"""What stood in the forms of new submissions when the dashboard was ended from outside, until they are opened again."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import asdict

from hpcdash.backends.script.body import NOT_KEPT, SECRET_NAME
from hpcdash.services.state.database import StateDatabase, StateUnusable


class KeptDraft(Struct, frozen=True):
    """Texts by field, the keys of a request that have no field, and whether it is a batch script as it is."""

    texts: Mapping[str, str]
    rest: Mapping[str, Any] = field(default_factory=dict)
    as_it_is: bool = False


def without_secrets_in_draft(content: str) -> str:
    """The JSON of a draft, with NOT_KEPT for the secrets of its environment; as it is where it has none, or is none."""
    with contextlib.suppress(ValueError, TypeError, KeyError):
        draft = json.loads(content)
        lines = draft["texts"]["environment"].split("\n")
        hidden = [_without_secret(line) for line in lines]
        if hidden != lines:
            draft["texts"]["environment"] = "\n".join(hidden)
            return json.dumps(draft)
    return content


def _without_secret(line: str) -> str:
    """Of a line NAME=value of the form."""
    name, equals, value = line.partition("=")
    is_secret = value.strip() and SECRET_NAME.search(name.strip().removeprefix("export ").strip())
    return f"{name}{equals}{NOT_KEPT}" if is_secret else line


class Drafts:
    """One a cluster, in the state database of a folder."""

    def __init__(self, folder: Path) -> None:
        self._database = StateDatabase(folder)

    def keep(self, cluster: str, draft: KeptDraft) -> None:
        """In the place of the one before, without the secrets of its environment. Raises StateUnusable."""
        # TOML has dates, JSON has not; what is typed may hold bytes that are no UTF-8.
        content = without_secrets_in_draft(json.dumps(asdict(draft), default=str))
        self._database.write(("INSERT OR REPLACE INTO drafts VALUES (?, ?)", (cluster, content)))

    def take(self, cluster: str) -> KeptDraft | None:
        """The one that was kept, and is no more; None where there is none, or none that can be read."""
        with contextlib.suppress(StateUnusable, ValueError, TypeError):
            for (content,) in self._database.read("SELECT content FROM drafts WHERE cluster = ?", cluster):
                draft = KeptDraft(**json.loads(content))
                with contextlib.suppress(StateUnusable):
                    self._database.write(("DELETE FROM drafts WHERE cluster = ?", (cluster,)))
                return draft
        return None
