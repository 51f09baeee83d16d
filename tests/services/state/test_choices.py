"""What was chosen on the screen is there at the next start, and a damaged file keeps nobody from
starting.
"""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from hpcdash.services.state.choices import Choices, choices_file, read_choices, write_choices


def test_choices_are_read_as_they_were_written_and_by_nobody_else(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    assert read_choices(folder) == Choices()
    choices = Choices(
        theme="hpcdash-light", columns={"jobs": ("id", "name")}, typed={"/": ("state:failed",)}
    )
    write_choices(folder, choices)
    assert read_choices(folder) == choices
    assert stat.S_IMODE(choices_file(folder).stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"theme": 3}', b"\xff\xfe", b'{"columns": {"jobs": "id"}}']
)
def test_a_damaged_file_is_no_choice(tmp_path: Path, content: bytes) -> None:
    choices_file(tmp_path).write_bytes(content)
    assert read_choices(tmp_path) == Choices()
    write_choices(tmp_path, Choices(theme="hpcdash-light"))
    assert read_choices(tmp_path).theme == "hpcdash-light"


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    write_choices(tmp_path / "plain", Choices(theme="x"))
    assert (tmp_path / "plain").read_text() == ""
