"""Lines of a batch script as shown, with the meaning of its directives, and diffs of scripts."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from itertools import accumulate

from msgspec import Struct

from hpcdash.domain.text import counted, visible

TAB_CELLS = 8
MAX_LETTERS_A_LINE = 10_000
# Directives are searched only this far: later text is a program's own.
_MAX_EXPLAINED_LINES = 2000
NOT_READ = "ignored: after a command"
# Of larger scripts difflib would take seconds.
MAX_DIFFED_LINES = 5000


class LineKind(StrEnum):
    """Kind of a line in a script, or in a difference of two."""

    PLAIN = "plain"
    DIRECTIVE = "directive"
    ADDED = "added"
    REMOVED = "removed"
    PLACE = "place"
    FILE = "file"


class ScriptLine(Struct, frozen=True):
    """A line, safe to show: `number` is its number in the script (None in a diff), `note` its
    meaning.
    """

    text: str
    number: int | None = None
    kind: LineKind = LineKind.PLAIN
    note: str = ""


def script_lines(text: str, explain: Callable[[str], str]) -> list[ScriptLine]:
    """Return the lines of a script, without an empty line after the last newline."""
    lines: list[ScriptLine] = []
    reads_directives = True
    for number, line in enumerate(_split(text), start=1):
        note = explain(line) if number <= _MAX_EXPLAINED_LINES else ""
        if note and not reads_directives:
            note = NOT_READ
        if line.strip() and not line.lstrip().startswith("#"):
            reads_directives = False
        kind = LineKind.DIRECTIVE if note and note != NOT_READ else LineKind.PLAIN
        lines.append(ScriptLine(shown(line), number, kind, visible(note)))
    return lines


class ScriptBlock(Struct, frozen=True):
    """Lines that a generated script has besides a person's: a name for a summary ('': none), an
    explanation, and a pattern of the whole lines.

    The pattern matches only what this version writes. A path in it is a group `folder`, the folder
    of the logs. A heredoc that it opens has its end in a group `end`.
    """

    name: str
    explanation: str
    pattern: re.Pattern[str]


class Fold(Struct, frozen=True):
    """Adjacent blocks, as the lines `first` to before `last`, with the line that each begins at."""

    first: int
    last: int
    blocks: tuple[tuple[int, ScriptBlock], ...]

    @property
    def title(self) -> str:
        """`24 lines by hpcdash: early signal, job library`."""
        names = dict.fromkeys(block.name for _, block in self.blocks if block.name)
        return f"{counted(self.last - self.first, 'line')} by hpcdash" + (
            f": {', '.join(names)}" if names else ""
        )


def script_folds(
    text: str, lines: Sequence[ScriptLine], blocks: Iterable[ScriptBlock]
) -> list[Fold]:
    """Find the lines of a script that are blocks, `lines` being those of `script_lines`.

    Anyone may have written the script: what differs from a block in one letter is no part of a
    fold, and neither is a directive.
    """
    known = tuple(blocks)
    raw = _split(text)[:_MAX_EXPLAINED_LINES]
    directives = [
        text for text, line in zip(raw, lines, strict=False) if line.kind is LineKind.DIRECTIVE
    ]
    offsets = list(accumulate((len(line) + 1 for line in raw), initial=0))
    folds: list[Fold] = []
    ends: set[str] = set()
    present: list[tuple[int, ScriptBlock]] = []
    at = 0
    first = 0
    last = 0

    def close() -> None:
        if present and sum(bool(line.strip()) for line in raw[first:last]) > 1:
            folds.append(Fold(first, last, tuple(present)))
        present.clear()

    while at < len(raw):
        found = _longest_block(text, offsets[at], directives, known)
        count = 0
        if found is not None:
            block, match = found
            count = match[0].count("\n") + 1
            first = first if present else at
            present.append((at, block))
            if end := match.groupdict().get("end"):
                ends.add(end)
        elif raw[at] in ends:
            ends.discard(raw[at])
            count = 1
            if not present:
                first = at
                present.append((at, _HEREDOC_END))
        elif raw[at].strip() or not present:
            close()
        if count:
            last = at + count
        at += max(1, count)
    close()
    return folds


_HEREDOC_END = ScriptBlock("", "the command ends here", re.compile("(?!)"))


def _longest_block(
    text: str, start: int, directives: Sequence[str], blocks: Iterable[ScriptBlock]
) -> tuple[ScriptBlock, re.Match[str]] | None:
    found: tuple[ScriptBlock, re.Match[str]] | None = None
    for block in blocks:
        match = block.pattern.match(text, start)
        if match is None or text[match.end() : match.end() + 1] not in ("", "\n"):
            continue
        folder = match.groupdict().get("folder")
        if folder and not any(
            re.search(rf"[= ]{re.escape(folder)}/[^/]*$", line) for line in directives
        ):
            continue
        if found is None or match.end() > found[1].end():
            found = block, match
    return found


def shown(line: str) -> str:
    """Return a line with blanks for tabs, without a CR at its end, and safe for a terminal.

    A very long line is cut after MAX_LETTERS_A_LINE letters.
    """
    text = line.removesuffix("\r").expandtabs(TAB_CELLS)
    more = len(text) - MAX_LETTERS_A_LINE
    return visible(text) if more <= 0 else f"{visible(text[:MAX_LETTERS_A_LINE])}… ({more} more)"


def line_ends(text: str) -> str:
    """Describe irregular line ends of a script; '' if there are none."""
    dos = text.count("\r\n")
    if not dos:
        return ""
    return "lines end in CRLF" if dos == text.count("\n") else f"{dos} lines end in CRLF"


def unified(before: str, after: str, names: tuple[str, str]) -> list[str]:
    """Return a unified diff, without line ends; [] for equal texts. The lines are still hostile.

    Scripts of more than MAX_DIFFED_LINES lines are one change from their first difference to the
    last.
    """
    old = _split(before)
    new = _split(after)
    if max(len(old), len(new)) > MAX_DIFFED_LINES:
        return _plain_difference(old, new, names)
    return list(difflib.unified_diff(old, new, *names, lineterm=""))


def _plain_difference(old: Sequence[str], new: Sequence[str], names: tuple[str, str]) -> list[str]:
    """Return the lines between the common start and the common end as one change."""
    if list(old) == list(new):
        return []
    first = next(
        (at for at, pair in enumerate(zip(old, new, strict=False)) if pair[0] != pair[1]),
        min(len(old), len(new)),
    )
    shared = min(len(old), len(new)) - first
    last = next((at for at in range(shared) if old[-1 - at] != new[-1 - at]), shared)
    removed = old[first : len(old) - last]
    added = new[first : len(new) - last]
    # A side without lines has the number of the line before.
    starts = (first + bool(removed), first + bool(added))
    place = f"@@ -{starts[0]},{len(removed)} +{starts[1]},{len(added)} @@"
    head = [f"--- {names[0]}", f"+++ {names[1]}", place]
    return [*head, *(f"-{line}" for line in removed), *(f"+{line}" for line in added)]


def difference_lines(difference: Sequence[str]) -> list[ScriptLine]:
    """Return the lines of a unified diff, each with its kind."""
    lines = []
    for at, line in enumerate(difference):
        kind = _kind(line) if at > 1 else LineKind.FILE
        note = (
            "line ends in CR"
            if line.endswith("\r") and kind in (LineKind.ADDED, LineKind.REMOVED)
            else ""
        )
        lines.append(ScriptLine(line[:1] + shown(line[1:]), None, kind, note))
    return lines


def _kind(line: str) -> LineKind:
    kinds = {"+": LineKind.ADDED, "-": LineKind.REMOVED, "@": LineKind.PLACE}
    return kinds.get(line[:1], LineKind.PLAIN)


def _split(text: str) -> list[str]:
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    return lines
