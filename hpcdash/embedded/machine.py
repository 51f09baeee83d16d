"""This machine's resources for jobs: name, CPU slots, GPUs, memory."""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hpcdash.errors import ConfigError
from hpcdash.private_files import atomic_write

_NVIDIA_LIMIT_SECONDS = 10.0
_DEFAULT_GRACE_SECONDS = 10.0
_MAX_VALUE = 1_000_000


@dataclass(frozen=True, slots=True)
class Machine:
    """Resources for jobs.

    `gpu_ids` are values for CUDA_VISIBLE_DEVICES; `grace_seconds` is the time from TERM to KILL.
    """

    node: str
    cpus: int
    gpu_ids: tuple[str, ...]
    gpu_type: str
    memory_bytes: int
    grace_seconds: float


def this_machine(folder: Path) -> Machine:
    """Detect this machine's resources; `slots.json` in the queue's folder overrides them.

    It may set cpus, gpus and grace_seconds. Raises ConfigError for an unusable file.
    """
    overrides = _read_overrides(folder / "slots.json")
    if "gpus" in overrides:
        gpu_ids = tuple(map(str, range(int(overrides["gpus"]))))
        gpu_type = ""
    else:
        gpu_ids, gpu_type = _gpus(folder)
    return Machine(
        node=node_name(),
        cpus=int(overrides.get("cpus") or cpu_count()),
        gpu_ids=gpu_ids,
        gpu_type=gpu_type,
        memory_bytes=memory_bytes(),
        grace_seconds=float(overrides.get("grace_seconds", _DEFAULT_GRACE_SECONDS)),
    )


def slots_stamp(folder: Path) -> tuple[int, ...]:
    """Return a value that changes with the files which `this_machine` reads."""
    times = []
    for file in (folder / "slots.json", folder / "gpus.json"):
        try:
            times.append(file.stat().st_mtime_ns)
        except OSError:
            times.append(0)
    return tuple(times)


def _read_overrides(file: Path) -> dict[str, float]:
    try:
        found = json.loads(file.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cannot be read: {error}", "Delete or rewrite it.", file=str(file)
        ) from error
    known = ("cpus", "gpus", "grace_seconds")
    is_valid = isinstance(found, dict) and found.keys() <= set(known)
    for value in found.values() if is_valid else ():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        is_valid &= is_number and 0 <= value <= _MAX_VALUE
    if not is_valid:
        raise ConfigError(f"must contain only numbers for {', '.join(known)}", "", file=str(file))
    return dict(found)


def boot_id() -> str:
    """Return the ID of this start of the machine; '' if unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def node_name() -> str:
    """Return the short host name."""
    return os.uname().nodename.partition(".")[0] or "localhost"


def user_name() -> str:
    """Return the name of the user who runs this."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def cpu_count() -> int:
    """Return the number of CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0)) or 1
    return os.cpu_count() or 1


def memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def memory_used_bytes() -> int | None:
    """Return the memory that is neither free nor reclaimable; None without /proc."""
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:
        return None
    available = re.search(r"^MemAvailable:\s+([0-9]+) kB", text, re.MULTILINE)
    return memory_bytes() - 1024 * int(available[1]) if available else None


def _gpus(folder: Path) -> tuple[tuple[str, ...], str]:
    """Return the GPUs' numbers, and their type if all have the same.

    The query is slow, so its result is stored until the machine restarts.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        return (), ""
    cache = folder / "gpus.json"
    try:
        boot, ids, kind = json.loads(cache.read_text())
        if boot == boot_id() != "":
            return tuple(map(str, ids)), str(kind)
    except (OSError, ValueError, TypeError):
        pass
    found = _query_gpus(program)
    if found is None:
        return (), ""
    with suppress(OSError):
        atomic_write(cache, json.dumps([boot_id(), *found]).encode())
    return found


def _query_gpus(program: str) -> tuple[tuple[str, ...], str] | None:
    """Return the IDs and type of the GPUs from nvidia-smi; None if the driver does not respond."""
    import subprocess

    try:
        listed = subprocess.run(
            [program, "--query-gpu=index,name", "--format=csv,noheader"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_NVIDIA_LIMIT_SECONDS,
            check=True,
        ).stdout.decode("utf-8", "replace")
    except (OSError, subprocess.SubprocessError):
        return None
    ids = []
    kinds = set()
    for line in listed.splitlines():
        if line[:1].isdigit():
            index, _, name = line.partition(",")
            ids.append(index.strip())
            kinds.add(name.strip().lower().replace(" ", "_"))
    return tuple(ids), kinds.pop() if len(kinds) == 1 else ""
