"""Opens the chain of ssh connections to a login node: host keys checked, a person asked, failures put into words."""

from __future__ import annotations

import asyncio
import errno
import signal
import socket
import struct
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TypeVar

import asyncssh
from asyncssh.public_key import get_default_certificate_algs, get_default_public_key_algs

from hpcdash.errors import (
    AuthenticationFailed,
    ConfigError,
    ConnectionFailed,
    HostKeyChanged,
    HostKeyRefused,
    UnreachableError,
    excerpt,
)
from hpcdash.transport.base import Health, HostKeyQuestion, Prompt, Prompter, PromptField
from hpcdash.transport.known_hosts import KnownKey, KnownKeys, fingerprint, known_keys, remember
from hpcdash.transport.local import signal_group
from hpcdash.transport.ssh_config import Hop
from hpcdash.transport.ssh_identity import Identities, read_identities

T = TypeVar("T")

LOGIN_SECONDS = 20.0
KEEPALIVE_SECONDS = 15.0
KEEPALIVE_MISSES = 3
_PASSWORD_TRIES = 3
_CLOSE_SECONDS = 2.0


class LoginClock:
    """Limits each network phase of a login; stands still while a person is asked, then starts anew."""

    def __init__(self, seconds: float, health: Health) -> None:
        self.seconds = seconds
        self._health = health
        self._asked = 0
        self._since = time.monotonic()

    @contextmanager
    def person(self) -> Iterator[None]:
        """While a person reads and types."""
        self._asked += 1
        self._health.state = "asking"
        try:
            yield
        finally:
            self._asked -= 1
            self._since = time.monotonic()
            self._health.state = "connecting"

    async def limit(self, awaited: Awaitable[T]) -> T:
        """Await something; TimeoutError once the network alone has taken too long."""
        self._since = time.monotonic()
        task = asyncio.ensure_future(awaited)
        try:
            while not task.done():
                left = self.seconds if self._asked else self._since + self.seconds - time.monotonic()
                if left <= 0:
                    raise TimeoutError
                await asyncio.wait({task}, timeout=left)
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=_CLOSE_SECONDS)


class HopClient(asyncssh.SSHClient):
    """Answers one hop's questions by asking the person; remembers the key it showed and the ways in that were tried."""

    def __init__(
        self, hop: Hop, prompter: Prompter, clock: LoginClock, identities: Identities, lost: Callable[[str], None]
    ) -> None:
        self.hop = hop
        self.shown_key: asyncssh.SSHKey | None = None
        self.tried: list[str] = [f"key {name}" for name in identities.names]
        self.gave_up = False
        self.banner = ""
        self._prompter = prompter
        self._clock = clock
        self._lost = lost
        self._asked = {"keyboard-interactive": 0, "password": 0}

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost(str(exc) if exc else "")

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        # Called for unknown and for changed keys alike: neither is let in here.
        self.shown_key = key
        return False

    def auth_banner_received(self, msg: str, lang: str) -> None:
        self.banner = msg[:2000]

    async def password_auth_requested(self) -> str | None:
        if not self._may_ask("password"):
            return None
        answers = await self.ask("Password", "", (PromptField(f"Password of {self.hop.label}"),))
        return answers[0] if answers else None

    def kbdint_auth_requested(self) -> str | None:
        return "" if self._may_ask("keyboard-interactive") else None

    async def kbdint_challenge_received(
        self, name: str, instructions: str, lang: str, prompts: Sequence[tuple[str, bool]]
    ) -> list[str] | None:
        if not prompts:
            return []
        return await self.ask(name, instructions, tuple(PromptField(label, secret=not echo) for label, echo in prompts))

    async def ask(self, title: str, instructions: str, fields: tuple[PromptField, ...]) -> list[str] | None:
        """The person's answers, one a field, or None once they gave up."""
        if self.gave_up:
            return None
        with self._clock.person():
            answers = await self._prompter.answer(Prompt(self.hop.label, title, instructions, fields))
        if answers is None or len(answers) != len(fields):
            self.gave_up = True
            return None
        return answers

    def _may_ask(self, method: str) -> bool:
        if self.gave_up or self._asked[method] >= _PASSWORD_TRIES:
            return False
        self._asked[method] += 1
        if method not in self.tried:
            self.tried.append(method)
        return True


