"""Git commands that run no program of a repository: no filter, hook, helper or transport."""

from __future__ import annotations

import os
import selectors
import subprocess
import tempfile
import time
from pathlib import Path

from msgspec import Struct

GIT_SECONDS = 60
# Enough for a list of a few hundred thousand files.
MAX_OUTPUT_BYTES = 64 << 20
_MAX_WARNING_BYTES = 64 << 10
_READ_BYTES = 64 << 10
_OVERRIDES = (
    "core.fsmonitor=false",
    "core.hooksPath=/dev/null",
    "core.quotepath=false",
    # A refresh of the index runs the hook post-index-change, with GIT_OPTIONAL_LOCKS=0 too.
    "diff.autoRefreshIndex=false",
    "protocol.allow=never",
)
# No transport has this name. Unlike protocol.allow it holds against a repository's own
# protocol.ext.allow, and unlike GIT_NO_LAZY_FETCH git 2.39 knows it.
_NO_TRANSPORT = "none"


class GitOutput(Struct, frozen=True):
    """Exit status and output of git; `is_cut`: stdout was too long, and git was killed."""

    status: int
    stdout: bytes
    stderr: bytes
    is_cut: bool = False


def git_environment() -> dict[str, str]:
    """Return the environment of a git that only reads the repository in its folder."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return environment | {
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_ALLOW_PROTOCOL": _NO_TRANSPORT,
        "GIT_NO_LAZY_FETCH": "1",
        "LC_ALL": "C",
    }


def init_repository(folder: Path, *options: str) -> GitOutput:
    """Create an empty bare repository in a folder. Raises OSError and TimeoutExpired."""
    arguments = ("init", "--quiet", "--bare", "--template=", *options, ".")
    return run_git(folder, git_environment(), *arguments)


def run_git(
    folder: Path,
    environment: dict[str, str],
    *arguments: str,
    stdin: bytes = b"",
    most_bytes: int = MAX_OUTPUT_BYTES,
) -> GitOutput:
    """Run one command of git in a folder. Raises OSError and TimeoutExpired."""
    overrides = (part for override in _OVERRIDES for part in ("-c", override))
    argv = ("git", *overrides, "-C", os.fspath(folder), *arguments)
    with tempfile.TemporaryFile() as given:
        given.write(stdin)
        given.seek(0)
        process = subprocess.Popen(
            argv, env=environment, stdin=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    with process:
        try:
            stdout, stderr = _read_output(process, most_bytes)
            is_cut = len(stdout) > most_bytes
            if is_cut:
                process.kill()
            status = process.wait(GIT_SECONDS)
        except BaseException:
            process.kill()
            raise
    return GitOutput(status, stdout[:most_bytes], stderr, is_cut)


def _read_output(process: subprocess.Popen[bytes], most_bytes: int) -> tuple[bytes, bytes]:
    """Read both pipes to their ends, or until stdout holds more than `most_bytes`."""
    assert process.stdout is not None
    assert process.stderr is not None
    stdout = bytearray()
    stderr = bytearray()
    deadline = time.monotonic() + GIT_SECONDS
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ, stdout)
        selector.register(process.stderr, selectors.EVENT_READ, stderr)
        while selector.get_map() and len(stdout) <= most_bytes:
            seconds_left = deadline - time.monotonic()
            if seconds_left <= 0:
                raise subprocess.TimeoutExpired(process.args, GIT_SECONDS)
            for key, _ in selector.select(seconds_left):
                chunk = os.read(key.fd, _READ_BYTES)
                key.data.extend(chunk)
                if not chunk:
                    selector.unregister(key.fileobj)
            del stderr[_MAX_WARNING_BYTES:]
    return bytes(stdout), bytes(stderr)
