"""Page of a script or a difference: line numbers, colours, notes, folds, matches of a search."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from msgspec import Struct
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from hpcdash.domain.scripts import Fold, LineKind, ScriptLine
from hpcdash.domain.text import cell_width

_SIDEWAYS_CELLS = 8
# Line, start and end in letters.
Match = tuple[int, int, int]
NOTE_SIGN = "└ "
_GAP_CELLS = 3
# Notes are in one column beside the directives, which wider directives do not move.
_DIRECTIVES_SHARE = 0.6
_ONE_LETTER_WIDE = re.compile(r"[\x20-\x7e]*")
# Start and end in letters, and one of PARTS.
Part = tuple[int, int, str]
PARTS = ("comment", "string", "keyword", "number", "variable")
# Longer scripts take seconds to colour.
MAX_LETTERS = 200_000
_SHEBANG = re.compile(r"#!\s*(?:\S*/)?(\S+)(?:\s+(?:-\S+\s+)*(\S+))?")
# Prefixes of Pygments' tokens, and their parts.
_TOKENS = (
    ("Token.Comment", "comment"),
    ("Token.Literal.String.Interpol", "variable"),
    ("Token.Literal.String", "string"),
    ("Token.Literal.Number", "number"),
    ("Token.Keyword", "keyword"),
    ("Token.Name.Builtin", "keyword"),
    ("Token.Name.Variable", "variable"),
    ("Token.Operator.Word", "keyword"),
)


class ScriptPage(ScrollView, can_focus=True):
    """Page of lines with scrolling, wrapping and search; a closed fold is a single line."""

    ALLOW_SELECT = False
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        *(
            f"script-page--{name}"
            for name in (*PARTS, *LineKind, "gutter", "note", "fold", "match", "current")
        ),
    }
    DEFAULT_CSS = """
    ScriptPage {
        height: 1fr; width: 1fr; background: $background; color: $foreground;
        scrollbar-size-vertical: 1; scrollbar-size-horizontal: 1; scrollbar-gutter: stable;
        & > .script-page--gutter { color: $table-dim; }
        & > .script-page--note { color: $table-dim; text-style: italic; }
        & > .script-page--fold { color: $primary; text-style: bold; }
        & > .script-page--plain { color: $foreground; }
        & > .script-page--directive { color: $accent; }
        & > .script-page--comment { color: $table-dim; }
        & > .script-page--string { color: $success; }
        & > .script-page--keyword { color: $primary; }
        & > .script-page--number { color: $warning; }
        & > .script-page--variable { color: $secondary; text-style: bold; }
        & > .script-page--added { color: $success; background: $success 10%; }
        & > .script-page--removed { color: $error; background: $error 10%; }
        & > .script-page--place { color: $primary; }
        & > .script-page--file { text-style: bold; }
        & > .script-page--match { background: $warning 30%; color: $foreground; text-style: underline; }
        & > .script-page--current { background: $warning; color: $background; text-style: bold; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down,j", "by_lines(1)", "down", show=False, priority=True),
        Binding("up,k", "by_lines(-1)", "up", show=False, priority=True),
        Binding("pagedown", "by_pages(1)", "page down", show=False, priority=True),
        Binding("pageup", "by_pages(-1)", "page up", show=False, priority=True),
        Binding("home", "to_line(0)", "first line", show=False, priority=True),
        Binding("end", "to_line(-1)", "last line", show=False, priority=True),
        Binding("left", "sideways(-1)", "left", show=False, priority=True),
        Binding("right", "sideways(1)", "right", show=False, priority=True),
        Binding("enter", "fold", "open or fold", show=False, priority=True),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.lines: Sequence[ScriptLine] = ()
        self.folds: Sequence[Fold] = ()
        self.is_open = False
        self.wrap = False
        self.matches: list[Match] = []
        self.current = -1
        self._colours: Sequence[Sequence[Part]] = ()
        self._layout = PageLayout((), 1, 0)

    # -- contents

    def show(
        self, lines: Sequence[ScriptLine], folds: Sequence[Fold] = (), *, stay: bool = False
    ) -> None:
        """Show other lines from the top; with `stay`, at the present scroll position."""
        self.lines = lines
        self.folds = folds
        self._colours = ()
        self.clear_search()
        self._lay_out()
        if not stay:
            self.scroll_to(0, 0, animate=False)

    def colour(self, parts: Sequence[Sequence[Part]]) -> None:
        """Set the coloured parts of each line."""
        self._colours = parts
        self.refresh()

    def set_wrap(self, wrap: bool) -> None:
        """Wrap long lines, or not; the top line stays at the top."""
        top = self._top_line()
        self.wrap = wrap
        self._lay_out()
        self.scroll_to(x=0, y=self._line_row(top), animate=False, immediate=True)

    def action_fold(self) -> None:
        """Open or close all folds; the top line stays at the top."""
        if not self.folds:
            return
        top = self._top_line()
        self.is_open = not self.is_open
        self._lay_out()
        self.scroll_to(y=self._line_row(top), animate=False, immediate=True)

    def on_click(self, event: events.Click) -> None:
        row = self.scroll_offset.y + event.y
        if row < len(self._layout.rows) and self._layout.rows[row].is_fold:
            self.action_fold()

    def on_resize(self, event: events.Resize) -> None:
        top = self._top_line()
        self._lay_out()
        self.scroll_to(y=self._line_row(top), animate=False, immediate=True)

    def _lay_out(self) -> None:
        width = self.scrollable_content_region.width or self.size.width
        self._layout = lay_out(
            self.lines, width, wrap=self.wrap, folds=self.folds, is_open=self.is_open
        )
        cells = self._layout.gutter + self._layout.cells
        self.virtual_size = Size(min(cells, width) if self.wrap else cells, len(self._layout.rows))
        self.refresh()

    def _top_line(self) -> int:
        rows = self._layout.rows
        return rows[min(self.scroll_offset.y, len(rows) - 1)].line if rows else 0

    def _line_row(self, line: int) -> int:
        return bisect_left(self._layout.rows, line, key=lambda placed: placed.line)

    # -- moving

    def action_by_lines(self, lines: int) -> None:
        self.scroll_relative(y=lines, animate=False, immediate=True)

    def action_by_pages(self, pages: int) -> None:
        self.scroll_relative(
            y=pages * max(1, self.scrollable_content_region.height - 1),
            animate=False,
            immediate=True,
        )

    def action_to_line(self, row: int) -> None:
        self.scroll_to(y=row if row >= 0 else self.max_scroll_y, animate=False)

    def action_sideways(self, steps: int) -> None:
        self.scroll_relative(x=steps * _SIDEWAYS_CELLS, animate=False, immediate=True)

    # -- searching

    def search(self, pattern: str) -> int:
        """Mark the matches of `pattern` and go to the first below the top; return their number.

        Case matters only if `pattern` has an upper-case letter.
        """
        ignores_case = pattern == pattern.lower()
        self.matches = []
        for number, line in enumerate(self.lines):
            text = line.text.lower() if ignores_case else line.text
            # The lower case of some letters is two letters, which would shift the matches.
            text = text if len(text) == len(line.text) else line.text
            start = text.find(pattern)
            while start >= 0:
                end = start + len(pattern)
                self.matches.append((number, start, end))
                start = text.find(pattern, end)
        matched_lines = [line for line, _, _ in self.matches]
        is_hidden = not self.is_open and any(
            bisect_left(matched_lines, fold.first) < bisect_left(matched_lines, fold.last)
            for fold in self.folds
        )
        if is_hidden:
            self.action_fold()
        below = bisect_left(matched_lines, self._top_line())
        self.current = below if below < len(matched_lines) else 0
        self._show_current()
        if is_hidden:
            # Only after a refresh the page can scroll to the opened lines.
            self.call_after_refresh(self._show_current)
        return len(self.matches)

    def step(self, places: int) -> None:
        """Go `places` matches further or back, cyclically."""
        if self.matches:
            self.current = (self.current + places) % len(self.matches)
            self._show_current()

    def clear_search(self) -> None:
        self.matches = []
        self.current = -1
        self.refresh()

    def _show_current(self) -> None:
        self.refresh()
        if not self.matches:
            return
        line, start, _ = self.matches[self.current]
        row = self._line_row(line)
        rows = self._layout.rows
        while (
            row + 1 < len(rows)
            and rows[row + 1].line == line
            and (rows[row].heading or start >= rows[row].last)
        ):
            row += 1
        height = max(1, self.scrollable_content_region.height)
        if not self.scroll_offset.y <= row < self.scroll_offset.y + height:
            self.scroll_to(y=max(0, row - height // 3), animate=False)
        room = self.scrollable_content_region.width - self._layout.gutter
        column = cell_width(self.lines[line].text[rows[row].first : start])
        if not self.wrap and not self.scroll_offset.x <= column < self.scroll_offset.x + room:
            self.scroll_to(x=max(0, column - room // 2), animate=False)

    # -- drawing

    def _style(self, name: str) -> Style:
        return self.get_component_rich_style(f"script-page--{name}")

    def render_line(self, y: int) -> Strip:
        left, top = self.scroll_offset
        width = self.size.width
        background = self.rich_style
        if top + y >= len(self._layout.rows):
            return Strip.blank(width, background)
        placed = self._layout.rows[top + y]
        line = self.lines[placed.line]
        if placed.heading:
            style = background + self._style("fold" if placed.is_fold else "note")
            heading = Segment(" " * self._layout.gutter + placed.heading, style)
            return Strip([heading]).crop(left, left + width).extend_cell_length(width, background)
        # The colours of a difference extend to the edge of the page.
        base = self._style(LineKind.PLAIN if line.kind is LineKind.DIRECTIVE else line.kind)
        has_number = line.number is not None and not placed.is_note and placed.first == 0
        number = f"{line.number if has_number else '':>{self._layout.gutter - 1}} "
        gutter = Segment(number, background + self._style("gutter"))
        room = width - self._layout.gutter
        if not self.wrap and not placed.note and not placed.is_note and line.text.isascii():
            # Only the visible part of a very long line is built.
            placed = placed._replace(
                first=min(left, placed.last), last=min(left + room, placed.last)
            )
            left = 0
        body = Strip(self._body_segments(line, placed, base))
        if not self.wrap:
            body = body.crop(left, left + room)
        body = body.extend_cell_length(room, base).crop(0, room)
        return Strip.join([Strip([gutter]), body])

    def _body_segments(
        self, line: ScriptLine, placed: PlacedScriptLine, base: Style
    ) -> list[Segment]:
        note_style = base + self._style("note")
        if placed.is_note:
            sign = NOTE_SIGN if placed.first == 0 else " " * len(NOTE_SIGN)
            return [Segment(sign + line.note[placed.first : placed.last], note_style)]
        segments = self._coloured(line, placed, base)
        if placed.note:
            cells = cell_width(line.text[placed.first : placed.last])
            segments.append(Segment(" " * (placed.note_column - cells) + placed.note, note_style))
        return segments

    def _coloured(self, line: ScriptLine, placed: PlacedScriptLine, base: Style) -> list[Segment]:
        parts = [
            (start, end, self._style(name)) for start, end, name in self._parts(line, placed.line)
        ]
        at = bisect_left(self.matches, (placed.line, 0, 0))
        while at < len(self.matches) and self.matches[at][0] == placed.line:
            _, start, end = self.matches[at]
            parts.append((start, end, self._style("current" if at == self.current else "match")))
            at += 1
        text = Text(line.text[placed.first : placed.last], base, end="")
        for start, end, style in parts:
            if start < placed.last and end > placed.first:
                text.stylize(style, max(0, start - placed.first), end - placed.first)
        # Rich drops the style of a text without spans.
        return list(text.render(self.app.console)) if text.spans else [Segment(text.plain, base)]

    def _parts(self, line: ScriptLine, at: int) -> Sequence[Part]:
        if line.kind is LineKind.DIRECTIVE:
            return ((0, len(line.text), LineKind.DIRECTIVE),)
        return self._colours[at] if at < len(self._colours) else ()


class PlacedScriptLine(NamedTuple):
    """Row of the screen: letters `first` to `last` of a line's text, or of its note if `is_note`.

    `note` is beside it, from the cell `note_column` on. A row with a `heading` has no text of the
    line; it opens or closes a fold if `is_fold`.
    """

    line: int
    first: int
    last: int
    note: str = ""
    note_column: int = 0
    is_note: bool = False
    heading: str = ""
    is_fold: bool = False


class PageLayout(Struct, frozen=True):
    """Rows of a page; the first `gutter` cells of each are for the line number."""

    rows: Sequence[PlacedScriptLine]
    gutter: int
    # Width of the widest row, without the gutter.
    cells: int


def lay_out(
    lines: Sequence[ScriptLine],
    width: int,
    *,
    wrap: bool,
    folds: Sequence[Fold] = (),
    is_open: bool = False,
) -> PageLayout:
    """Place lines on a page of `width` cells; with `wrap` no row is wider than the page.

    A fold is a heading; if folds are open, its lines follow, each block below its explanation.
    """
    last_number = (lines[-1].number or 0) if lines else 0
    gutter = len(str(last_number)) + 2 if last_number else 1
    room = max(8, width - gutter)
    noted_widths = [cell_width(line.text) for line in lines if line.note]
    note_column = _GAP_CELLS + max(
        (cells for cells in noted_widths if cells <= int(room * _DIRECTIVES_SHARE)), default=0
    )
    rows: list[PlacedScriptLine] = []
    cells = 0
    headings = _headings(folds, is_open=is_open)
    hidden = {at for fold in folds if not is_open for at in range(fold.first, fold.last)}
    for at, line in enumerate(lines):
        for heading, is_fold in headings.get(at, ()):
            rows.extend(
                PlacedScriptLine(at, 0, 0, heading=heading[first:last], is_fold=is_fold)
                for first, last in _pieces(heading, room if wrap else len(heading) + 1)
            )
            cells = max(cells, cell_width(heading))
        if at in hidden:
            continue
        text_cells = cell_width(line.text)
        if not line.note and (not wrap or text_cells <= room):
            rows.append(PlacedScriptLine(at, 0, len(line.text)))
            cells = max(cells, text_cells)
            continue
        note_cells = cell_width(line.note)
        column = max(text_cells + _GAP_CELLS, min(note_column, room - note_cells))
        is_beside = bool(note_cells) and column + note_cells <= room
        pieces = _pieces(line.text, room) if wrap and text_cells > room else [(0, len(line.text))]
        rows.extend(
            PlacedScriptLine(at, first, last, line.note if is_beside else "", column)
            for first, last in pieces
        )
        cells = max(cells, column + note_cells if is_beside else text_cells)
        if note_cells and not is_beside:
            sign_cells = cell_width(NOTE_SIGN)
            rows.extend(
                PlacedScriptLine(at, first, last, is_note=True)
                for first, last in _pieces(line.note, room - sign_cells)
            )
    return PageLayout(rows, gutter, min(cells, room) if wrap else cells)


def _headings(folds: Sequence[Fold], *, is_open: bool) -> dict[int, list[tuple[str, bool]]]:
    """Return the headings above lines by index: texts, and whether each is that of a fold."""
    found: dict[int, list[tuple[str, bool]]] = {}
    for fold in folds:
        found[fold.first] = [(f"{'▾' if is_open else '▸'} {fold.title}", True)]
        for at, block in fold.blocks if is_open else ():
            name = f"{block.name}: " if block.name else ""
            found.setdefault(at, []).append((f"  {name}{block.explanation}", False))
    return found


def _pieces(text: str, room: int) -> list[tuple[int, int]]:
    """Return the pieces of a text, none wider than `room` cells, as (start, end)."""
    if _ONE_LETTER_WIDE.fullmatch(text):
        return [
            (first, min(first + room, len(text))) for first in range(0, max(1, len(text)), room)
        ]
    pieces: list[tuple[int, int]] = []
    first = 0
    cells = 0
    for at, letter in enumerate(text):
        letter_cells = cell_width(letter)
        if cells + letter_cells > room and at > first:
            pieces.append((first, at))
            first = at
            cells = 0
        cells += letter_cells
    return [*pieces, (first, len(text))]


_LANGUAGES = {
    "sh": "bash",
    "dash": "bash",
    "ksh": "bash",
    "bash": "bash",
    "zsh": "zsh",
    "csh": "tcsh",
    "tcsh": "tcsh",
    "fish": "fish",
    "python": "python",
    "perl": "perl",
    "ruby": "ruby",
    "rscript": "r",
    "julia": "julia",
    "lua": "lua",
    "node": "javascript",
    "tclsh": "tcl",
    "awk": "awk",
}


def script_language(first_line: str) -> str:
    """Return Pygments' name of a script's language by its first line; bash if it is unknown."""
    found = _SHEBANG.match(first_line)
    if found is None:
        return "bash"
    program = (found[2] if found[1] == "env" and found[2] else found[1]).rpartition("/")[2]
    return _LANGUAGES.get(re.sub(r"[0-9.]+$", "", program).lower(), "bash")


def coloured_parts(lines: Sequence[str], language: str) -> list[list[Part]]:
    """Return the coloured parts of each line; lines beyond MAX_LETTERS have none.

    This takes up to a second: run it in a thread.
    """
    read_lines: list[str] = []
    letters = 0
    for line in lines:
        letters += len(line) + 1
        if letters > MAX_LETTERS:
            break
        read_lines.append(line)
    parts: list[list[Part]] = [[] for _ in lines]
    # Pygments would slow the start of the program.
    from rich.syntax import Syntax

    lexer = Syntax("", language).lexer
    if lexer is None or not read_lines:
        return parts
    row = 0
    column = 0
    for token, text in lexer.get_tokens("\n".join(read_lines)):
        name = next((part for prefix, part in _TOKENS if str(token).startswith(prefix)), "")
        for number, piece in enumerate(text.split("\n")):
            if number:
                row += 1
                column = 0
            if name and piece and row < len(parts):
                parts[row].append((column, column + len(piece), name))
            column += len(piece)
    return parts
