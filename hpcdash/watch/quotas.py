"""How full quotas are, as lfs, beegfs-ctl, quota and mmlsquota print it. Runs none of them.

`lfs quota [-h] -u USER PATH` (-g, -p), `beegfs-ctl --getquota [--csv] --uid USER`, `quota [-s] [-w]`, `mmlsquota -Y`.
All raise UnreadableOutput for what is none of theirs, and give () where there is no quota.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from urllib.parse import unquote

from hpcdash.domain.text import decode
from hpcdash.errors import UnreadableOutput, excerpt
from hpcdash.watch.usage import KIB, Usage

_OWNER = re.compile(r"Disk quotas for (?P<kind>\w+) (?P<name>.*) \(\w+ \d+\):\s*(?P<rest>.*)")
_AMOUNT = r"\[?\d+(?:\.\d+)?[kKMGTPE]?\]?\*?"
_LUSTRE_GRACE = r"(?:-|none|expired|notify|\d[\dwdhms]*)"
_LUSTRE = re.compile(
    rf"^(?P<name>.*?)(?:^|(?<=\s))(?P<used>{_AMOUNT})\s+(?P<soft>{_AMOUNT})\s+(?P<hard>{_AMOUNT})\s+{_LUSTRE_GRACE}"
    rf"\s+(?P<files>{_AMOUNT})\s+(?P<files_soft>{_AMOUNT})\s+(?P<files_hard>{_AMOUNT})\s+{_LUSTRE_GRACE}$"
)
_COUNT = r"\d+(?:\.\d+)?[kmgt]?\*?"
_GRACE = r"(?:\d+days?|\d+:\d\d|none|-)"
_QUOTA = re.compile(
    rf"^(?P<name>.*?)(?:^|(?<=\s))(?P<used>{_AMOUNT})\s+(?P<soft>{_AMOUNT})\s+(?P<hard>{_AMOUNT})(?:\s+{_GRACE})?"
    rf"\s+(?P<files>{_COUNT})\s+(?P<files_soft>{_COUNT})\s+(?P<files_hard>{_COUNT})(?:\s+{_GRACE})?$"
)
_SCALES = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}
_BEEGFS_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(Byte|B|[KMGTPE]iB)?")


def parse_lfs_quota(printed: bytes) -> tuple[Usage, ...]:
    """Lustre's. In brackets stand sums that lack a server's part."""
    return _table("lfs quota", _LUSTRE, printed, KIB)


def parse_quota(printed: bytes) -> tuple[Usage, ...]:
    """quota(1)'s, of Linux; in its files k is a thousand."""
    return _table("quota", _QUOTA, printed, 1000)


def parse_beegfs_quota(printed: bytes) -> tuple[Usage, ...]:
    """BeeGFS's, as a table or with --csv: bytes and chunk files."""
    text = decode(printed)
    found: list[Usage] = []
    pool = ""
    is_known = False
    for line in text.splitlines():
        if named := re.search(r"storage pool (.*) \(ID: \d+\)", line):
            pool = named[1]
        if line.startswith("name,id,") or ("user/group" in line and "||" in line):
            is_known = True
        csv, columns = line.rsplit(",", 5), re.split(r"\s*\|\|?\s*", line.strip())
        parts = csv if len(csv) == 6 else [" | ".join(columns[:-5]), *columns[-5:]]
        if len(parts) != 6 or not parts[1].strip().isdigit():
            continue
        sizes = [_beegfs_amount(part) for part in parts[2:]]
        if sizes[0] is None or sizes[2] is None:
            continue
        found.append(
            Usage("beegfs-ctl", pool, parts[0].strip(), sizes[0], sizes[1] or None, sizes[2], sizes[3] or None)
        )
    if not is_known:
        raise _unreadable("beegfs-ctl --getquota", printed)
    return tuple(found)


def parse_mmlsquota(printed: bytes) -> tuple[Usage, ...]:
    """Of `mmlsquota -Y` (GPFS, Storage Scale): columns by name, sizes in KiB, and in a value % and two digits."""
    found: list[Usage] = []
    columns: list[str] = []
    for line in decode(printed).splitlines():
        values = line.split(":")
        if values[2:3] == ["HEADER"]:
            columns = values
            continue
        row = dict(zip(columns, map(unquote, values), strict=False))
        if "filesystemName" not in row or not row.get("blockUsage", "").isdigit():
            continue
        name = row["filesystemName"]
        fileset = row.get("filesetname") or row.get("filesetName") or ""
        owner = f"{row.get('quotaType', '')} {row.get('name', '')}".strip()
        count = {key: int(value) for key, value in row.items() if value.isdigit()}
        found.append(
            Usage(
                "mmlsquota",
                f"{name}:{fileset}" if fileset else name,
                owner,
                count["blockUsage"] * KIB,
                _limit(count.get("blockQuota", 0), count.get("blockLimit", 0), KIB),
                count.get("filesUsage"),
                _limit(count.get("filesQuota", 0), count.get("filesLimit", 0), 1),
            )
        )
    if not columns:
        raise _unreadable("mmlsquota -Y", printed)
    return tuple(found)


PARSERS: dict[str, Callable[[bytes], tuple[Usage, ...]]] = {
    "lfs": parse_lfs_quota,
    "beegfs-ctl": parse_beegfs_quota,
    "quota": parse_quota,
    "mmlsquota": parse_mmlsquota,
}


def _table(program: str, pattern: re.Pattern[str], printed: bytes, thousand: int) -> tuple[Usage, ...]:
    """Rows under a heading; a name that is too long for its column stands on a line before its figures."""
    found: list[Usage] = []
    owner = alone = ""
    is_known = has_heading = False
    for line in decode(printed).splitlines():
        if named := _OWNER.match(line.strip()):
            owner, is_known, has_heading = f"{named['kind']} {named['name']}", True, False
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
        used, soft, hard = (_amount(row[column], KIB, KIB) for column in ("used", "soft", "hard"))
        files, *limits = (_amount(row[column], 1, thousand) for column in ("files", "files_soft", "files_hard"))
        inexact = "[" in row["used"] + row["files"]
        found.append(
            Usage(program, name, owner, used, _limit(soft, hard, 1), files, _limit(limits[0], limits[1], 1), inexact)
        )
    if not is_known:
        raise _unreadable(program, printed)
    return tuple(found)


def _amount(text: str, unit: int, thousand: int) -> int:
    """`unit` is what a number without a letter counts in."""
    text = text.strip("[]*").rstrip("]")
    letter = text[-1].upper() if text[-1:].isalpha() else ""
    number = float(text[:-1]) if letter else int(text) if text.isdigit() else float(text)
    return round(number * (thousand ** _SCALES[letter] if letter else unit))


def _limit(soft: int, hard: int, unit: int) -> int | None:
    """The lower of the limits there are: over the soft one writes fail once its grace is over. 0 is none."""
    return min((limit for limit in (soft, hard) if limit > 0), default=0) * unit or None


def _beegfs_amount(text: str) -> int | None:
    found = _BEEGFS_SIZE.fullmatch(text.strip())
    if found is None:
        return None
    letter = found[2][0] if found[2] and found[2].endswith("iB") else ""
    return round(float(found[1]) * KIB ** _SCALES[letter]) if letter else int(float(found[1]))


def _unreadable(program: str, printed: bytes) -> UnreadableOutput:
    return UnreadableOutput(
        f"{program} printed no quotas", "Try it there by hand.", argv=tuple(program.split()), words=excerpt(printed)
    )
