"""Records the demonstration as an asciinema file, and draws its marked moments as one SVG that
shows them in turn.

python -m tests.support.cast            # records docs/images/demo.cast anew, and draws
docs/images/demo.svg
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Iterator
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any

import pyte

from tests.support.program import Program, home_with
from tests.support.screen import UNKNOWN_SEQUENCES, Screen, dashboard

CAST = Path(__file__).parents[2] / "docs" / "images" / "demo.cast"
COLUMNS, LINES = 110, 30
# What is typed, what is on the screen then, and what is said of it where it is a moment to look at.
STEPS = (
    ("\x05", ("timed out", "lm loss"), "hpcdash demo: a queue of this machine with a dozen jobs"),
    ("g", ("spike at",), "g: the loss of a training, from its log"),
    ("q", ("timed out",), ""),
    ("l", ("lm loss", "following"), "l: its log, live"),
    ("q", ("timed out",), ""),
    ("x", ("Command to run",), "x: the command, and what would be lost"),
    ("n", ("timed out",), ""),
    ("/shards\r", ("exit 137",), ""),
    ("t", ("ERROR", "is not JSON"), "t: the failures of an array by cause"),
    ("q", ("QUEUE", "exit 137"), ""),
    ("?", ("type to search",), "?: everything else, searchable"),
)
# A moment stays for as long; a pause of the recording is no longer.
SECONDS_A_MOMENT = 3.0
_PAUSE_SECONDS = 2.0
_CELL_WIDTH, _CELL_HEIGHT, _FONT_SIZE, _BAR = 8.4, 18, 14, 34
_FOREGROUND, _BACKGROUND = "c9d1d9", "0d1117"
_NAMED = {
    "black": "0d1117", "red": "ff7b72", "green": "3fb950", "brown": "d29922", "blue": "58a6ff", "magenta": "bc8cff",
    "cyan": "39c5cf", "white": "b1bac4",
}  # fmt: skip


async def record(folder: Path) -> str:
    """Drive the demonstration, and write down what its terminal showed, and when."""
    (folder / "tmp").mkdir()
    program = Program(
        home_with(folder / "home"),
        variables={"TMPDIR": str(folder / "tmp"), "COLORTERM": "truecolor"},
    )
    lines: list[str] = [
        json.dumps({"version": 2, "width": COLUMNS, "height": LINES, "title": "hpcdash demo"})
    ]
    began, taken = time.monotonic(), 0

    def note(screen: Screen, marker: str = "") -> None:
        nonlocal taken
        at = round(time.monotonic() - began, 2)
        text = screen.raw[taken:].decode("utf-8", "replace")
        taken = len(screen.raw)
        if text:
            lines.append(json.dumps([at, "o", text], ensure_ascii=False))
        if marker:
            lines.append(json.dumps([at, "m", marker]))

    async with dashboard(program, "demo", columns=COLUMNS, lines=LINES, is_cold=True) as screen:
        await screen.until("1/6")
        for keys, shown, words in STEPS:
            for key in keys:
                screen.type(key)
                await asyncio.sleep(0.3)
                note(screen)
            await screen.until(lambda text, shown=shown: all(part in text for part in shown))  # type: ignore[misc]
            # What is drawn last comes a moment later.
            await asyncio.sleep(1.5)
            note(screen, words)
        screen.type("\x1b")
        screen.type("\x11")
        await screen.ended()
    return "\n".join(_compact(lines)) + "\n"


def _compact(lines: list[str]) -> Iterator[str]:
    """The recording without long pauses, and of each change of the screen only the rows that it
    left changed.
    """
    yield lines[0]
    before = left_out = 0.0
    screen = pyte.Screen(COLUMNS, LINES)
    stream = pyte.ByteStream(screen)
    shown = [""] * LINES
    for line in lines[1:]:
        at, kind, text = json.loads(line)
        left_out += max(0.0, at - before - _PAUSE_SECONDS)
        before = at
        if kind == "o":
            stream.feed(UNKNOWN_SEQUENCES.sub(b"", text.encode()))
            rows = [_row_text(screen, y) for y in range(LINES)]
            text = "".join(f"\x1b[{y + 1};1H{row}" for y, row in enumerate(rows) if row != shown[y])
            shown = rows
        if text:
            yield json.dumps([round(at - left_out, 2), kind, text], ensure_ascii=False)


def _row_text(screen: pyte.Screen, y: int) -> str:
    """A row as a terminal is told to show it."""
    parts = ["\x1b[?25l"] if y == 0 else []
    for (colour, back, bold), run in groupby(
        (screen.buffer[y][x] for x in range(screen.columns)), _look
    ):
        rgb = (
            ";".join(str(int(value[at : at + 2], 16)) for at in (0, 2, 4))
            for value in (colour, back)
        )
        parts.append(
            f"\x1b[0{';1' if bold else ''};38;2;{next(rgb)};48;2;{next(rgb)}m"
            + "".join(cell.data for cell in run)
        )
    return "".join(parts)


def draw(cast: str) -> str:
    """The marked moments of a recording, one after the other, as an SVG without script."""
    header, *events = (json.loads(line) for line in cast.splitlines())
    screen = pyte.Screen(header["width"], header["height"])
    stream = pyte.ByteStream(screen)
    classes: dict[str, str] = {}
    frames: list[str] = []
    width, height = header["width"] * _CELL_WIDTH + 16, header["height"] * _CELL_HEIGHT + _BAR + 12
    for _, kind, text in events:
        if kind == "o":
            stream.feed(UNKNOWN_SEQUENCES.sub(b"", text.encode()))
        else:
            title = (
                f'<text x="{width / 2:g}" y="22" text-anchor="middle" '
                f'class="t">{escape(text)}</text>'
            )
            frames.append(
                f'<g class="f f{len(frames)}">{title}{"".join(_rows(screen, classes))}</g>'
            )
    whole = SECONDS_A_MOMENT * len(frames)
    share = 100 / len(frames)
    style = [
        f"text{{font:{_FONT_SIZE}px ui-monospace,Menlo,Consolas,'DejaVu Sans "
        "Mono',monospace;white-space:pre;"
        f"fill:#{_FOREGROUND}}}",
        ".t{fill:#8b949e}",
        f".f{{visibility:hidden;animation:a {whole:g}s step-end infinite}}",
        f"@keyframes a{{0%{{visibility:visible}}{share:.4g}%,100%{{visibility:hidden}}}}",
        # Where nothing moves, the first moment is seen.
        ".f0{visibility:visible}@media (prefers-reduced-motion:reduce){.f{animation:none}}",
        *(f".f{n}{{animation-delay:{n * SECONDS_A_MOMENT:g}s}}" for n in range(1, len(frames))),
        *(f".{name}{{{rule}}}" for rule, name in classes.items()),
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} '
        f'{height:g}"><style>{"".join(style)}</style>'
        f'<rect width="100%" height="100%" rx="8" fill="#{_BACKGROUND}"/>{"".join(frames)}</svg>\n'
    )


def _rows(screen: pyte.Screen, classes: dict[str, str]) -> Iterator[str]:
    """Rectangles for the backgrounds of cells, and texts of one look each at their places."""
    for y in range(screen.lines):
        cells = [screen.buffer[y][x] for x in range(screen.columns)]
        top = _BAR + y * _CELL_HEIGHT
        x = 0
        for look, run in groupby(cells, _look):
            text = "".join(cell.data for cell in run)
            (colour, back, bold), left, wide = look, 8 + x * _CELL_WIDTH, len(text) * _CELL_WIDTH
            x += len(text)
            if back != _BACKGROUND:
                name = classes.setdefault(f"fill:#{back}", f"c{len(classes)}")
                yield (
                    f'<rect class="{name}" x="{left:g}" y="{top}" width="{wide:.4g}" '
                    f'height="{_CELL_HEIGHT}"/>'
                )
            if text.strip():
                rule = f"fill:#{colour}" + (";font-weight:700" if bold else "")
                name = classes.setdefault(rule, f"c{len(classes)}")
                lead = len(text) - len(text.lstrip())
                text = text.strip()
                yield (
                    f'<text class="{name}" x="{left + lead * _CELL_WIDTH:g}" y="{top + 14}" '
                    f'textLength="{len(text) * _CELL_WIDTH:g}">{escape(text, quote=False)}</text>'
                )


def _look(cell: Any) -> tuple[str, str, bool]:
    colour, back = _colour(cell.fg, _FOREGROUND), _colour(cell.bg, _BACKGROUND)
    return (back, colour, cell.bold) if cell.reverse else (colour, back, cell.bold)


def _colour(name: str, default: str) -> str:
    return default if name == "default" else _NAMED.get(name.removeprefix("bright"), name)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        CAST.write_text(asyncio.run(record(Path(folder))))
    CAST.with_suffix(".svg").write_text(draw(CAST.read_text()))
    print(
        f"{CAST} and its .svg: {CAST.stat().st_size >> 10}, "
        f"{CAST.with_suffix('.svg').stat().st_size >> 10} KiB"
    )


if __name__ == "__main__":
    main()
