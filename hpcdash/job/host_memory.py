"""How much of the memory that this process may use is used: of the host, or of its control group if that is tighter."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


def host_used_percent(proc: str = "/proc") -> float | None:
    """Percent (0-100) of the host's memory, or of the tightest limit of a control group (v1, v2) around this process.

    What the kernel can give back at once (files in its cache) is not used. None where neither can be read, as on a
    system that is not Linux.
    """
    shares = [share for share in (_host_share(proc), *_group_shares(proc)) if share is not None]
    return 100 * max(shares) if shares else None


def _host_share(proc: str) -> float | None:
    sizes = _numbers(f"{proc}/meminfo")
    total, available = sizes.get("MemTotal:", 0), sizes.get("MemAvailable:")
    return None if available is None or total <= 0 else 1 - available / total


def _group_shares(proc: str) -> Iterator[float]:
    for folders, is_v2 in _groups(proc):
        limit_file, usage_file = (
            ("memory.max", "memory.current") if is_v2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
        )
        for folder in folders:
            # `max` is no number; v1 says no limit with one that no host has.
            limit, usage = _number(f"{folder}/{limit_file}"), _number(f"{folder}/{usage_file}")
            if limit is None or usage is None or not 0 < limit < 1 << 60:
                continue
            counts = _numbers(f"{folder}/memory.stat")
            names = ("inactive_file", "active_file", "slab_reclaimable")
            cached = sum(counts.get(name if is_v2 else f"total_{name}", 0) for name in names)
            yield max(0, usage - cached) / limit


def _groups(proc: str) -> Iterator[tuple[tuple[str, ...], bool]]:
    """The folders of this process's memory controllers, its own first, and whether they are of version 2."""
    paths: dict[bool, str] = {}
    for line in _lines(f"{proc}/self/cgroup"):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            paths[True] = path
        elif "memory" in controllers.split(","):
            paths[False] = path
    for line in _lines(f"{proc}/self/mountinfo"):
        fields, _, rest = line.partition(" - ")
        kind, _, options = rest.partition(" ")
        is_v2 = kind == "cgroup2"
        if is_v2 not in paths or not (is_v2 or (kind == "cgroup" and "memory" in options.split()[-1].split(","))):
            continue
        root, mount = (_unescaped(field) for field in fields.split(" ")[3:5])
        # In a container the mount begins at its own group, of which the path may or may not know.
        inside = os.path.relpath(paths[is_v2], root) if root != "/" else paths[is_v2].strip("/")
        folder = os.path.normpath(os.path.join(mount, inside))
        if inside.startswith("..") or not os.path.isdir(folder):
            folder = mount
        folders = [folder]
        while folders[-1] != mount and len(folders) < 64:
            folders.append(os.path.dirname(folders[-1]))
        yield tuple(folders), is_v2


def _unescaped(field: str) -> str:
    return field.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read().splitlines()
    except OSError:
        return []


def _number(path: str) -> int | None:
    lines = _lines(path)
    return int(lines[0]) if len(lines) == 1 and lines[0].isdigit() else None


def _numbers(path: str) -> dict[str, int]:
    """Lines of a name and a number; what follows the number is its unit."""
    pairs = (line.split() for line in _lines(path))
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) > 1 and pair[1].isdigit()}
