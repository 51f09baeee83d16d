"""Picture of a chart, and messages of the mouse's actions on it; draws nothing itself."""

from __future__ import annotations

from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from hpcdash.services.metrics.charts.state import MAX_RUNS, Picture

_RUN_COLOURS = (
    "primary",
    "warning",
    "success",
    "accent",
    "secondary",
    "error",
    "foreground",
    "primary",
)
_STYLES = ("axis", "title", "restart", "cursor", "warning", "bad")
_OF_RUNS = tuple(
    f"{part}-{number}" for number in range(MAX_RUNS) for part in ("run", "raw", "again", "letter")
)


class ChartPlot(Widget):
    """A picture that can be zoomed by the wheel, dragged, and pointed at."""

    ALLOW_SELECT = False
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        f"chart-plot--{name}" for name in (*_STYLES, *_OF_RUNS)
    }
    DEFAULT_CSS = (
        """
    ChartPlot {
        height: 1fr; width: 1fr; background: $background; color: $foreground;
        & > .chart-plot--axis { color: $table-dim; }
        & > .chart-plot--title { color: $foreground; text-style: bold; }
        & > .chart-plot--restart { color: $table-dim; }
        & > .chart-plot--cursor { color: $accent; }
        & > .chart-plot--warning { color: $warning; text-style: bold; }
        & > .chart-plot--bad { color: $error; text-style: bold; }
    """
        + "".join(
            f"""
        & > .chart-plot--run-{number} {{ color: ${colour}; }}
        & > .chart-plot--raw-{number} {{ color: ${colour} 50%; }}
        & > .chart-plot--again-{number} {{ color: ${colour} 60%; }}
        & > .chart-plot--letter-{number} {{ color: ${colour}; text-style: bold reverse; }}
    """
            for number, colour in enumerate(_RUN_COLOURS)
        )
        + "}"
    )

    class Zoomed(Message):
        """The wheel turned at an x: the span becomes `factor` times as wide."""

        def __init__(self, factor: float, x: float) -> None:
            super().__init__()
            self.factor = factor
            self.x = x

    class Dragged(Message):
        """The chart was dragged by a part of its width, and of the height of a panel."""

        def __init__(self, across: float, down: float, panel: int) -> None:
            super().__init__()
            self.across = across
            self.down = down
            self.panel = panel

    class Pointed(Message):
        """A place of a panel was clicked on."""

        def __init__(self, x: float, panel: int) -> None:
            super().__init__()
            self.x = x
            self.panel = panel

    class Resized(Message):
        """Another picture is needed."""

    def __init__(self) -> None:
        super().__init__()
        self.picture = Picture()
        # Position of a pressed button, last position of the mouse, and the panel of both.
        self._down: tuple[int, int, int] | None = None
        self._has_moved = False

    def show(self, picture: Picture) -> None:
        if picture.lines != self.picture.lines:
            self.refresh()
        self.picture = picture

    def on_resize(self, event: events.Resize) -> None:
        self.post_message(self.Resized())

    # -- drawing

    def sign_style(self, name: str) -> Style:
        """Return the style of a piece of the picture; '' for none."""
        return self.get_component_rich_style(f"chart-plot--{name}") if name else Style()

    def render_line(self, y: int) -> Strip:
        base = self.rich_style
        line = self.picture.lines[y] if y < len(self.picture.lines) else ()
        segments = [Segment(text, base + self.sign_style(name)) for text, name in line]
        return Strip(segments).adjust_cell_length(self.size.width, base)

    # -- mouse

    def _panel_at(self, event: events.MouseEvent) -> int | None:
        """Return the number of the panel under the mouse; None for none."""
        for number, place in enumerate(self.picture.panels):
            is_across = place.left <= event.x < place.left + place.width
            if is_across and place.top <= event.y < place.top + place.height:
                return number
        return None

    def _wheel(self, event: events.MouseEvent, factor: float) -> None:
        panel = self._panel_at(event)
        if panel is not None:
            event.stop()
            self.post_message(self.Zoomed(factor, self.picture.panels[panel].x_at(event.x)))

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self._wheel(event, 0.8)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self._wheel(event, 1.25)

    def on_mouse_down(self, event: events.MouseDown) -> None:
        panel = self._panel_at(event)
        if panel is not None and event.button == 1:
            self._down = (event.x, event.y, panel)
            self._has_moved = False
            self.capture_mouse()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        if self._down is None:
            return
        x, y, panel = self._down
        if (event.x, event.y) == (x, y) or panel >= len(self.picture.panels):
            return
        place = self.picture.panels[panel]
        self._down = (event.x, event.y, panel)
        self._has_moved = True
        self.post_message(
            self.Dragged((x - event.x) / place.width, (event.y - y) / place.height, panel)
        )

    def on_mouse_up(self, event: events.MouseUp) -> None:
        down = self._down
        self._down = None
        self.release_mouse()
        if down is None or self._has_moved:
            return
        x, _, panel = down
        if panel < len(self.picture.panels):
            self.post_message(self.Pointed(self.picture.panels[panel].x_at(x), panel))
