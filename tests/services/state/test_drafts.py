"""A draft is kept until it is taken, for each cluster its own."""

from __future__ import annotations

import stat
from datetime import date
from pathlib import Path

import pytest

from hpcdash.services.state.database import StateDatabase
from hpcdash.services.state.drafts import Drafts, StoredDraft


def test_a_draft_is_taken_once_as_it_was_kept(tmp_path: Path) -> None:
    drafts = Drafts(tmp_path / "state")
    assert drafts.take("juno") is None
    juno = StoredDraft(
        {"name": "é\udc80", "command": "a\nb"}, {"call": {"args": [1, "x"]}}, as_it_is=True
    )
    drafts.keep("juno", StoredDraft({"name": "earlier"}))
    drafts.keep("juno", juno)
    drafts.keep("attic", StoredDraft({"name": "other"}))
    assert stat.S_IMODE((tmp_path / "state" / "state.db").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700
    assert drafts.take("juno") == juno
    assert drafts.take("juno") is None
    assert drafts.take("attic") == StoredDraft({"name": "other"})


def test_what_json_cannot_say_is_kept_as_text(tmp_path: Path) -> None:
    drafts = Drafts(tmp_path)
    drafts.keep("juno", StoredDraft({"name": "a"}, {"labels": {"day": date(2026, 11, 22)}}))
    assert drafts.take("juno") == StoredDraft({"name": "a"}, {"labels": {"day": "2026-11-22"}})


def test_a_secret_of_its_environment_is_not_kept(tmp_path: Path) -> None:
    drafts = Drafts(tmp_path)
    drafts.keep(
        "juno", StoredDraft({"environment": "WANDB_API_KEY=abc\n\nA=1\nexport TOKEN = x\nTOKEN="})
    )
    hidden = "WANDB_API_KEY=(not kept)\n\nA=1\nexport TOKEN =(not kept)\nTOKEN="
    assert drafts.take("juno") == StoredDraft({"environment": hidden})


@pytest.mark.parametrize("content", ["", "[]", "{", '{"odd": 1}'])
def test_one_that_cannot_be_read_is_none_and_is_replaced(tmp_path: Path, content: str) -> None:
    drafts = Drafts(tmp_path)
    drafts.keep("juno", StoredDraft({"name": "a"}))
    StateDatabase(tmp_path).write(("UPDATE drafts SET content = ?", (content,)))
    assert drafts.take("juno") is None
    drafts.keep("juno", StoredDraft({"name": "a"}))
    assert drafts.take("juno") == StoredDraft({"name": "a"})
