"""Themes: what a file must say, what a wrong one is told, and that every text of a shipped one can be read."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.color import Color
from textual.theme import Theme

from hpcdash.errors import ConfigError
from hpcdash.ui.themes import REQUIRED_COLORS, STATE_STYLES, default_variables, load_theme, load_themes, shipped_folder

SHIPPED = load_themes()
ROW_BACKGROUNDS = ("table-cursor", "table-cursor-blurred", "table-marked")
MINIMAL = (shipped_folder() / "hpcdash-dark.toml").read_text(encoding="utf-8")


def luminance(color: Color) -> float:
    """Relative luminance, WCAG 2.2."""
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in color.normalized]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """Contrast ratio, WCAG 2.2: 1 to 21."""
    bright, dark = sorted((luminance(Color.parse(one)), luminance(Color.parse(other))), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def written(folder: Path, text: str, name: str = "mine.toml") -> Path:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


def line_of(text: str, start: str) -> int:
    return next(number for number, line in enumerate(text.splitlines(), start=1) if line.startswith(start))


def test_the_shipped_themes_are_a_dark_a_light_a_contrast_and_two_more() -> None:
    assert {"hpcdash-dark", "hpcdash-light", "hpcdash-contrast"} < set(SHIPPED)
    assert len(SHIPPED) >= 5
    assert SHIPPED["hpcdash-dark"].dark
    assert not SHIPPED["hpcdash-light"].dark


@pytest.mark.parametrize("theme", SHIPPED.values(), ids=lambda theme: theme.name)
def test_every_text_of_a_shipped_theme_can_be_read(theme: Theme) -> None:
    wanted = 7.0 if theme.name == "hpcdash-contrast" else 4.5
    colors = theme.variables
    rows = {colors[name] for name in ROW_BACKGROUNDS} | {theme.background or ""}
    pairs = [(name, value, behind) for name, value in colors.items() if name.startswith("state-") for behind in rows]
    pairs += [("foreground", theme.foreground or "", behind) for behind in rows]
    pairs += [("table-dim", colors["table-dim"], behind) for behind in (theme.background or "", colors["table-marked"])]
    pairs += [(name, getattr(theme, name), theme.background or "") for name in REQUIRED_COLORS[4:]]
    poor = [(*pair, round(contrast(*pair[1:]), 2)) for pair in pairs if contrast(*pair[1:]) < wanted]
    assert not poor
    assert contrast(colors["table-title"], colors["table-header"]) >= wanted
    assert contrast(colors["footer-key-foreground"], colors["footer-background"]) >= wanted


@pytest.mark.parametrize("theme", SHIPPED.values(), ids=lambda theme: theme.name)
def test_every_state_has_a_colour_in_every_shipped_theme(theme: Theme) -> None:
    assert {f"state-{state}" for state in STATE_STYLES} <= set(theme.variables)


def test_a_theme_of_the_same_name_in_a_users_folder_replaces_the_shipped_one(tmp_path: Path) -> None:
    written(tmp_path, MINIMAL.replace("#14171b", "#101010"))
    assert Color.parse(load_themes([tmp_path])["hpcdash-dark"].background or "") == Color.parse("#101010")


def test_a_folder_that_is_not_there_holds_no_themes(tmp_path: Path) -> None:
    assert set(load_themes([tmp_path / "none"])) == set(SHIPPED)


def test_a_state_a_theme_leaves_out_looks_like_its_kin(tmp_path: Path) -> None:
    text = "\n".join(line for line in MINIMAL.splitlines() if not line.startswith(("state-out-of", "table-")))
    variables = load_theme(written(tmp_path, text)).variables
    assert variables["state-out-of-memory"] == variables["state-failed"]
    assert Color.parse(variables["table-cursor"]).a == 1


def test_a_theme_without_a_state_that_matters_is_refused_and_the_state_is_named(tmp_path: Path) -> None:
    text = "\n".join(line for line in MINIMAL.splitlines() if not line.startswith("state-running"))
    with pytest.raises(ConfigError) as refused:
        load_theme(written(tmp_path, text))
    assert refused.value.key == "variables.state-running"
    assert refused.value.line == line_of(text, "[variables]")


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ('primary = "#6ea8dc"', 'primary = "#6ea8d"', "colors.primary"),
        ('primary = "#6ea8dc"', "primary = 7", "colors.primary"),
        ('boost = "#262c34"', 'bost = "#262c34"', "colors.bost"),
        ('state-held = "#cf9fd4"', 'state-held = "mauvish"', "variables.state-held"),
        ('state-gone = "#9ba2ac"', 'state-vanished = "#9ba2ac"', "variables.state-vanished"),
        ('scrollbar = "#39424d"', 'scrollbar = "junk; }"', "variables.scrollbar"),
        ("dark = true", 'dark = "yes"', "dark"),
        ('name = "hpcdash-dark"', 'nom = "hpcdash-dark"', "nom"),
    ],
)
def test_a_wrong_value_is_told_with_file_line_and_key(tmp_path: Path, old: str, new: str, key: str) -> None:
    text = MINIMAL.replace(old, new)
    file = written(tmp_path, text)
    with pytest.raises(ConfigError) as refused:
        load_theme(file)
    assert refused.value.key == key
    assert refused.value.line == line_of(text, new)
    assert str(refused.value).startswith(f"{file}:{line_of(text, new)}: {key}: ")


def test_a_file_that_is_no_toml_is_told_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        load_theme(written(tmp_path, 'name = "x"\ndark = maybe\n'))
    assert refused.value.line == 2


def test_a_key_of_many_parts_is_refused_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="more than 32 parts") as refused:
        load_theme(written(tmp_path, 'name = "x"\n' + "a." * 50_000 + "a = 1\n"))
    assert refused.value.line == 2


def test_a_file_that_is_not_utf8_is_told_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "latin.toml"
    file.write_bytes(b'# one\nname = "caf\xe9"\n')
    with pytest.raises(ConfigError) as refused:
        load_theme(file)
    assert refused.value.line == 2


def test_variables_for_foreign_themes_are_those_of_the_default_of_that_brightness() -> None:
    assert default_variables(True) == SHIPPED["hpcdash-dark"].variables
    assert default_variables(False) == SHIPPED["hpcdash-light"].variables
