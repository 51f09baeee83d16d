"""Address of a forwarded port: path and token in the job's log, listener on this machine."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import sys
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from msgspec import Struct

from hpcdash.errors import HpcdashError, UsageError
from hpcdash.listening import listen_on_loopback, listen_on_socket
from hpcdash.private_files import user_name
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.logs.locate import locate_logs

# A server prints its address when it starts; it may start late, or again.
_READ_BYTES = 1 << 18
_URL = re.compile(
    rb"https?://([A-Za-z0-9.-]{1,253}|\[[0-9a-f:]{2,39}\]):([0-9]{1,5})"
    rb"(/[A-Za-z0-9/_.~%-]{0,300})?(\?[A-Za-z0-9/_.~%=&+-]{1,300})?"
)
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "0.0.0.0", "[::1]", "[::]"})
# sun_path of unix(7), with its end.
_MAX_SOCKET_BYTES = 107
# A terminal's own browser would take the screen.
_GRAPHICAL = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
_PORTS = re.compile(r"([0-9]{1,5})(?::([0-9]{1,5}))?")


class LogAddress(Struct, frozen=True):
    """Port and path that a job's log names: its host, and all else, is ours."""

    port: int
    path: str = "/"

    @property
    def has_token(self) -> bool:
        return "token=" in self.path


def parse_ports(text: str) -> tuple[int, int | None]:
    """Parse `PORT` or `PORT:LOCAL`, LOCAL None by default. Raises UsageError."""
    found = _PORTS.fullmatch(text)
    ports = [] if found is None else [int(part) for part in found.groups() if part]
    if not ports or not all(0 < port < 1 << 16 for port in ports):
        raise UsageError(f"{text} is not a port", "PORT or PORT:LOCAL, such as 8888:9000.")
    return ports[0], ports[1] if len(ports) > 1 else None


async def fetch_log_address(
    store: ClusterStore, job_id: str, port: int | None = None, nodes: Collection[str] = ()
) -> LogAddress | None:
    """Find the newest address in a job's logs, of a port if one is given; None without one.

    An address with a token comes before those without. Unreadable logs have none.
    """
    try:
        place = await locate_logs(store, job_id)
        paths = dict.fromkeys(filter(None, (place.files.stderr, place.files.stdout)))
        texts = []
        for path in paths:
            file = store.log_file(path, place.files.host)
            start = await file.read(0, _READ_BYTES)
            texts.append(start.content)
            if not start.ends_the_file:
                texts.append((await file.read_end(_READ_BYTES)).content)
    except HpcdashError:
        return None
    found = [address for text in texts for address in parse_addresses(text, nodes)]
    matching = [address for address in found if port in (None, address.port)]
    with_token = [address for address in matching if address.has_token]
    best = with_token or matching
    return best[-1] if best else None


def parse_addresses(log: bytes, nodes: Collection[str]) -> Iterator[LogAddress]:
    """Yield the addresses of servers on a job's own nodes in a log."""
    for found in _URL.finditer(log):
        host, port, path, query = found.groups(b"")
        name = host.decode()
        is_here = name in _LOOPBACK or name.partition(".")[0] in nodes
        if is_here and 0 < int(port) < 1 << 16:
            yield LogAddress(int(port), (path or b"/").decode() + query.decode())


async def other_users() -> tuple[str, ...]:
    """Return the names of the other users who are logged in on this machine."""

    def read_names() -> tuple[str, ...]:
        try:
            logins = subprocess.run(
                ["who"], capture_output=True, stdin=subprocess.DEVNULL, timeout=5, check=False
            ).stdout
        except (OSError, subprocess.SubprocessError):
            return ()
        lines = logins.decode("utf-8", "replace").splitlines()
        names = {line.split()[0] for line in lines if line.strip()}
        return tuple(sorted(names - {user_name(os.geteuid())}))

    return await asyncio.to_thread(read_names)


def open_page(page: Path) -> bool:
    """Open a page in the person's browser; return False if this machine has none with a window."""
    if sys.platform != "darwin" and not any(map(os.environ.get, _GRAPHICAL)):
        return False
    # Browsers write to their terminal.
    opening = subprocess.run(
        [sys.executable, "-I", "-m", "webbrowser", page.as_uri()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        check=False,
    )
    return opening.returncode == 0


class LocalAddress(Struct, frozen=True):
    """Listening socket on this machine: `port`, or the `path` of a unix socket."""

    listening: socket.socket
    port: int = 0
    path: str = ""

    @property
    def text(self) -> str:
        return self.path or f"127.0.0.1:{self.port}"


@contextmanager
def listen(path: Path, port: int, local: int | None, *, is_tcp: bool) -> Iterator[LocalAddress]:
    """Listen on loopback, or on a unix socket at a path, for the far `port`.

    Without `local`, it is the same number if that is free here. Raises HpcdashError.
    """
    with ExitStack() as stack:
        if not is_tcp:
            if len(os.fsencode(path)) > _MAX_SOCKET_BYTES:
                raise UsageError(
                    f"the path of a unix socket is at most {_MAX_SOCKET_BYTES} bytes long: {path}",
                    "Set HPCDASH_STATE to a folder of your own with a shorter path, or use --tcp.",
                )
            listening = stack.enter_context(listen_on_socket(path))
            yield LocalAddress(listening, path=str(path))
            return
        try:
            listening = listen_on_loopback(port if local is None else local)
        except HpcdashError as error:
            if local is not None:
                raise HpcdashError(error.message, "Choose another: PORT:LOCAL.") from error
            listening = listen_on_loopback(0)
        stack.callback(listening.close)
        yield LocalAddress(listening, port=listening.getsockname()[1])