@dataclass(frozen=True, slots=True)
class Proxy:
    """A running ProxyCommand; what it says on stderr goes into a file without a name."""

    process: asyncio.subprocess.Process
    words: IO[bytes]

    def said(self) -> str:
        self.words.seek(0)
        return excerpt(self.words.read(), 300)

    def end(self) -> None:
        if self.process.returncode is None:
            signal_group(self.process.pid, signal.SIGTERM)


@dataclass(slots=True)
class Line:
    """An open chain; `connection` is the last hop's."""

    connections: list[asyncssh.SSHClientConnection] = field(default_factory=list)
    proxy: Proxy | None = None
    labels: list[str] = field(default_factory=list)

    @property
    def connection(self) -> asyncssh.SSHClientConnection:
        return self.connections[-1]

    def abort(self) -> None:
        """Drop everything at once, the last hop first."""
        for connection in reversed(self.connections):
            connection.abort()
        self._end_proxy()

    async def close(self) -> None:
        """Say goodbye to each hop, the last first; a silent one is dropped."""
        for connection in reversed(self.connections):
            _forget_unsent(connection, on=False)
            connection.close()
            try:
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await connection.wait_closed()
            except TimeoutError:
                connection.abort()
        self._end_proxy()

    def _end_proxy(self) -> None:
        if self.proxy is not None:
            self.proxy.end()


