"""Themes: what a file must say, what a wrong one is told, and that every text of a shipped one can
be read.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterable
from pathlib import Path

import pytest
from rich.color import ColorSystem
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.theme import Theme

from hpcdash.errors import ConfigError
from hpcdash.ui.themes import (
    DIM_FACTOR,
    JOB_STYLES,
    SHAPE_CONTRAST,
    STATE_STYLES,
    TEXT_CONTRAST,
    ReadableColors,
    contrast,
    default_variables,
    load_theme,
    load_themes,
    shipped_folder,
)
from tests.support.records import for_each

SHIPPED = load_themes()
MINIMAL = (shipped_folder() / "hpcdash-dark.toml").read_text(encoding="utf-8")


def written(folder: Path, text: str, name: str = "mine.toml") -> Path:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


def line_of(text: str, start: str) -> int:
    return next(
        number for number, line in enumerate(text.splitlines(), start=1) if line.startswith(start)
    )


def test_the_shipped_themes_are_a_dark_a_light_a_contrast_a_colour_blind_and_more() -> None:
    assert {"hpcdash-dark", "hpcdash-light", "hpcdash-contrast", "hpcdash-colorblind"} < set(
        SHIPPED
    )
    assert len(SHIPPED) >= 6
    assert SHIPPED["hpcdash-dark"].dark
    assert not SHIPPED["hpcdash-light"].dark


def color_of(theme: Theme, name: str, behind: Color) -> Color:
    """A variable as the style sheet resolves it: `#80a0c0`, `warning 30%` on what is behind it, or
    `auto 60%`.
    """
    variables = {**theme.to_color_system().generate(), **theme.variables}
    name, _, percent = name.partition(" ")
    value, _, alpha = variables.get(name, name).partition(" ")
    amount = float((percent or alpha or "100%").removesuffix("%")) / 100
    color = behind.get_contrast_text() if value == "auto" else Color.parse(value)
    return behind.blend(color, amount * color.a, 1)


def contrasts(theme: Theme, pairs: Iterable[tuple[str, str]]) -> dict[tuple[str, str], float]:
    """The contrast of each pair of a foreground and a background."""
    ratios = {}
    for name, behind in pairs:
        ground = color_of(theme, behind, Color.parse(theme.background or ""))
        ratios[name, behind] = contrast(color_of(theme, name, ground), ground)
    return ratios


ROWS = ("background", "table-cursor", "table-cursor-blurred", "table-marked")
SHEETS = ("background", "surface", "panel", "boost")
STATES = tuple(f"state-{state}" for state in STATE_STYLES)
SEVERITIES = ("success", "warning", "error")
TEXTS = (
    *itertools.product(
        (*STATES, *SEVERITIES, "foreground", "primary", "accent", "table-dim"), {*ROWS, *SHEETS}
    ),
    *itertools.product(JOB_STYLES, ROWS),
    *itertools.product(("text-muted", "secondary", f"foreground {DIM_FACTOR:.0%}"), SHEETS),
    *itertools.product(
        ("text-primary", "text-accent", "text-success", "text-warning", "text-error"), SHEETS
    ),
    *(
        ("foreground", behind)
        for behind in ("error 15%", "warning 12%", "accent 20%", "warning 30%")
    ),
    *((name, f"{name} 10%") for name in ("success", "error")),
    ("text-warning", "warning-muted"),
    ("background", "warning"),
    ("table-title", "table-header"),
    ("foreground", "table-header"),
    ("footer-key-foreground", "footer-background"),
    ("footer-description-foreground", "footer-background"),
    ("block-cursor-foreground", "block-cursor-background"),
    ("block-cursor-blurred-foreground", "block-cursor-blurred-background"),
    ("input-cursor-foreground", "input-cursor-background"),
)
BORDERS = tuple(
    itertools.product(("primary", "error", "scrollbar-active"), ("background", "surface"))
)


@for_each("theme", SHIPPED.values(), ids=lambda theme: theme.name)
def test_every_text_of_a_shipped_theme_can_be_read(theme: Theme) -> None:
    wanted = 7.0 if theme.name == "hpcdash-contrast" else TEXT_CONTRAST
    assert {
        pair: round(ratio, 2) for pair, ratio in contrasts(theme, TEXTS).items() if ratio < wanted
    } == {}
    assert {
        pair: round(ratio, 2)
        for pair, ratio in contrasts(theme, BORDERS).items()
        if ratio < SHAPE_CONTRAST
    } == {}


@pytest.mark.slow
@for_each("system", [ColorSystem.EIGHT_BIT, ColorSystem.STANDARD], ids=["256", "16"])
@for_each("theme", SHIPPED.values(), ids=lambda theme: theme.name)
def test_every_text_of_a_shipped_theme_can_be_read_with_few_colours(
    theme: Theme, system: ColorSystem
) -> None:
    theme = load_themes(depth="256" if system is ColorSystem.EIGHT_BIT else "16")[theme.name]
    ground = Color.parse(theme.background or "")
    poor = {}
    for name, behind in TEXTS:
        below = color_of(theme, behind, ground)
        style = Style.from_color(color_of(theme, name, below).rich_color, below.rich_color)
        [shown] = ReadableColors(system).apply([Segment("text", style)], ground)
        assert shown.style
        assert shown.style.color
        assert shown.style.bgcolor
        on_screen = (
            one.downgrade(system).get_truecolor()
            for one in (shown.style.color, shown.style.bgcolor)
        )
        ratio = contrast(*(Color(*triplet) for triplet in on_screen))
        if ratio < SHAPE_CONTRAST:
            poor[name, behind] = round(ratio, 2)
    assert poor == {}


# How colours look with no working cones of one kind, on linear RGB: Machado, Oliveira and Fernandes
# 2009, severity 1.
COLOUR_BLINDNESS = {
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}


def lab_as_seen(color: Color, matrix: tuple[tuple[float, ...], ...]) -> tuple[float, float, float]:
    """CIE L*a*b* (D65) of a colour as an eye with that matrix sees it."""
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in color.normalized
    ]
    red, green, blue = (min(1.0, max(0.0, sum(map(operator.mul, row, linear)))) for row in matrix)
    x = (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.95047
    y = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    z = (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.08883
    f, g, h = (
        part ** (1 / 3) if part > 0.008856 else 7.787 * part + 16 / 116 for part in (x, y, z)
    )
    return 116 * g - 16, 500 * (f - g), 200 * (g - h)


@for_each("kind", COLOUR_BLINDNESS)
def test_good_and_bad_look_different_to_a_colour_blind_person_in_the_theme_made_for_it(
    kind: str,
) -> None:
    theme = SHIPPED["hpcdash-colorblind"]
    ground = Color.parse(theme.background or "")
    good = ("state-running", "state-completed", "state-allocated", "state-idle", "success")
    bad = (
        "state-failed",
        "state-node-failed",
        "state-timeout",
        "state-out-of-memory",
        "state-down",
        "error",
    )
    alike = {}
    for pair in itertools.product(good, bad):
        distance = math.dist(
            *(lab_as_seen(color_of(theme, name, ground), COLOUR_BLINDNESS[kind]) for name in pair)
        )
        if distance < 20:
            alike[pair] = round(distance, 1)
    assert alike == {}


@for_each("theme", SHIPPED.values(), ids=lambda theme: theme.name)
def test_every_state_has_a_colour_in_every_shipped_theme(theme: Theme) -> None:
    assert {f"state-{state}" for state in STATE_STYLES} <= set(theme.variables)


def test_a_theme_of_the_same_name_in_a_users_folder_replaces_the_shipped_one(
    tmp_path: Path,
) -> None:
    written(tmp_path, MINIMAL.replace("#14171b", "#101010"))
    assert Color.parse(load_themes([tmp_path])["hpcdash-dark"].background or "") == Color.parse(
        "#101010"
    )


def test_a_folder_that_is_not_there_holds_no_themes(tmp_path: Path) -> None:
    assert set(load_themes([tmp_path / "none"])) == set(SHIPPED)


def test_a_state_a_theme_leaves_out_looks_like_its_kin(tmp_path: Path) -> None:
    text = "\n".join(
        line for line in MINIMAL.splitlines() if not line.startswith(("state-out-of", "table-"))
    )
    variables = load_theme(written(tmp_path, text)).variables
    assert variables["state-out-of-memory"] == variables["state-failed"]
    assert Color.parse(variables["table-cursor"]).a == 1


def test_a_theme_without_a_state_that_matters_is_refused_and_the_state_is_named(
    tmp_path: Path,
) -> None:
    text = "\n".join(line for line in MINIMAL.splitlines() if not line.startswith("state-running"))
    with pytest.raises(ConfigError) as refused:
        load_theme(written(tmp_path, text))
    assert refused.value.key == "variables.state-running"
    assert refused.value.line == line_of(text, "[variables]")


@for_each(
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
def test_a_wrong_value_is_told_with_file_line_and_key(
    tmp_path: Path, old: str, new: str, key: str
) -> None:
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


def test_states_keep_their_hues_where_there_are_16_colours() -> None:
    theme = SHIPPED["hpcdash-dark"]
    ground = Color.parse(theme.background or "")
    hues = {}
    for name in ("running", "pending", "failed", "cancelled"):
        style = Style.from_color(
            color_of(theme, f"state-{name}", ground).rich_color, ground.rich_color
        )
        [shown] = ReadableColors(ColorSystem.STANDARD).apply([Segment("text", style)], ground)
        assert shown.style
        assert shown.style.color
        hues[name] = shown.style.color.downgrade(ColorSystem.STANDARD).number
    assert hues == {"running": 2, "pending": 3, "failed": 9, "cancelled": 7}


@for_each("name", ["hpcdash-dark", "hpcdash-light"])
def test_a_default_theme_is_drawn_as_it_was_chosen_with_256_colours(name: str) -> None:
    theme = load_themes(depth="256")[name]
    colors = {
        key: Color.parse(value)
        for key, value in {**vars(theme), **theme.variables}.items()
        if isinstance(value, str) and value.startswith("#") and key != "quiet"
    }
    assert len(colors) > 50

    def shift(color: Color) -> int:
        drawn = color.rich_color.downgrade(ColorSystem.EIGHT_BIT).get_truecolor()
        return max(abs(one - other) for one, other in zip(color.rgb, drawn, strict=True))

    # Light greys of the ramp are drawn as the next one.
    other = {
        key: color.hex
        for key, color in colors.items()
        if not key.startswith("job-") and shift(color) > 10
    }
    assert other == {}


@for_each("theme", SHIPPED.values(), ids=lambda theme: theme.name)
def test_what_is_dim_stays_dimmer_than_text_with_256_colours(theme: Theme) -> None:
    ground = Color.parse(theme.background or "")
    filtered = ReadableColors(ColorSystem.EIGHT_BIT)
    ratios = []
    for name in ("quiet", "foreground"):
        style = Style.from_color(color_of(theme, name, ground).rich_color, ground.rich_color)
        [shown] = filtered.apply([Segment("■", style)], ground)
        assert shown.style
        assert shown.style.color
        drawn = shown.style.color.downgrade(ColorSystem.EIGHT_BIT).get_truecolor()
        ratios.append(contrast(Color(*drawn), ground))
    assert SHAPE_CONTRAST * 0.8 <= ratios[0] < ratios[1]
