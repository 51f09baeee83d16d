"""Parsers of disk usage printed by df, du, lfs, beegfs-ctl, quota and mmlsquota.

Runs none of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from urllib.parse import unquote

from msgspec import Struct

from hpcdash.domain.text import decode
from hpcdash.errors import UnreadableOutput, excerpt

KIB = 1024
# No tool prints figures of more digits, and Python reads no number of thousands.
_DIGITS = r"\d{1,18}"
_FIGURES = re.compile(
    rf"\s({_DIGITS}|-)\s+({_DIGITS}|-)\s+(-?{_DIGITS}|-)\s+({_DIGITS}%|-)\s+(?=/)"
)
_BLOCKS = re.compile(rf"\s(?P<size>{_DIGITS})(?P<kib>K?)-blocks\s")
_OWNER = re.compile(r"Disk quotas for (?P<kind>\w+) (?P<name>.*) \(\w+ \d+\):\s*(?P<rest>.*)")
_AMOUNT = rf"\[?{_DIGITS}(?:\.\d+)?[kKMGTPE]?\]?\*?"
_LUSTRE_GRACE = r"(?:-|none|expired|notify|\d[\dwdhms]*)"
_LUSTRE = re.compile(
    rf"^(?P<name>.*?)(?:^|(?<=\s))(?P<used>{_AMOUNT})\s+(?P<soft>{_AMOUNT})\s+(?P<hard>{_AMOUNT})\s+{_LUSTRE_GRACE}"
    rf"\s+(?P<files>{_AMOUNT})\s+(?P<files_soft>{_AMOUNT})\s+(?P<files_hard>{_AMOUNT})\s+{_LUSTRE_GRACE}$"
)
_COUNT = rf"{_DIGITS}(?:\.\d+)?[kmgt]?\*?"
_GRACE = r"(?:\d+days?|\d+:\d\d|none|-)"
_QUOTA = re.compile(
    rf"^(?P<name>.*?)(?:^|(?<=\s))(?P<used>{_AMOUNT})\s+(?P<soft>{_AMOUNT})\s+(?P<hard>{_AMOUNT})(?:\s+{_GRACE})?"
    rf"\s+(?P<files>{_COUNT})\s+(?P<files_soft>{_COUNT})\s+(?P<files_hard>{_COUNT})(?:\s+{_GRACE})?$"
)
_SCALES = {"K": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}
_BEEGFS_SIZE = re.compile(rf"({_DIGITS}(?:\.\d+)?)\s*(Byte|B|[KMGTPE]iB)?")


class DiskUsage(Struct, frozen=True):
    """Bytes and inodes used and the limit for each; None: unreported, or no limit.

    A soft limit counts where there is one. Figures are as old as the file system makes them: many
    parallel ones are half an hour behind.
    """

    # The tool.
    source: str
    # Its name of the place: a mount point, a device.
    name: str
    # User, group or project of the quota, '' for all of a file system.
    owner: str = ""
    bytes_used: int | None = None
    bytes_limit: int | None = None
    inodes_used: int | None = None
    inodes_limit: int | None = None
    # A server did not answer: there is more than that.
    is_inexact: bool = False


def parse_df(printed: bytes, path: str = "") -> tuple[DiskUsage, ...]:
    """Parse the bytes of `df -P`; what the file system keeps for root counts neither as used nor as
    free.

    `path`, where one was queried, tells names that look like figures from figures. Raises
    UnreadableOutput.
    """
    title, _, _ = decode(printed).partition("\n")
    heading = _BLOCKS.search(title)
    unit = int(heading["size"]) * (KIB if heading["kib"] else 1) if heading else 0
    return tuple(
        DiskUsage("df", name, bytes_used=used * unit, bytes_limit=(used + free) * unit or None)
        for name, used, free in _parse_df_rows(printed, path, "df -P", is_known=bool(heading))
    )


def parse_df_inodes(printed: bytes, path: str = "") -> tuple[DiskUsage, ...]:
    """Parse the inodes of `df -P -i`; file systems that make them as they need them have no limit.

    Raises UnreadableOutput.
    """
    is_known = b"Inodes" in printed.partition(b"\n")[0]
    return tuple(
        DiskUsage("df -i", name, inodes_used=used, inodes_limit=used + free or None)
        for name, used, free in _parse_df_rows(printed, path, "df -P -i", is_known=is_known)
    )


def parse_du(printed: bytes, path: str, *, inodes: bool = False) -> DiskUsage:
    """Parse the sum that `du -s -k` (or `du -s --inodes`) prints; raises UnreadableOutput."""
    match = re.match(rb"(\d{1,18})\s", printed)
    if match is None:
        raise _unreadable("du -s", printed)
    count = int(match[1])
    if inodes:
        return DiskUsage("du --inodes", path, inodes_used=count)
    return DiskUsage("du", path, bytes_used=count * KIB)


def find_usage(usages: Sequence[DiskUsage], path: str) -> DiskUsage | None:
    """Return the usage with the longest name that a path lies under, else the only one there is."""
    under = [usage for usage in usages if _lies_under(path, usage.name)]
    if under:
        return max(under, key=lambda usage: len(usage.name))
    return usages[0] if len(usages) == 1 else None


def joined(usages: Sequence[DiskUsage | None]) -> DiskUsage | None:
    """Join several sources, the best first: bytes and inodes are each from the first that has their
    use and their limit, else from the first that has their use.
    """
    known = [usage for usage in usages if usage is not None]
    by_bytes = _first(known, "bytes_used", "bytes_limit")
    by_inodes = _first(known, "inodes_used", "inodes_limit")
    used = [usage for usage in (by_bytes, by_inodes) if usage is not None]
    if not used:
        return known[0] if known else None
    none = DiskUsage("", "")
    return DiskUsage(
        ", ".join(dict.fromkeys(usage.source for usage in used)),
        used[0].name,
        used[0].owner,
        bytes_used=(by_bytes or none).bytes_used,
        bytes_limit=(by_bytes or none).bytes_limit,
        inodes_used=(by_inodes or none).inodes_used,
        inodes_limit=(by_inodes or none).inodes_limit,
        is_inexact=any(usage.is_inexact for usage in used),
    )


def _first(usages: Sequence[DiskUsage], used: str, limit: str) -> DiskUsage | None:
    reported = [usage for usage in usages if getattr(usage, used) is not None]
    limited = [usage for usage in reported if getattr(usage, limit) is not None]
    return next(iter(limited or reported), None)


def _lies_under(path: str, name: str) -> bool:
    return name.startswith("/") and (path == name or path.startswith(name.rstrip("/") + "/"))


def _parse_df_rows(
    printed: bytes, path: str, program: str, *, is_known: bool
) -> list[tuple[str, int, int]]:
    """Return (mount point, used, free) of each line with figures, in the unit of the heading."""
    lines = decode(printed).splitlines()[1:]
    rows = [row for line in lines if (row := _parse_df_row(line, path)) is not None]
    if not is_known or not rows:
        raise _unreadable(program, printed)
    return [(name, used, max(free, 0)) for name, used, free in rows]


def _parse_df_row(line: str, path: str) -> tuple[str, int, int] | None:
    """Parse a line; None if df prints no figures, as for /proc.

    Devices and mount points may hold blanks and figures: the share must fit the figures, and the
    path lie there.
    """
    row: tuple[str, int, int] | None = None
    position = 0
    while (figures := _FIGURES.search(line, position)) is not None:
        position = figures.start() + 1
        name = line[figures.end() :]
        whole, used, free, share = figures.groups()
        if "-" in (whole, used, free) or (path and not _lies_under(path, name)):
            continue
        size = int(used) + int(free)
        is_fitting = share == (f"{-(-100 * int(used) // size)}%" if size > 0 else "-")
        if row is None or is_fitting:
            row = (name, int(used), int(free))
        if is_fitting:
            break
    return row


def _unreadable(program: str, printed: bytes, what: str = "usage") -> UnreadableOutput:
    return UnreadableOutput(
        f"{program} printed no {what}",
        "Run it on that host by hand.",
        argv=tuple(program.split()),
        output=excerpt(printed),
    )


def parse_lfs_quota(printed: bytes) -> tuple[DiskUsage, ...]:
    """Parse Lustre's; sums in brackets lack a server's part."""
    return _table("lfs quota", _LUSTRE, printed, KIB)


def parse_quota(printed: bytes) -> tuple[DiskUsage, ...]:
    """Parse quota(1)'s, of Linux; in its files k is a thousand."""
    return _table("quota", _QUOTA, printed, 1000)


