"""Choices of a person on the screen for the next start.

They are in choices.json in the state folder, mode 0600.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from hpcdash.private_files import atomic_write, make_folder

_LARGEST_BYTES = 1 << 20


class Choices(msgspec.Struct, frozen=True, omit_defaults=True):
    """By view the columns and the sort ('-' first: largest first); None and '' where nothing was
    chosen.

    `filter` is the jobs view's; `folds` are arrays there that are open where all are folded, or the
    other way round. `overview_share` is in percent of the view. `typed` has by '/', ':' and 'X'
    (run in jobs) what was entered, the newest last.
    """

    theme: str = ""
    columns: Mapping[str, tuple[str, ...]] = {}
    sort: Mapping[str, str] = {}
    filter: str = ""
    fold_arrays: bool | None = None
    folds: tuple[str, ...] = ()
    has_overview: bool | None = None
    overview_share: int | None = None
    typed: Mapping[str, tuple[str, ...]] = {}


def choices_file(folder: Path) -> Path:
    return folder / "choices.json"


def read_choices(folder: Path) -> Choices:
    """None are there where the file is not, or cannot be read.

    One that is damaged is renamed, never overwritten.
    """
    path = choices_file(folder)
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(_LARGEST_BYTES), type=Choices)
    except (msgspec.MsgspecError, UnicodeError):
        with contextlib.suppress(OSError):
            path.replace(path.with_name(f"{path.name}.damaged"))
    except OSError:
        pass
    return Choices()


def write_choices(folder: Path, choices: Choices) -> None:
    """Keep them, if anything changed; where they cannot be written the next start is as this one
    was.
    """
    if choices == read_choices(folder):
        return
    with contextlib.suppress(OSError, UnicodeError):
        make_folder(folder)
        atomic_write(choices_file(folder), msgspec.json.encode(choices))
