"""[metrics] of the configuration: one's own expressions, and where one of them is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcdash.config.problems import ConfigProblems
from hpcdash.config.read import settings_from_text
from hpcdash.config.settings import MetricsSettings, Settings

FILE = Path("config.toml")


def problems(text: str) -> list[tuple[int | None, str, str]]:
    with pytest.raises(ConfigProblems) as caught:
        settings_from_text(text, FILE)
    return [(problem.line, problem.key, problem.message) for problem in caught.value.problems]


def test_patterns_are_kept_in_their_order() -> None:
    assert Settings().metrics == MetricsSettings(())
    text = (
        "[metrics]\npatterns = ['it (?P<step>[0-9]+) (?P<loss>[0-9.]+)', 'e=(?P<error>[0-9]+)']\n"
    )
    found = settings_from_text(text, FILE).metrics.patterns
    assert found == ("it (?P<step>[0-9]+) (?P<loss>[0-9.]+)", "e=(?P<error>[0-9]+)")


def test_each_bad_pattern_is_named_with_its_place() -> None:
    text = (
        "[metrics]\npatterns = [\n  'loss=(?P<loss>[0-9.]+)',\n  'loss=(?P<loss>[0-9',\n  "
        "'loss=([0-9.]+)',\n  7,\n]\n"
    )
    found = problems(text)
    assert [key for _, key, _ in found] == [
        "metrics.patterns[1]",
        "metrics.patterns[2]",
        "metrics.patterns[3]",
    ]
    assert "is not a regular expression" in found[0][2]
    assert "has no metric; Add a named group" in found[1][2]
    assert found[2][2] == "expected text in quotes, not 7"
    assert all(line is not None and line >= 2 for line, _, _ in found)


def test_what_is_no_list_or_no_key_is_said() -> None:
    assert problems('[metrics]\npatterns = "loss"\n') == [
        (2, "metrics.patterns", 'expected an array of regular expressions, not "loss"')
    ]
    assert problems("[metrics]\npattern = []\n") == [
        (2, "metrics.pattern", 'unknown key; did you mean "patterns"?')
    ]
