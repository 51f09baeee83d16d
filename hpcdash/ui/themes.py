"""Textual themes from TOML files, whose errors have a file, line and key."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from colorsys import rgb_to_hls
from functools import cache, lru_cache
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

# Least contrast of text (WCAG 2.2, 1.4.3), and of shapes or text in 16 colours (1.4.11).
TEXT_CONTRAST = 4.5
SHAPE_CONTRAST = 3.0
# Share of the foreground in dim text; Textual's 0.5 has less than TEXT_CONTRAST.
DIM_FACTOR = 0.8
# ANSI colours by hue, from red, and the offset of the bright ones.
_ANSI_HUES = (1, 3, 2, 6, 4, 5)
_BRIGHT = 8
# Colours with less difference between red, green and blue (0 to 1) are grey.
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
# Backgrounds of notices.
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
# States whose colour a theme may leave to a similar state.
_SIMILAR_STATES: dict[JobState | NodeState, JobState] = {
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
    """Return a state's name in style classes and theme variables, such as `out-of-memory`."""
    return state.replace("_", "-")


STATE_STYLES: tuple[str, ...] = tuple(
    dict.fromkeys(style_name(state) for state in (*JobState, *NodeState))
)


# Colours of the user's jobs on dark (True) and light backgrounds, distinct for colour-blind people
# too, and always beside a letter.
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
# Share of white or black that is blended into a colour until it has enough contrast.
_STEP = 0.08
JOB_STYLES: tuple[str, ...] = tuple(f"job-{number}" for number in range(len(_JOB_COLORS[True])))


def shipped_folder() -> Path:
    """Return the folder of hpcdash's themes, in the package or beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "themes"
    return installed if installed.is_dir() else package.parent / "themes"


def load_themes(folders: Iterable[Path] = (), depth: str = "") -> dict[str, Theme]:
    """Return the shipped themes and those of `folders`; a later name wins.

    `depth` is "256" or "16" for terminals with that many colours. A folder may be missing. Raises
    ConfigError with file, line and key.
    """
    own = (load_theme(file, depth) for folder in folders for file in _theme_files(folder))
    return {theme.name: theme for theme in (*_shipped_themes(depth), *own)}


@cache
def _shipped_themes(depth: str) -> tuple[Theme, ...]:
    return tuple(load_theme(file, depth) for file in _theme_files(shipped_folder()))


def _theme_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.toml"))


def load_theme(file: Path, depth: str = "") -> Theme:
    """Return the theme of a file. Raises ConfigError with file, line and key."""
    return _ThemeFile(file).theme(depth)


@lru_cache(maxsize=2)
def default_variables(dark: bool = True) -> Mapping[str, str]:
    """Return the theme variables for Textual's own themes."""
    return load_theme(
        shipped_folder() / f"{DEFAULT_THEME if dark else DEFAULT_LIGHT_THEME}.toml"
    ).variables


def contrast(first: Color, second: Color) -> float:
    """Return the contrast ratio of two opaque colours by WCAG 2.2, from 1 to 21."""
    darker, brighter = sorted((_luminance(first), _luminance(second)))
    return (brighter + 0.05) / (darker + 0.05)


def _luminance(color: Color) -> float:
    parts = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in color.normalized
    ]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


class ReadableColors(LineFilter):
    """Filter that raises the contrast of text in 16 or 256 colours to at least 3:1."""

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
    """Return the style with a foreground that is readable in the colours of `system`."""
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
    # White has precedence, as many terminals show bold black as grey.
    white = Color(255, 255, 255)
    black = Color(0, 0, 0)
    far = white if contrast(white, below) >= SHAPE_CONTRAST else black
    if system is ColorSystem.EIGHT_BIT:
        # Dim text stays as dim as possible.
        start = Color.from_rich_color(_as_standard(color))
        for step in range(1, 10):
            blended = start.blend(far, step / 10).rich_color
            shown = Color.from_rich_color(_as_standard(blended.downgrade(system)))
            if contrast(shown, below) >= SHAPE_CONTRAST:
                return style + Style(color=blended)
    return style + Style(color=far.rich_color)


def _hue_key(color: RichColor) -> tuple[int, ...]:
    """Return the two ANSI colours with a colour's hue; () for a grey, or nearly grey, colour.

    The nearest ANSI colour of a pale colour would be white.
    """
    red, green, blue = (part / 255 for part in color.get_truecolor(foreground=True))
    hue, _, _ = rgb_to_hls(red, green, blue)
    if max(red, green, blue) - min(red, green, blue) < _MIN_CHROMA:
        return ()
    number = _ANSI_HUES[round(hue * len(_ANSI_HUES)) % len(_ANSI_HUES)]
    return number, number + _BRIGHT


