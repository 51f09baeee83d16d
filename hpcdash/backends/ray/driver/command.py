"""Runs the command of one worker, and leaves no processes, no libtpu lockfile and no container.

As a program, `command.py SECONDS LOCK CONTAINER ARGUMENT…`, it waits until the last command on this
node has ended, and ends its own, with all its processes, when its stdin ends: the worker holds the
other end, and Ray kills the workers that it cancels.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any

LOCKFILE = "/tmp/libtpu_lockfile"
_PREEMPTED = "http://metadata.google.internal/computeMetadata/v1/instance/preempted"
_METADATA_SECONDS = 2.0
_GRACE_SECONDS = 10.0


def remove_lockfile() -> None:
    """Remove libtpu's lockfile, which means that a process still holds the chips."""
    with contextlib.suppress(OSError):
        os.unlink(LOCKFILE)


def is_preempted() -> bool:
    """Whether the cloud reports that this machine is preempted; False without a response."""
    request = urllib.request.Request(_PREEMPTED, headers={"Metadata-Flavor": "Google"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=_METADATA_SECONDS) as response:
            return bool(response.read(16).strip() == b"TRUE")
    except (OSError, ValueError):
        return False


def container_argv(container: Mapping[str, Any], environment: Mapping[str, str]) -> list[str]:
    """Return the arguments of docker (or podman) before the command.

    `container`: its program, name, image, binds, and whether to pull. It is a sibling of the
    container that Ray itself may run in. Only variables' names are passed: the program takes their
    values from its own environment, so that none is in the process list.
    """
    argv = [
        container["program"],
        "run",
        "--rm",
        "--privileged",
        "--shm-size=32gb",
        "--net=host",
        "--init",
        "-v",
        "/tmp:/tmp",
    ]
    if container["pull"]:
        argv.append("--pull=always")
    for bind in container["binds"]:
        argv += ["-v", bind]
    for variable in sorted(environment):
        argv += ["-e", variable]
    return [*argv, "--name", container["name"], container["image"]]


def remove_container(program: str, name: str) -> None:
    """Remove the container of this attempt, or one left by an earlier attempt."""
    subprocess.run(
        [program, "rm", "-f", name],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )


def run(
    argv: Sequence[str], environment: Mapping[str, str], *, node: str, container: str = ""
) -> int:
    """Run a command and return its exit status; 128 + signal like a shell.

    The variables override this process's own. `node`: the ID of the node. `container`: the name of
    the container that the command starts, '' for none.
    """
    # Ray kills the children of a worker that it ends, and none of theirs: the supervisor must not
    # be a child.
    parts = ["sh", "-c", '"$@"; exit $?', "sh", sys.executable, os.path.abspath(__file__)]
    parts += [str(_GRACE_SECONDS), lock_path(node), container, *argv]
    with subprocess.Popen(
        parts, env={**os.environ, **environment}, stdin=subprocess.PIPE
    ) as process:
        code = process.wait()
    return code if code >= 0 else 128 - code


def lock_path(node: str) -> str:
    """Return the path of a node's lock in the home: in /tmp, anyone could create and lock it.

    Without a writable home, it is beside this file, which Ray stores for this user's jobs.
    """
    folder = os.path.join(os.path.expanduser("~"), ".cache", "hpcdash")
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        is_own = os.stat(folder).st_uid == os.getuid() and os.access(folder, os.W_OK)
    except OSError:
        is_own = False
    if not is_own:
        folder = os.path.dirname(os.path.abspath(__file__))
    # Homes are shared between nodes.
    return os.path.join(folder, f"ray-{os.uname().nodename}-{node}.lock")


def _end_with_stdin() -> None:
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGTERM)


def _supervise(grace_seconds: float, lock: str, container: str, argv: Sequence[str]) -> int:
    # Ray may kill the whole process group of a worker, but the command gets its grace.
    os.setsid()

    is_starting = False
    status = 0

    def end(number: int, frame: object) -> None:
        nonlocal status
        status = 128 + number
        # Raised while Popen starts the command, it would leave the command running.
        if not is_starting:
            raise SystemExit(status)

    signal.signal(signal.SIGTERM, end)
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    # The command of the last attempt may still be saving here: it has the chips until it ends.
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print(
            "hpcdash: waiting for the command of an earlier attempt to end on this node", flush=True
        )
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    remove_lockfile()
    if container:
        remove_container(argv[0], container)
    is_starting = True
    command = subprocess.Popen(list(argv), stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        is_starting = False
        if status:
            raise SystemExit(status)
        code = command.wait()
        return code if code >= 0 else 128 - code
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(command.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                command.wait(grace_seconds)
        if container:
            remove_container(argv[0], container)
        remove_lockfile()


if __name__ == "__main__":
    sys.exit(_supervise(float(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:]))
