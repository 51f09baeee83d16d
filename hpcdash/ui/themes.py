"""Palettes from TOML files as Textual themes; reports the place of an error."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from colorsys import rgb_to_hls
from functools import lru_cache
from pathlib import Path
from typing import Any

from rich.color import Color as RichColor
from rich.color import ColorSystem
from rich.segment import Segment
from rich.style import Style
from textual.color import Color, ColorParseError
from textual.filter import LineFilter
from textual.theme import Theme

from hpcdash.config.document import parse_document
from hpcdash.config.locate import find_line, key_lines
from hpcdash.config.problems import ConfigProblems
from hpcdash.domain.states import JobState, NodeState
from hpcdash.errors import ConfigError

DEFAULT_THEME = "hpcdash-dark"
DEFAULT_LIGHT_THEME = "hpcdash-light"

# Text (WCAG 2.2, 1.4.3) and borders, or text in a palette of 16 colours (1.4.11), against what is
# behind them.
TEXT_CONTRAST = 4.5
SHAPE_CONTRAST = 3.0
# Share of the foreground in dimmed text; Textual's half falls below TEXT_CONTRAST.
DIM_FACTOR = 0.8
# ANSI colours that are no grey, from red round the circle of hues; the offset of the bright ones;
# and the least difference between red, green and blue, of 1, that makes a hue.
_ANSI_HUES, _BRIGHT = (1, 3, 2, 6, 4, 5), 8
_MIN_CHROMA = 0.18

REQUIRED_COLORS = (
    "primary",
    "background",
    "surface",
    "foreground",
    "success",
    "warning",
    "error",
    "accent",
)
OPTIONAL_COLORS = ("secondary", "panel", "boost")
_COLORS = frozenset(REQUIRED_COLORS + OPTIONAL_COLORS)
# Backgrounds of lines that are to be noticed.
_TINTS = ("tint-accent", "tint-warning", "tint-error")
_DEPTHS = ("256", "16")
_KEYS = ("name", "dark", "colors", "variables", *(f"colors-{depth}" for depth in _DEPTHS))
REQUIRED_STATES = (
    JobState.PENDING,
    JobState.HELD,
    JobState.RUNNING,
    JobState.SUSPENDED,
    JobState.COMPLETING,
    JobState.COMPLETED,
    JobState.FAILED,
    JobState.TIMEOUT,
    JobState.CANCELLED,
)
# A state without a colour in the theme has that of its nearest kin.
_KIN: dict[JobState | NodeState, JobState] = {
    JobState.REQUEUED: JobState.PENDING,
    JobState.OUT_OF_MEMORY: JobState.FAILED,
    JobState.NODE_FAILED: JobState.FAILED,
    JobState.PREEMPTED: JobState.CANCELLED,
    JobState.GONE: JobState.CANCELLED,
    JobState.UNKNOWN: JobState.CANCELLED,
    NodeState.IDLE: JobState.COMPLETED,
    NodeState.MIXED: JobState.COMPLETING,
    NodeState.ALLOCATED: JobState.RUNNING,
    NodeState.DRAINING: JobState.HELD,
    NodeState.DRAINED: JobState.HELD,
    NodeState.DOWN: JobState.FAILED,
    NodeState.RESERVED: JobState.SUSPENDED,
    NodeState.PLANNED: JobState.PENDING,
}
_TEXT_STYLES = frozenset(
    {
        "none",
        "not",
        "bold",
        "b",
        "dim",
        "italic",
        "i",
        "underline",
        "u",
        "underline2",
        "reverse",
        "strike",
    }
)


def style_name(state: str) -> str:
    """A state as it is written in style classes and theme variables: `out_of_memory` is
    `out-of-memory`.
    """
    return state.replace("_", "-")


STATE_STYLES: tuple[str, ...] = tuple(
    dict.fromkeys(style_name(state) for state in (*JobState, *NodeState))
)


# Colours of one's own jobs, on dark and on light backgrounds: apart for colour-blind eyes too, and
# never alone, as each comes with a letter.
_JOB_COLORS = {
    True: (
        *("#56b4e9", "#e69f00", "#2fbf8f", "#f0e442", "#d98cc0", "#ff8f5e", "#8fa8ff", "#b5d45a"),
        *("#5fd7d7", "#ffb3c1", "#c9a2ff", "#d9b38c", "#7fdc7f", "#ff9de2", "#9fd3ff", "#e0e0a0"),
    ),
    False: (
        *("#0072b2", "#8a5200", "#00694f", "#6a5c00", "#a3397d", "#a83a0d", "#3f51c7", "#4a660d"),
        *("#00656e", "#b0305a", "#7a3fc0", "#7d5426", "#2b6f2b", "#a8238f", "#1f659e", "#5c5c17"),
    ),
}
_ROW_STYLES = ("cursor", "cursor-blurred", "marked")
# Part of the way to white or black by which a colour is moved until it can be read.
_STEP = 0.08
JOB_STYLES: tuple[str, ...] = tuple(f"job-{number}" for number in range(len(_JOB_COLORS[True])))


def shipped_folder() -> Path:
    """The folder of the themes that come with hpcdash: inside the package when installed, beside it
    in a checkout.
    """
    package = Path(__file__).resolve().parents[1]
    installed = package / "themes"
    return installed if installed.is_dir() else package.parent / "themes"


def load_themes(folders: Iterable[Path] = (), depth: str = "") -> dict[str, Theme]:
    """The shipped themes, then those of `folders` in order; a later theme of the same name replaces
    an earlier one. `depth` is "256" or "16" on terminals with so many colours.

    A folder that is not there holds no themes. Raises ConfigError naming file, line and key.
    """
    themes: dict[str, Theme] = {}
    for folder in (shipped_folder(), *folders):
        for file in sorted(folder.glob("*.toml")):
            theme = load_theme(file, depth)
            themes[theme.name] = theme
    return themes


def load_theme(file: Path, depth: str = "") -> Theme:
    """One theme file. Raises ConfigError naming file, line and key."""
    return _Reader(file).theme(depth)


@lru_cache(maxsize=2)
def default_variables(dark: bool = True) -> Mapping[str, str]:
    """Variables for themes that are not ours: what `App.get_theme_variable_defaults` should
    answer.
    """
    return load_theme(
        shipped_folder() / f"{DEFAULT_THEME if dark else DEFAULT_LIGHT_THEME}.toml"
    ).variables


def contrast(one: Color, other: Color) -> float:
    """The contrast ratio of two opaque colours by WCAG 2.2: 1 to 21."""
    darker, brighter = sorted((_luminance(one), _luminance(other)))
    return (brighter + 0.05) / (darker + 0.05)


def _luminance(color: Color) -> float:
    parts = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in color.normalized
    ]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


class ReadableColors(LineFilter):
    """For terminals with 16 or 256 colours: text whose nearest colours fall below 3:1 is lifted
    from its background, with 16 colours to black or white.
    """

    def __init__(self, system: ColorSystem) -> None:
        super().__init__()
        self.system = system

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [
            Segment(text, style and _readable(style, background.rich_color, self.system), control)
            for text, style, control in segments
        ]


@lru_cache(maxsize=4096)
def _readable(style: Style, background: RichColor, system: ColorSystem) -> Style:
    """The style with a foreground that can be read after its colours became those of `system`."""
    color = style.color
    behind = style.bgcolor or background
    if color is None or color.is_default or behind.is_default:
        return style
    below = Color.from_rich_color(_as_standard(behind.downgrade(system)))
    for number in _hue_key(color) if system is ColorSystem.STANDARD else ():
        hue_color = RichColor.from_ansi(number)
        if contrast(Color.from_rich_color(_as_standard(hue_color)), below) >= SHAPE_CONTRAST:
            return style + Style(color=hue_color)
    if (
        contrast(Color.from_rich_color(_as_standard(color.downgrade(system))), below)
        >= SHAPE_CONTRAST
    ):
        return style
    # Many terminals show bold black as grey: white comes first.
    white = Color(255, 255, 255)
    black = Color(0, 0, 0)
    if system is ColorSystem.EIGHT_BIT:
        # What is meant to be dim is lifted only as far as it has to be.
        far = white if contrast(white, below) >= SHAPE_CONTRAST else black
        start = Color.from_rich_color(_as_standard(color))
        for step in range(1, 10):
            lifted = start.blend(far, step / 10).rich_color
            shown = Color.from_rich_color(_as_standard(lifted.downgrade(system)))
            if contrast(shown, below) >= SHAPE_CONTRAST:
                return style + Style(color=lifted)
    return style + Style(
        color=(white if contrast(white, below) >= SHAPE_CONTRAST else black).rich_color
    )


def _hue_key(color: RichColor) -> tuple[int, ...]:
    """Return the two of 16 colours with a colour's hue; () for one that is nearly grey.

    The nearest of a pale one is white.
    """
    red, green, blue = (part / 255 for part in color.get_truecolor(foreground=True))
    hue, _, _ = rgb_to_hls(red, green, blue)
    if max(red, green, blue) - min(red, green, blue) < _MIN_CHROMA:
        return ()
    number = _ANSI_HUES[round(hue * len(_ANSI_HUES)) % len(_ANSI_HUES)]
    return number, number + _BRIGHT


def _as_standard(color: RichColor) -> RichColor:
    return RichColor.from_triplet(color.get_truecolor(foreground=True))


class _Reader:
    """One file being read; keeps its text, so that an error can name the line."""

    def __init__(self, file: Path) -> None:
        self.file = file
        try:
            self.text = file.read_bytes().decode("utf-8")
        except OSError as error:
            raise ConfigError(f"cannot be read: {error.strerror}", file=str(file)) from error
        except UnicodeDecodeError as error:
            line = error.object[: error.start].count(b"\n") + 1
            raise ConfigError("is not UTF-8", file=str(file), line=line) from error

    def theme(self, depth: str) -> Theme:
        try:
            content: dict[str, Any] = parse_document(self.text, str(self.file))
        except ConfigProblems as error:
            raise ConfigError(error.message, file=error.file, line=error.line) from error
        for key in content:
            if key not in _KEYS:
                raise self.wrong(
                    "unknown key", key, next_step=f"Keys of a theme: {', '.join(_KEYS)}."
                )
        name = content.get("name")
        if not isinstance(name, str) or not name or not name.isprintable():
            raise self.wrong("expected the theme's name", "name")
        dark = content.get("dark", True)
        if not isinstance(dark, bool):
            raise self.wrong("expected true or false", "dark")
        colors = self.colors(content)
        variables = self.variables(content)
        for few in _DEPTHS:
            chosen = self.few_colors(content, few)
            if few == depth:
                colors |= {key: color for key, color in chosen.items() if key in _COLORS}
                variables |= {key: color.hex for key, color in chosen.items() if key not in _COLORS}
        named = {key: color.hex for key, color in colors.items()}
        return Theme(
            name=name,
            dark=dark,
            primary=named["primary"],
            secondary=named.get("secondary"),
            warning=named["warning"],
            error=named["error"],
            success=named["success"],
            accent=named["accent"],
            foreground=named["foreground"],
            background=named["background"],
            surface=named["surface"],
            panel=named.get("panel"),
            boost=named.get("boost"),
            variables=_with_job_colors(
                _derived(colors, dark) | _kin_colors(variables) | variables,
                dark,
                colors["background"],
            ),
        )

    def colors(self, content: dict[str, Any]) -> dict[str, Color]:
        section = self.section(content, "colors")
        for key in section:
            if key not in REQUIRED_COLORS + OPTIONAL_COLORS:
                known = ", ".join(REQUIRED_COLORS + OPTIONAL_COLORS)
                raise self.wrong("unknown colour", key, "colors", f"The colours are {known}.")
        for key in REQUIRED_COLORS:
            if key not in section:
                raise self.wrong("is missing", key, "colors")
        return {key: self.color(value, key, "colors") for key, value in section.items()}

    def variables(self, content: dict[str, Any]) -> dict[str, str]:
        section = self.section(content, "variables")
        for state in REQUIRED_STATES:
            if f"state-{style_name(state)}" not in section:
                raise self.wrong("is missing", f"state-{style_name(state)}", "variables")
        variables = {}
        for key, value in section.items():
            if key.startswith("state-") and key.removeprefix("state-") not in STATE_STYLES:
                raise self.wrong(
                    "unknown state", key, "variables", f"The states are {', '.join(STATE_STYLES)}."
                )
            if key.startswith(("state-", "table-", "job-")):
                variables[key] = self.color(value, key, "variables").hex
            elif isinstance(value, str) and _is_css_value(value):
                variables[key] = value
            else:
                raise self.wrong(
                    "expected a colour such as #80a0c0, or a text style such as bold",
                    key,
                    "variables",
                )
        return variables

    def few_colors(self, content: dict[str, Any], depth: str) -> dict[str, Color]:
        """Return the colours and variables that a terminal with few colours has instead."""
        name = f"colors-{depth}"
        section = self.section(content, name) if name in content else {}
        known = {*_COLORS, *content["variables"], *_TINTS}
        for key in section:
            if key not in known:
                raise self.wrong("no such colour or variable", key, name)
        return {key: self.color(value, key, name) for key, value in section.items()}

    def section(self, content: dict[str, Any], name: str) -> dict[str, Any]:
        section = content.get(name)
        if not isinstance(section, dict):
            raise self.wrong(
                "is missing" if section is None else f"expected a section [{name}]", name
            )
        return section

    def color(self, value: object, key: str, section: str) -> Color:
        color = _parsed(value) if isinstance(value, str) else None
        if color is None or color.a < 1 or color.ansi is not None:
            raise self.wrong("expected an opaque colour such as #80a0c0", key, section)
        return color

    def wrong(self, message: str, key: str, section: str = "", next_step: str = "") -> ConfigError:
        path = (section, key) if section else (key,)
        line = find_line(key_lines(self.text), path)
        return ConfigError(message, next_step, file=str(self.file), line=line, key=".".join(path))


def _parsed(value: str) -> Color | None:
    try:
        return Color.parse(value)
    except ColorParseError:
        return None


def _is_css_value(value: str) -> bool:
    parts = value.split()
    if not parts:
        return False
    if all(word in _TEXT_STYLES for word in parts):
        return True
    color, *alpha = parts
    return (color == "auto" or _parsed(color) is not None) and (
        not alpha or (len(alpha) == 1 and re.fullmatch(r"\d{1,3}(\.\d+)?%", alpha[0]) is not None)
    )


def _kin_colors(variables: dict[str, str]) -> dict[str, str]:
    return {
        f"state-{style_name(state)}": variables[f"state-{style_name(kin)}"]
        for state, kin in _KIN.items()
    }


def _with_job_colors(variables: dict[str, str], dark: bool, background: Color) -> dict[str, str]:
    """Add the colours of jobs that a theme does not name, as far from the rows as text has to be."""
    grounds = [background, *(Color.parse(variables[f"table-{row}"]) for row in _ROW_STYLES)]
    far = Color(255, 255, 255) if dark else Color(0, 0, 0)
    found = {}
    for name, value in zip(JOB_STYLES, _JOB_COLORS[dark], strict=True):
        color = Color.parse(value)
        while min(contrast(color, ground) for ground in grounds) < TEXT_CONTRAST:
            color = color.blend(far, _STEP)
        found[name] = color.hex
    return found | variables


def _derived(colors: dict[str, Color], dark: bool) -> dict[str, str]:
    """The table's own colours, for a theme that does not name them."""
    background = colors["background"]
    foreground = colors["foreground"]
    return {
        "table-cursor": background.blend(colors["primary"], 0.25 if dark else 0.18).hex,
        "table-cursor-blurred": background.blend(foreground, 0.08).hex,
        "table-marked": background.blend(colors["accent"], 0.12).hex,
        "table-header": colors.get("panel", colors["surface"]).hex,
        "table-title": foreground.blend(background, 0.2).hex,
        "table-dim": foreground.blend(background, 0.35).hex,
        "tint-accent": background.blend(colors["accent"], 0.2).hex,
        "tint-warning": background.blend(colors["warning"], 0.12).hex,
        "tint-error": background.blend(colors["error"], 0.15).hex,
        # Others' slots and rules, which are shapes and no text.
        "quiet": foreground.blend(background, 0.6).hex,
    }
