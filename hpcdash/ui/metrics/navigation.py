"""What keys and the mouse do to what is shown of a chart: span, height, scale, smoothing, cursor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType

from hpcdash.services.metrics.charts.state import LETTERS, SMOOTHINGS, ChartState, Mark, explained
from hpcdash.ui.metrics.following import ChartFollowing, is_ascii
from hpcdash.ui.metrics.plot import ChartPlot

_SAID_SECONDS = 5.0


class ChartSeeing(ChartFollowing):
    """Every key changes the state, and a picture of it is drawn."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "sideways(-1)", "left", show=False, priority=True),
        Binding("right", "sideways(1)", "right", show=False, priority=True),
        Binding("up", "upwards(1)", "up", show=False, priority=True),
        Binding("down", "upwards(-1)", "down", show=False, priority=True),
        Binding("pageup", "stretch(0.8)", "more of the height", show=False, priority=True),
        Binding("pagedown", "stretch(1.25)", "less of the height", show=False, priority=True),
        Binding("equals_sign", "zoom(0.5)", "zoom in", show=False),
        Binding("home", "whole", "all of it", show=False, priority=True),
        Binding("end", "end", "the end, and follow it", show=False, priority=True),
    ]

    said = ""

    def _say(self, words: str) -> None:
        """Say something of what a key did, in place of the hint, for a while."""
        self.said = words
        self.post_message(self.CrumbsChanged())
        if words:
            self.set_timer(_SAID_SECONDS, partial(self._say, ""))

    def help_moving(self) -> Sequence[tuple[str, str]]:
        return (
            ("← →", "move what is seen, or the cursor"),
            ("↑ ↓", "move the height; pgup pgdn stretch it"),
            ("home end", "all of it; the end, and follow it"),
            ("mouse", "the wheel zooms, dragging moves, a click sets the cursor"),
        )

    def help_signs(self) -> Text:
        plot, text = self.query_one(ChartPlot), Text()
        for one in explained(is_ascii=is_ascii()):
            style = plot.get_component_rich_style(f"chart-plot--{one.style}") if one.style else ""
            text.append("  ").append(one.signs, style).append(" " * (12 - len(one.signs))).append(f"{one.words}\n")
        return text

    def marks_found(self) -> list[tuple[str, Mark]]:
        """Letter and finding, the gravest and newest first of each run."""
        several = len(self.runs) > 1
        return [
            (letter if several else "", mark)
            for letter, run in zip(LETTERS, self.runs, strict=False)
            for mark in (run.reading.found if run.reading is not None else ())
        ]

    def _see(self, state: ChartState) -> None:
        if state != self.state:
            self.state = state
            self._dirty.set()

    def _has_panels(self) -> bool:
        return bool(self.picture.panels)

    def action_sideways(self, steps: int) -> None:
        if not self._has_panels():
            return
        if self.state.cursor is not None:
            self._move_cursor(steps)
        elif self.state.span is None:
            self._say("all of it is shown; + zooms in, c points at values")
        else:
            self._see(self.state.panned(steps * 0.25, self.picture.whole))

    def _move_cursor(self, cells: int) -> None:
        place = self.picture.panels[0]
        cell = (place.x[1] - place.x[0]) / place.width
        at = (self.state.cursor or 0.0) + cells * cell
        begin, end = self.picture.whole
        state = replace(self.state, cursor=min(max(at, begin), end))
        if not place.x[0] <= at <= place.x[1] and self.state.span is not None:
            state = replace(state.panned(cells * 0.25, self.picture.whole), cursor=state.cursor)
        self._see(state)

    def action_upwards(self, steps: int) -> None:
        self._move_height(steps * 0.2, 1.0)

    def action_stretch(self, factor: float) -> None:
        self._move_height(0.0, factor)

    def _move_height(self, part: float, factor: float, panel: int | None = None) -> None:
        """Another y range of a panel: moved by a part of it, and so many times as high."""
        if not self._has_panels():
            return
        at = self.state.panel if panel is None else panel
        place = self.picture.panels[min(at, len(self.picture.panels) - 1)]
        low, high = place.y
        middle, half = (low + high) / 2 + part * (high - low), factor * (high - low) / 2
        self._see(replace(self.state, heights={**self.state.heights, place.name: (middle - half, middle + half)}))

    def action_whole(self) -> None:
        self._see(replace(self.state, span=None, follows=True, heights={}, cursor=None))

    def action_end(self) -> None:
        self._see(replace(self.state, follows=True))

    def action_zoom(self, factor: float) -> None:
        if self._has_panels():
            self._see(self.state.zoomed(factor, self.picture.whole, self.state.cursor))

    def do_zoom_in(self) -> None:
        self.action_zoom(0.5)

    def do_zoom_out(self) -> None:
        self.action_zoom(2.0)

    def do_follow(self) -> None:
        if self.state.span is None:
            self._say("all of it is shown, and what comes")
            return
        # One that stops stays where it is.
        span = self.state.shown(self.picture.whole)
        self._see(replace(self.state, span=span, follows=not self.state.follows))

    def do_log_scale(self) -> None:
        self._see(replace(self.state, log_y=not self.state.log_y, heights={}))

    def do_outliers(self) -> None:
        self._see(replace(self.state, leaves_out=not self.state.leaves_out, heights={}))
        self._say("outliers are left out" if self.state.leaves_out else "all is shown")

    def do_smoothing(self) -> None:
        at = (SMOOTHINGS.index(self.state.smoothing) + 1) % len(SMOOTHINGS)
        self._see(replace(self.state, smoothing=SMOOTHINGS[at]))
        self._say({"auto": "smoothed as fits what is seen", "none": "not smoothed"}.get(SMOOTHINGS[at], SMOOTHINGS[at]))

    def do_x_axis(self) -> None:
        axes = self.picture.axes
        if len(axes) > 1:
            axis = axes[(axes.index(self.picture.axis) + 1) % len(axes)]
            self._see(replace(self.state, axis=axis, span=None, follows=True, cursor=None))

    def do_next_panel(self) -> None:
        if self._has_panels():
            self._see(replace(self.state, panel=(self.state.panel + 1) % len(self.picture.panels)))

    def do_point(self) -> None:
        """A cursor in the middle, or none."""
        if not self._has_panels():
            return
        if self.state.cursor is not None:
            self._see(replace(self.state, cursor=None))
            return
        begin, end = self.picture.panels[0].x
        self._see(replace(self.state, cursor=(begin + end) / 2))

    def do_next_found(self) -> None:
        self._go_found(1)

    def do_previous_found(self) -> None:
        self._go_found(-1)

    def _go_found(self, way: int) -> None:
        places = sorted({mark.x for _, mark in self.marks_found() if mark.x == mark.x})
        if not places:
            self._say("nothing stands out so far")
            return
        at = self.state.cursor
        further = [x for x in places if at is None or (x > at if way > 0 else x < at)]
        if further:
            x = further[0] if way > 0 else further[-1]
        else:
            x = places[0] if way > 0 else places[-1]
        state = replace(self.state, cursor=x)
        begin, end = state.shown(self.picture.whole)
        if not begin <= x <= end:
            state = state.panned((x - (begin + end) / 2) / (end - begin), self.picture.whole)
        self._see(state)

    def do_escape(self) -> bool:
        if self.state.cursor is not None:
            self._see(replace(self.state, cursor=None))
        elif self.state.span is not None or self.state.heights:
            self.action_whole()
        else:
            return False
        return True

    # -- the mouse

    def on_chart_plot_zoomed(self, event: ChartPlot.Zoomed) -> None:
        event.stop()
        self._see(self.state.zoomed(event.factor, self.picture.whole, event.x))

    def on_chart_plot_dragged(self, event: ChartPlot.Dragged) -> None:
        event.stop()
        if self.state.span is not None and event.across:
            self._see(self.state.panned(event.across, self.picture.whole))
        if event.down:
            self._move_height(event.down, 1.0, event.panel)

    def on_chart_plot_pointed(self, event: ChartPlot.Pointed) -> None:
        event.stop()
        self._see(replace(self.state, cursor=event.x, panel=event.panel))

    def on_chart_plot_resized(self, event: ChartPlot.Resized) -> None:
        event.stop()
        self._dirty.set()
