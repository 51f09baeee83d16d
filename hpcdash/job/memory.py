"""Stop of a training before the memory of its host, control group or GPU is full.

A leak over days then costs a restart, not a crash. This never imports torch, but uses it if the
program has imported it.
"""

from __future__ import annotations

import os
import sys
from time import monotonic

from hpcdash.job.ranks import all_reduce_highest
from hpcdash.job.warnings_once import OnceLog

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from hpcdash.job.ranks import AllReduceMax

GIB = 1 << 30


class MemoryGuard:
    """Reports when to save and stop: more than `host_percent` (0-100) of host memory is used, or a
    GPU is almost full.

    A GPU is almost full when less than `gpu_free_bytes` are free. `gpu_free` returns the free bytes
    of this rank's GPU; the default is torch.cuda's value if the program has imported torch and uses
    a GPU. Low GPU memory is measured again after gc and `torch.cuda.empty_cache`, because only then
    does torch's cache count as free. A limit of None is not checked.

        memory = MemoryGuard()
        for step in range(steps):
            train(step)
            if memory.should_stop():
                save(step)
                break

    With several ranks the worst one decides, by `all_reduce_max` (takes a rank's number, returns
    the highest of all) or by torch.distributed if it is running: then all ranks must call this at
    the same places.
    """

    def __init__(
        self,
        host_percent: float | None = 95.0,
        gpu_free_bytes: float | None = 2 * GIB,
        *,
        gpu_free: Callable[[], float] | None = None,
        every_seconds: float = 30.0,
        all_reduce_max: AllReduceMax | None = None,
        host_used: Callable[[], float | None] | None = None,
    ) -> None:
        if host_percent is not None and not 1 < host_percent <= 100:
            raise ValueError(f"host_percent {host_percent!r} is not between 1 and 100: 95 is 95%")
        self._host_percent = host_percent
        self._gpu_free_bytes = gpu_free_bytes
        self._gpu_free = gpu_free
        self._every_seconds = every_seconds
        self._all_reduce_max = all_reduce_max
        self._host_used = host_used
        self._next_check = 0.0
        self._reason = ""
        self._log = OnceLog()

    def should_stop(self) -> str:
        """Return the reason to save and stop now, "" to continue. Once set, the reason stays."""
        worst = all_reduce_highest(int(bool(self.reason())), self._all_reduce_max)
        if worst and not self._reason:
            self._reason = "another rank is almost out of memory"
        return self._reason

    def reason(self) -> str:
        """Return the reason to stop of this rank alone.

        Checks every few seconds, and raises nothing.
        """
        now = monotonic()
        if not self._reason and now >= self._next_check:
            self._next_check = now + self._every_seconds
            try:
                self._reason = self._host_reason() or self._gpu_reason()
            except Exception as error:
                self._log.warn(
                    "unread",
                    f"cannot measure memory ({error!r}); training continues without the "
                    "memory guard",
                )
        return self._reason

    def _host_reason(self) -> str:
        if self._host_percent is None:
            return ""
        if self._host_used is None:
            self._host_used = host_used_percent
        used = self._host_used()
        if used is None:
            self._log.warn(
                "host",
                "cannot measure host memory on this system; training continues without the "
                "memory guard",
            )
            return ""
        if used <= self._host_percent:
            return ""
        return f"{used:.1f}% of host memory used, above {self._host_percent:g}%"

    def _gpu_reason(self) -> str:
        if self._gpu_free_bytes is None:
            return ""
        # torch.cuda if the program already uses it.
        cuda = getattr(sys.modules.get("torch"), "cuda", None)
        if cuda is not None and not (cuda.is_available() and cuda.is_initialized()):
            cuda = None
        free = self._measure_gpu(cuda)
        if free >= self._gpu_free_bytes:
            return ""
        import gc

        gc.collect()
        if cuda is not None:
            cuda.empty_cache()
        free = self._measure_gpu(cuda)
        if free >= self._gpu_free_bytes:
            return ""
        return f"{free / GIB:.2f} GiB of GPU memory free, below {self._gpu_free_bytes / GIB:g} GiB"

    def _measure_gpu(self, cuda: Any) -> float:
        """Return the free bytes of this rank's GPU; infinite without a GPU."""
        if self._gpu_free is not None:
            return self._gpu_free()
        return float("inf") if cuda is None else float(cuda.mem_get_info()[0])


def host_used_percent(proc: str = "/proc") -> float | None:
    """Return the percentage (0-100) in use of the host's memory, or of the tightest control group
    (v1, v2) of this process, whichever is higher.

    Memory that the kernel can free at once (cached files) does not count as used. None if neither
    can be read, for example because the system is not Linux.
    """
    shares = list(_group_shares(proc))
    sizes = _numbers(f"{proc}/meminfo")
    total = sizes.get("MemTotal:", 0)
    if total > 0 and "MemAvailable:" in sizes:
        shares.append(1 - sizes["MemAvailable:"] / total)
    return 100 * max(shares) if shares else None


def _group_shares(proc: str) -> Iterator[float]:
    """Yield the share in use of each limit of this process's control groups."""
    for folders, is_v2 in _groups(proc):
        limit_file = "memory.max" if is_v2 else "memory.limit_in_bytes"
        usage_file = "memory.current" if is_v2 else "memory.usage_in_bytes"
        prefix = "" if is_v2 else "total_"
        for folder in folders:
            # Without a limit, v2 reports `max`, and v1 a number that no host has.
            limit = _number(f"{folder}/{limit_file}")
            usage = _number(f"{folder}/{usage_file}")
            if limit is None or usage is None or not 0 < limit < 1 << 60:
                continue
            counts = _numbers(f"{folder}/memory.stat")
            names = ("inactive_file", "active_file", "slab_reclaimable")
            cached = sum(counts.get(prefix + name, 0) for name in names)
            yield max(0, usage - cached) / limit


def _groups(proc: str) -> Iterator[tuple[tuple[str, ...], bool]]:
    """Yield the folders of this process's memory controllers, its own group first, and whether they
    are of version 2.
    """
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
        if is_v2 not in paths or not (
            is_v2 or (kind == "cgroup" and "memory" in options.split()[-1].split(","))
        ):
            continue
        root, mount = (_unescaped(field) for field in fields.split(" ")[3:5])
        # In a container the mount starts at the container's group; the path may include it or not.
        inside = os.path.relpath(paths[is_v2], root) if root != "/" else paths[is_v2].strip("/")
        folder = os.path.normpath(os.path.join(mount, inside))
        if inside.startswith("..") or not os.path.isdir(folder):
            folder = mount
        folders = [folder]
        while folders[-1] != mount and len(folders) < 64:
            folders.append(os.path.dirname(folders[-1]))
        yield tuple(folders), is_v2


def _unescaped(field: str) -> str:
    return (
        field.replace("\\040", " ")
        .replace("\\011", "\t")
        .replace("\\012", "\n")
        .replace("\\134", "\\")
    )


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
    """Return the numbers in a file by name, from lines of name, number and perhaps unit."""
    pairs = (line.split() for line in _lines(path))
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) > 1 and pair[1].isdigit()}
