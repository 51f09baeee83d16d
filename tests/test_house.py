"""The checker of the code's size and English."""

from __future__ import annotations

from pathlib import Path

from tests.support.house import House, exceeded

_MODULE = '''\
"""What this module does."""


class Teller:
    """Sends messages."""


def tell_people(told: str, size_of_file: int, time_of_day: int) -> str:
    """Whether it was sent."""
    words = _prefix() + told
    return words


def _prefix() -> str:
    return "> "


def is_sent(message: str) -> bool:
    """Whether a message was sent."""
    return bool(message) and message != "a line that is longer than one hundred characters, so that it counts as long"


def names_of(messages: list[str]) -> list[str]:
    return messages
'''


def package(folder: Path) -> Path:
    (folder / "package").mkdir()
    (folder / "package" / "sending.py").write_text(_MODULE)
    return folder / "package"


def test_each_rate_lists_its_places(tmp_path: Path) -> None:
    house = House(package(tmp_path))

    assert {
        figure: [place.partition(" ")[2] for place in places]
        for figure, places in house.places.items()
    } == {
        "speech": ["Teller", "tell_people"],
        "genitives": ["names_of"],
        "dialect": ["told", "size_of_file", "words"],
        "docstrings": ["(module)", "tell_people"],
        "small helpers": ["_prefix"],
        "long lines": ['return bool(message) and message != "a line that is longer t'],
    }
    assert house.places["genitives"] == ["package/sending.py:23 names_of"]


def test_a_figure_above_its_ceiling_is_named(tmp_path: Path) -> None:
    figures = House(package(tmp_path)).figures()
    assert exceeded(figures, figures) == []

    ceilings = {"totals": {**figures["totals"], "functions": 3.0}, "rates": figures["rates"]}

    assert exceeded(figures, ceilings) == ["[totals] functions: 4 exceeds the ceiling 3"]
