"""How full a place is, as df and du print it.

Run them with LC_ALL=C: `df -P -k -- PATH`, `df -P -i -- PATH`, `du -s -k -- PATH` and `du -s --inodes -- PATH`, of
which du ends badly, and yet has counted, where a folder may not be read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from hpcdash.domain.text import decode
from hpcdash.errors import UnreadableOutput, excerpt

KIB = 1024
_FIGURES = re.compile(r"\s(\d+|-)\s+(\d+|-)\s+(-?\d+|-)\s+(\d+%|-)\s+(?=/)")
_BLOCKS = re.compile(r"\s(\d+)(K?)-blocks\s")


@dataclass(frozen=True, slots=True)
class Usage:
    """Bytes and inodes used and the limit for each; None: not told, or no limit.

    `source` is the tool, `name` its word for the place (a mount point, a device), `owner` whose quota it is, '' for all
    of a file system. A soft limit counts where there is one. Figures are as old as the file system makes them: many
    parallel ones are half an hour behind. `is_inexact`: a server did not answer, there is more than that.
    """

    source: str
    name: str
    owner: str = ""
    bytes_used: int | None = None
    bytes_limit: int | None = None
    inodes_used: int | None = None
    inodes_limit: int | None = None
    is_inexact: bool = False


def parse_df(printed: bytes, path: str = "") -> tuple[Usage, ...]:
    """Bytes, of `df -P`; what the file system keeps for root counts neither as used nor as free.

    `path`, where one was asked for, tells names that look like figures from figures. Raises UnreadableOutput.
    """
    lines = decode(printed).splitlines()
    blocks = _BLOCKS.search(lines[0]) if lines else None
    if blocks is None:
        raise _unreadable("df -P", printed)
    unit = int(blocks[1]) * (KIB if blocks[2] else 1)
    rows = [_df_row(line, path) for line in lines[1:]]
    return tuple(
        Usage(
            "df",
            name,
            bytes_used=used * unit,
            bytes_limit=(used + max(free, 0)) * unit if used + max(free, 0) else None,
        )
        for name, used, free in _known(rows, "df -P", printed)
    )


def parse_df_inodes(printed: bytes, path: str = "") -> tuple[Usage, ...]:
    """Inodes, of `df -P -i`; file systems that make them as they need them have no limit. Raises UnreadableOutput."""
    lines = decode(printed).splitlines()
    if not lines or "Inodes" not in lines[0]:
        raise _unreadable("df -P -i", printed)
    rows = [_df_row(line, path) for line in lines[1:]]
    return tuple(
        Usage("df -i", name, inodes_used=used, inodes_limit=used + max(free, 0) if used + max(free, 0) else None)
        for name, used, free in _known(rows, "df -P -i", printed)
    )


def parse_du(printed: bytes, path: str, *, inodes: bool = False) -> Usage:
    """The sum that `du -s -k` (or `du -s --inodes`) prints of one path. Raises UnreadableOutput."""
    found = re.match(rb"(\d+)\s", printed)
    if found is None:
        raise _unreadable("du -s", printed)
    count = int(found[1])
    if inodes:
        return Usage("du --inodes", path, inodes_used=count)
    return Usage("du", path, bytes_used=count * KIB)


def of_path(usages: Iterable[Usage], path: str) -> Usage | None:
    """The one that is about a path: whose name is the longest of those it lies under, else the only one there is."""
    every = list(usages)
    under = [usage for usage in every if _lies_under(path, usage.name)]
    if under:
        return max(under, key=lambda usage: len(usage.name))
    return every[0] if len(every) == 1 else None


def joined(usages: Sequence[Usage | None]) -> Usage | None:
    """One of several sources, the best first: bytes and inodes each of the first that tells its use and its limit.

    Where none tells a limit, of the first that tells the use.
    """
    known = [usage for usage in usages if usage is not None]
    if not known:
        return None
    of_bytes = _first(known, "bytes_used", "bytes_limit")
    of_inodes = _first(known, "inodes_used", "inodes_limit")
    sources = dict.fromkeys(usage.source for usage in (of_bytes, of_inodes) if usage is not None)
    main = of_bytes or of_inodes or known[0]
    return replace(
        main,
        source=", ".join(sources) or main.source,
        bytes_used=of_bytes.bytes_used if of_bytes else None,
        bytes_limit=of_bytes.bytes_limit if of_bytes else None,
        inodes_used=of_inodes.inodes_used if of_inodes else None,
        inodes_limit=of_inodes.inodes_limit if of_inodes else None,
        is_inexact=any(usage.is_inexact for usage in (of_bytes, of_inodes) if usage is not None),
    )


def _first(usages: Sequence[Usage], used: str, limit: str) -> Usage | None:
    told = [usage for usage in usages if getattr(usage, used) is not None]
    return next((usage for usage in told if getattr(usage, limit) is not None), told[0] if told else None)


def _lies_under(path: str, name: str) -> bool:
    return name.startswith("/") and (path == name or path.startswith(name.rstrip("/") + "/"))


def _df_row(line: str, path: str) -> tuple[str, int, int] | None:
    """(mount point, used, free) of a line; None where df tells no figures, as of /proc.

    Devices and mount points may hold blanks and figures: the share must fit the figures, and the path lie there.
    """
    fitting: list[tuple[bool, int, str, int, int]] = []
    position = 0
    while (found := _FIGURES.search(line, position)) is not None:
        position = found.start() + 1
        whole, used, free, share = found.groups()
        if "-" in (whole, used, free):
            continue
        name = line[found.end() :]
        if not path or _lies_under(path, name):
            fitting.append((_fits(int(used), int(free), share), -len(fitting), name, int(used), int(free)))
    if not fitting:
        return None
    _, _, name, used_count, free_count = max(fitting)
    return name, used_count, free_count


def _fits(used: int, free: int, share: str) -> bool:
    whole = used + free
    return share == "-" if whole <= 0 else share == f"{-(-100 * used // whole)}%"


def _known(rows: Iterable[tuple[str, int, int] | None], program: str, printed: bytes) -> list[tuple[str, int, int]]:
    known = [row for row in rows if row is not None]
    if not known:
        raise _unreadable(program, printed)
    return known


def _unreadable(program: str, printed: bytes) -> UnreadableOutput:
    return UnreadableOutput(
        f"{program} printed no figures", "Try it there by hand.", argv=(program.split()[0],), words=excerpt(printed)
    )