def parse_beegfs_quota(printed: bytes) -> tuple[DiskUsage, ...]:
    """Parse BeeGFS's, as a table or with --csv: bytes and chunk files."""
    text = decode(printed)
    usages: list[DiskUsage] = []
    pool = ""
    is_known = False
    for line in text.splitlines():
        if named := re.match(r"(.*) \(ID: \d+\)", line.partition("storage pool ")[2]):
            pool = named[1]
        if line.startswith("name,id,") or ("user/group" in line and "||" in line):
            is_known = True
        csv = line.rsplit(",", 5)
        columns = [part.strip() for part in re.split(r"\|\|?", line)]
        parts = csv if len(csv) == 6 else [" | ".join(columns[:-5]), *columns[-5:]]
        if len(parts) != 6 or not parts[1].strip().isdigit():
            continue
        sizes = [_beegfs_amount(part) for part in parts[2:]]
        if sizes[0] is None or sizes[2] is None:
            continue
        used, limit, files, files_limit = sizes
        usages.append(
            DiskUsage(
                "beegfs-ctl",
                pool,
                parts[0].strip(),
                bytes_used=used,
                bytes_limit=limit or None,
                inodes_used=files,
                inodes_limit=files_limit or None,
            )
        )
    if not is_known:
        raise _unreadable("beegfs-ctl --getquota", printed, "quotas")
    return tuple(usages)


