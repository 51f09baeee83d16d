"""A draft is kept until it is taken, for each cluster its own."""

from __future__ import annotations

import stat
from datetime import date
from pathlib import Path

import pytest

from hpcdash.services.state.drafts import Drafts, KeptDraft


def test_a_draft_is_taken_once_as_it_was_kept(tmp_path: Path) -> None:
    drafts = Drafts(tmp_path / "state")
    assert drafts.take("juno") is None
    juno = KeptDraft({"name": "é\udc80", "command": "a\nb"}, {"call": {"args": [1, "x"]}}, as_it_is=True)
    drafts.keep("juno", KeptDraft({"name": "earlier"}))
    drafts.keep("juno", juno)
    drafts.keep("attic", KeptDraft({"name": "other"}))
    assert stat.S_IMODE(drafts.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(drafts.path.parent.stat().st_mode) == 0o700
    assert drafts.take("juno") == juno
    assert drafts.take("juno") is None
    assert drafts.take("attic") == KeptDraft({"name": "other"})
    assert list(drafts.path.parent.iterdir()) == []


def test_what_json_cannot_say_is_kept_as_text(tmp_path: Path) -> None:
    drafts = Drafts(tmp_path)
    drafts.keep("juno", KeptDraft({"name": "a"}, {"labels": {"day": date(2026, 11, 22)}}))
    assert drafts.take("juno") == KeptDraft({"name": "a"}, {"labels": {"day": "2026-11-22"}})


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"juno": {"odd": 1}}', b"\xff"])
def test_a_file_that_is_damaged_holds_none_and_is_replaced(tmp_path: Path, content: bytes) -> None:
    drafts = Drafts(tmp_path)
    drafts.path.write_bytes(content)
    assert drafts.take("juno") is None
    drafts.keep("juno", KeptDraft({"name": "a"}))
    assert drafts.take("juno") == KeptDraft({"name": "a"})