def _as_standard(color: RichColor) -> RichColor:
    return RichColor.from_triplet(color.get_truecolor(foreground=True))


class _ThemeFile:
    """Theme file, with its text for the line numbers of errors."""

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
                raise self.problem(
                    "unknown key", key, next_step=f"Keys of a theme: {', '.join(_KEYS)}."
                )
        name = content.get("name")
        if not isinstance(name, str) or not name or not name.isprintable():
            raise self.problem("expected the theme's name", "name")
        dark = content.get("dark", True)
        if not isinstance(dark, bool):
            raise self.problem("expected true or false", "dark")
        colors = self.colors(content)
        variables = self.variables(content)
        for few in _DEPTHS:
            chosen = self.few_colors(content, few)
            if few == depth:
                colors |= {key: color for key, color in chosen.items() if key in _COLORS}
                variables |= {key: color.hex for key, color in chosen.items() if key not in _COLORS}
        named = {key: color.hex for key, color in colors.items()}
        similar = {
            f"state-{style_name(state)}": variables[f"state-{style_name(other)}"]
            for state, other in _SIMILAR_STATES.items()
        }
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
                _derived(colors, dark) | similar | variables,
                dark,
                colors["background"],
            ),
        )

    def colors(self, content: dict[str, Any]) -> dict[str, Color]:
        section = self.section(content, "colors")
        for key in section:
            if key not in REQUIRED_COLORS + OPTIONAL_COLORS:
                known = ", ".join(REQUIRED_COLORS + OPTIONAL_COLORS)
                raise self.problem("unknown colour", key, "colors", f"The colours are {known}.")
        for key in REQUIRED_COLORS:
            if key not in section:
                raise self.problem("is missing", key, "colors")
        return {key: self.color(value, key, "colors") for key, value in section.items()}

    def variables(self, content: dict[str, Any]) -> dict[str, str]:
        section = self.section(content, "variables")
        for state in REQUIRED_STATES:
            if f"state-{style_name(state)}" not in section:
                raise self.problem("is missing", f"state-{style_name(state)}", "variables")
        variables = {}
        for key, value in section.items():
            if key.startswith("state-") and key.removeprefix("state-") not in STATE_STYLES:
                raise self.problem(
                    "unknown state", key, "variables", f"The states are {', '.join(STATE_STYLES)}."
                )
            if key.startswith(("state-", "table-", "job-")):
                variables[key] = self.color(value, key, "variables").hex
            elif isinstance(value, str) and _is_css_value(value):
                variables[key] = value
            else:
                raise self.problem(
                    "expected a colour such as #80a0c0, or a text style such as bold",
                    key,
                    "variables",
                )
        return variables

    def few_colors(self, content: dict[str, Any], depth: str) -> dict[str, Color]:
        """Return the colours and variables for a terminal with few colours."""
        name = f"colors-{depth}"
        section = self.section(content, name) if name in content else {}
        known = {*_COLORS, *content["variables"], *_TINTS}
        for key in section:
            if key not in known:
                raise self.problem("unknown colour or variable", key, name)
        return {key: self.color(value, key, name) for key, value in section.items()}

    def section(self, content: dict[str, Any], name: str) -> dict[str, Any]:
        section = content.get(name)
        if not isinstance(section, dict):
            raise self.problem(
                "is missing" if section is None else f"expected a section [{name}]", name
            )
        return section

    def color(self, value: object, key: str, section: str) -> Color:
        color = _parsed(value) if isinstance(value, str) else None
        if color is None or color.a < 1 or color.ansi is not None:
            raise self.problem("expected an opaque colour such as #80a0c0", key, section)
        return color

    def problem(
        self, message: str, key: str, section: str = "", next_step: str = ""
    ) -> ConfigError:
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


def _with_job_colors(variables: dict[str, str], dark: bool, background: Color) -> dict[str, str]:
    """Add missing colours of jobs, with the contrast of text on all kinds of rows."""
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
    """Return colours of tables and notices that a theme may omit, from its other colours."""
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
        # Rules and other users' slots, which are shapes.
        "quiet": foreground.blend(background, 0.6).hex,
    }