def parse_mmlsquota(printed: bytes) -> tuple[DiskUsage, ...]:
    """Parse `mmlsquota -Y` (GPFS, Storage Scale).

    Columns are found by name, sizes are in KiB, and values are percent-encoded.
    """
    usages: list[DiskUsage] = []
    columns: list[str] = []
    for line in decode(printed).splitlines():
        values = line.split(":")
        if values[2:3] == ["HEADER"]:
            columns = values
            continue
        row = dict(zip(columns, map(unquote, values), strict=False))
        if "filesystemName" not in row or not _is_count(row.get("blockUsage", "")):
            continue
        name = row["filesystemName"]
        fileset = row.get("filesetname") or row.get("filesetName") or ""
        owner = f"{row.get('quotaType', '')} {row.get('name', '')}".strip()
        count = {key: int(value) for key, value in row.items() if _is_count(value)}
        usages.append(
            DiskUsage(
                "mmlsquota",
                f"{name}:{fileset}" if fileset else name,
                owner,
                bytes_used=count["blockUsage"] * KIB,
                bytes_limit=_limit(count.get("blockQuota", 0), count.get("blockLimit", 0), KIB),
                inodes_used=count.get("filesUsage"),
                inodes_limit=_limit(count.get("filesQuota", 0), count.get("filesLimit", 0)),
            )
        )
    if not columns:
        raise _unreadable("mmlsquota -Y", printed, "quotas")
    return tuple(usages)


PARSERS: dict[str, Callable[[bytes], tuple[DiskUsage, ...]]] = {
    "lfs": parse_lfs_quota,
    "beegfs-ctl": parse_beegfs_quota,
    "quota": parse_quota,
    "mmlsquota": parse_mmlsquota,
}


def _table(
    program: str, pattern: re.Pattern[str], printed: bytes, thousand: int
) -> tuple[DiskUsage, ...]:
    """Parse the rows under a heading; a name that is too long for its column stands on a line
    before its figures.
    """
    usages: list[DiskUsage] = []
    owner = alone = ""
    is_known = has_heading = False
    for line in decode(printed).splitlines():
        if named := _OWNER.match(line.strip()):
            owner = f"{named['kind']} {named['name']}"
            is_known = True
            has_heading = False
            continue
        if re.match(r"\s*Filesystem\s", line):
            has_heading = is_known = True
            continue
        if not has_heading:
            continue
        row = pattern.match(line.strip())
        if row is None:
            alone = line.strip()
            continue
        name = row["name"].strip() or alone
        alone = ""
        # Parts of servers, that `lfs quota -v` adds.
        if program == "lfs quota" and not name.startswith("/"):
            continue
        usages.append(
            DiskUsage(
                program,
                name,
                owner,
                bytes_used=_amount(row["used"], KIB, KIB),
                bytes_limit=_limit(_amount(row["soft"], KIB, KIB), _amount(row["hard"], KIB, KIB)),
                inodes_used=_amount(row["files"], 1, thousand),
                inodes_limit=_limit(
                    _amount(row["files_soft"], 1, thousand), _amount(row["files_hard"], 1, thousand)
                ),
                is_inexact="[" in row["used"] + row["files"],
            )
        )
    if not is_known:
        raise _unreadable(program, printed, "quotas")
    return tuple(usages)


def _amount(text: str, unit: int, thousand: int) -> int:
    """Parse a number; `unit` is what it counts in without a letter."""
    text = text.strip("[]*").rstrip("]")
    if text[-1:].isalpha():
        scale: int = thousand ** _SCALES[text[-1].upper()]
        return round(float(text[:-1]) * scale)
    return round((int(text) if _is_count(text) else float(text)) * unit)


def _is_count(text: str) -> bool:
    return re.fullmatch(_DIGITS, text) is not None


def _limit(soft: int, hard: int, unit: int = 1) -> int | None:
    """Return the lower of the limits: over the soft one writes fail once its grace is over.

    0 is none.
    """
    return min((limit for limit in (soft, hard) if limit > 0), default=0) * unit or None


def _beegfs_amount(text: str) -> int | None:
    match = _BEEGFS_SIZE.fullmatch(text.strip())
    if match is None:
        return None
    letter = match[2][0] if match[2] and match[2].endswith("iB") else ""
    return round(float(match[1]) * KIB ** _SCALES[letter]) if letter else int(float(match[1]))