class Login:
    """Opens lines to one destination. A key a person accepted holds for its lifetime, also where no file takes it."""

    def __init__(self, hops: tuple[Hop, ...], prompter: Prompter, health: Health) -> None:
        self.hops = hops
        self._prompter = prompter
        self._health = health
        self._accepted: dict[tuple[str, int], list[asyncssh.SSHKey]] = {}

    async def open(self, lost: Callable[[str], None]) -> Line:
        """Connect hop by hop; `lost` is called when the last hop's connection ends. Raises UnreachableError."""
        line = Line()
        try:
            for hop in self.hops:
                is_last = hop is self.hops[-1]
                client, connection = await self._open_hop(hop, line, lost if is_last else lambda _reason: None)
                line.connections.append(connection)
                line.labels.append(hop.label)
                if client.banner:
                    self._health.extra["banner"] = client.banner
        except BaseException:
            line.abort()
            raise
        return line

    async def _open_hop(
        self, hop: Hop, line: Line, lost: Callable[[str], None]
    ) -> tuple[HopClient, asyncssh.SSHClientConnection]:
        clock = LoginClock(hop.login_seconds or LOGIN_SECONDS, self._health)
        while True:
            self._health.detail = f"connecting to {hop.label}"
            known = await asyncio.to_thread(
                known_keys, (*hop.user_known_hosts, *hop.global_known_hosts), hop.key_name, hop.key_port
            )
            holder: list[HopClient] = []

            async def ask(path: Path, wrong: bool, holder: list[HopClient] = holder) -> str | None:
                instructions = "That passphrase did not fit." if wrong else ""
                answers = await holder[0].ask("Passphrase", instructions, (PromptField(f"Passphrase of {path}"),))
                return answers[0] if answers else None

            identities = await asyncio.to_thread(read_identities, hop.identity_files, hop.identities_only, ask)
            opened = [False]

            def report(reason: str, opened: list[bool] = opened) -> None:
                if opened[0]:
                    lost(reason)

            client = HopClient(hop, self._prompter, clock, identities, report)
            holder.append(client)
            try:
                connection = await clock.limit(self._connect(hop, line, client, known, identities))
            except asyncssh.HostKeyNotVerifiable as error:
                if client.shown_key is None:
                    raise HostKeyRefused(
                        f"The host certificate of {hop.label} does not hold: {error.reason}.",
                        "Ask the site which certificate authority its login nodes use.",
                    ) from error
                await self._judge(hop, known, client.shown_key, clock)
            except (asyncssh.Error, OSError, ValueError) as error:
                raise _in_words(error, hop, line, client, clock.seconds) from error
            else:
                opened[0] = True
                _forget_unsent(connection)
                return client, connection

    async def _connect(
        self, hop: Hop, line: Line, client: HopClient, known: KnownKeys, identities: Identities
    ) -> asyncssh.SSHClientConnection:
        accepted = self._accepted.get((hop.key_name, hop.key_port), [])
        trusted = [*filter(None, map(_public_key, known.host_keys)), *accepted]
        authorities = [*filter(None, map(_public_key, known.authorities))]
        sock = None
        if not line.connections and hop.proxy_command:
            line.proxy, sock = await _start_proxy(hop.proxy_command)
        return await asyncssh.connect(
            hop.alias.host,
            port=hop.alias.port if hop.alias.port is not None else (),
            username=hop.alias.user if hop.alias.user is not None else (),
            config=[str(path) for path in hop.config_paths],
            tunnel=line.connection if line.connections else None,
            sock=sock,
            proxy_command=None,
            client_factory=lambda: client,
            known_hosts=(trusted, authorities, []),
            server_host_key_algs=() if hop.has_host_key_algorithms else _algorithms(trusted, bool(authorities)),
            client_keys=list(identities.keys),
            agent_identities=None if identities.agent_keys is None else list(identities.agent_keys),
            connect_timeout=None,
            login_timeout=0,
            keepalive_interval=hop.keepalive_seconds or KEEPALIVE_SECONDS,
            keepalive_count_max=KEEPALIVE_MISSES,
            agent_forwarding=False,
            x11_forwarding=False,
            request_pty=False,
            command=None,
            utf8_decode_errors="replace",
        )

    async def _judge(self, hop: Hop, known: KnownKeys, key: asyncssh.SSHKey, clock: LoginClock) -> None:
        """Refuse a changed or revoked key, have an unknown one accepted and remember it."""
        blob, algorithm = key.public_data, key.get_algorithm()
        shown = fingerprint(blob)
        if revoked := [entry for entry in known.revoked if entry.blob == blob]:
            raise HostKeyRefused(
                f"{hop.label} shows the key {shown}, which is marked as revoked in {revoked[0].where}.",
                "Do not log in there; ask the site.",
            )
        if known.exact and known.host_keys:
            raise _changed(hop, known.host_keys, algorithm, shown)
        if hop.strict == "yes":
            raise HostKeyRefused(
                f"{hop.label} is not in known_hosts, and StrictHostKeyChecking is yes. Its key is {algorithm} {shown}.",
                f"Compare that with what the site publishes, then add it: ssh {hop.alias.host}",
            )
        target = hop.user_known_hosts[0] if hop.user_known_hosts else None
        if hop.strict not in ("no", "accept-new"):
            question = HostKeyQuestion(hop.label, algorithm, shown, str(target or ""))
            with clock.person():
                accepted = await self._prompter.accept_host_key(question)
            if not accepted:
                raise HostKeyRefused(
                    f"The key of {hop.label} was not accepted: {algorithm} {shown}.",
                    "Compare it with what the site publishes, then connect again.",
                )
        self._accepted.setdefault((hop.key_name, hop.key_port), []).append(key)
        if target is not None:
            try:
                await asyncio.to_thread(remember, target, hop.key_name, hop.key_port, algorithm, blob)
            except OSError as error:
                self._health.extra["known_hosts"] = f"{target} could not be written: {error.strerror}"


def _forget_unsent(connection: asyncssh.SSHClientConnection, *, on: bool = True) -> None:
    """Once dropped, nothing that it has not sent yet goes out any more.

    Else the kernel would go on for minutes, and hand a script over after it was looked for.
    """
    sock = connection.get_extra_info("socket")
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", int(on), 0))


def _public_key(known: KnownKey) -> asyncssh.SSHKey | None:
    """None for a type of key this program cannot check."""
    try:
        return asyncssh.import_public_key(known.public_line)
    except asyncssh.KeyImportError:
        return None


def _algorithms(trusted: Sequence[asyncssh.SSHKey], with_certificates: bool) -> list[str]:
    """Known types of key first, so that a host is asked for the key we know; the others after them.

    Without the others a host whose key changed its type would fail without a word about its key. Certificates are asked
    for only where an authority is known for the host.
    """
    first = [algorithm for key in trusted for algorithm in key.sig_algorithms]
    certificates = get_default_certificate_algs() if with_certificates else []
    return [name.decode() for name in dict.fromkeys([*certificates, *first, *get_default_public_key_algs()])]


