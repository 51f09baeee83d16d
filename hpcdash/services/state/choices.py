"""Choices of a person on the screen, saved for the next start in choices.json, mode 0600."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from hpcdash.private_files import atomic_write, make_folder

_LARGEST_BYTES = 1 << 20


class Choices(msgspec.Struct, frozen=True, omit_defaults=True):
    """Columns and sort (with '-' descending) of each view; None and '' are no choice.

    `filter` is the jobs view's; `folds` are its arrays that are open if all are folded, or the
    other way round. `overview_share` is in percent of the view. `typed` are the entries after '/',
    ':' and 'X' (run in jobs), the newest last.
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
    """Read the choices; there are none if the file is missing or cannot be read.

    A damaged file is renamed, never overwritten.
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
    """Write the choices if they changed; failures to write are ignored."""
    if choices == read_choices(folder):
        return
    with contextlib.suppress(OSError, UnicodeError):
        make_folder(folder)
        atomic_write(choices_file(folder), msgspec.json.encode(choices))