def _changed(hop: Hop, entries: tuple[KnownKey, ...], algorithm: str, shown: str) -> HostKeyChanged:
    old = "; ".join(f"{entry.key_type} {fingerprint(entry.blob)} ({entry.where})" for entry in entries)
    file = entries[0].path
    option = "" if file == Path("~/.ssh/known_hosts").expanduser() else f" -f {file}"
    name = hop.name_in_known_hosts
    name = f"'{name}'" if name.startswith("[") else name
    return HostKeyChanged(
        f"The host key of {hop.label} has changed: somebody may be listening in. "
        f"It shows {algorithm} {shown}; known is {old}.",
        f"Ask the site whether it changed its keys. If it did: ssh-keygen -R {name}{option}",
    )


async def _start_proxy(command: str) -> tuple[Proxy, socket.socket]:
    """Run a ProxyCommand as ssh does, in the shell, with a socket for its stdin and stdout."""
    words = tempfile.TemporaryFile()  # noqa: SIM115
    ours, theirs = socket.socketpair()
    with theirs:
        process = await asyncio.create_subprocess_exec(
            "/bin/sh",
            "-c",
            "exec " + command,
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=words,
            start_new_session=True,
        )
    ours.setblocking(False)
    return Proxy(process, words), ours


def _in_words(
    error: Exception, hop: Hop, line: Line, client: HopClient, seconds: float
) -> UnreachableError | ConfigError:
    """What went wrong at a hop, in plain words with a next step."""
    where = hop.label + (f" (by way of {', '.join(line.labels)})" if line.labels else "")
    if isinstance(error, asyncssh.PermissionDenied) or _says_too_many(error):
        tried = ", ".join(client.tried) or "nothing it accepts"
        gave_up = " (given up)" if client.gave_up else ""
        return AuthenticationFailed(
            f"{where} did not let us in{gave_up}. Tried: {tried}.",
            "Check the user name, the key (ssh-add -l) and the password, then connect again.",
        )
    if isinstance(error, asyncssh.ChannelOpenError):
        return ConnectionFailed(
            f"The host before it could not reach {where}: {error.reason}.", "Check ProxyJump, HostName and Port."
        )
    if isinstance(error, asyncssh.DisconnectError):
        if client.tried and client.gave_up:
            return AuthenticationFailed(f"{where} ended the login: {error.reason}.", "Connect again.")
        return ConnectionFailed(
            f"{where} ended the connection: {error.reason}{_proxy_words(line)}.",
            f"Try it by hand: ssh {hop.alias.host}",
        )
    if isinstance(error, socket.gaierror):
        return ConnectionFailed(
            f"No address is known for {hop.host}: {error.strerror}.",
            "Check the host's name, the network and the VPN.",
        )
    if isinstance(error, TimeoutError) and error.errno is None:
        return ConnectionFailed(
            f"{where} did not answer within {seconds:g} s.", "Check the network, the VPN and the host's port."
        )
    if isinstance(error, OSError):
        if _is(error, errno.ECONNREFUSED):
            return ConnectionFailed(
                f"{where} refused the connection: nothing listens there.", "Check the host and the port."
            )
        return ConnectionFailed(
            f"{where} could not be reached: {error.strerror or error}{_proxy_words(line)}.",
            "Check the network, the VPN and ProxyCommand." if line.proxy else "Check the network and the VPN.",
        )
    return ConfigError(f"{where} cannot be connected to: {error}", "Check its entry in ~/.ssh/config.")


def _says_too_many(error: Exception) -> bool:
    """sshd's word for the last failed try: code 2 and "Too many authentication failures"."""
    return isinstance(error, asyncssh.DisconnectError) and "authentication fail" in error.reason.lower()


def _is(error: OSError, number: int) -> bool:
    """Also where asyncio tried several addresses and joined what they said into one text."""
    return error.errno == number or (error.errno is None and f"[Errno {number}]" in str(error))


def _proxy_words(line: Line) -> str:
    """What a ProxyCommand that failed said of it."""
    said = line.proxy.said() if line.proxy else ""
    return f" (ProxyCommand said: {said})" if said else ""
