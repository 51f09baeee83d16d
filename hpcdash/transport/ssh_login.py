"""Opens the chain of ssh connections to a login node, hop by hop."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Mapping
from typing import Any, cast

import asyncssh

from hpcdash.domain.units import format_age
from hpcdash.errors import (
    AuthenticationFailed,
    ConfigError,
    ConnectionFailed,
    HostKeyRefused,
    UnreachableError,
)
from hpcdash.transport.base import Health, Prompter
from hpcdash.transport.host_keys import HostKeys, algorithms, public_keys
from hpcdash.transport.known_hosts import KnownKeys, known_keys
from hpcdash.transport.login_clock import LoginClock
from hpcdash.transport.proxy_command import start_proxy
from hpcdash.transport.ssh_client import HopClient
from hpcdash.transport.ssh_config import Hop, ReadConfig
from hpcdash.transport.ssh_identity import GSSAPI, Identities, read_identities
from hpcdash.transport.ssh_line import SshLine

LOGIN_SECONDS = 20.0
KEEPALIVE_SECONDS = 15.0
KEEPALIVE_MISSES = 3
_COMPRESSIONS = ("zlib@openssh.com", "zlib", "none")
# In ssh's order: ssh_config(5), PreferredAuthentications.
_AUTHENTICATIONS = (GSSAPI, "hostbased", "publickey", "keyboard-interactive", "password")


class _ReadOptions(asyncssh.SSHClientConnectionOptions):
    """Options that were read from files, under those that asyncssh.connect is given."""

    def __init__(self, options: Mapping[str, object]) -> None:
        self.kwargs = {}
        self.config = cast("Any", ReadConfig(options))


class Login:
    """Opens lines to one destination.

    A key a person accepted holds for its lifetime, also where no file takes it.
    """

    def __init__(self, hops: tuple[Hop, ...], prompter: Prompter, health: Health) -> None:
        self.hops = hops
        self.attended = False
        self._prompter = prompter
        self._health = health
        self._host_keys = HostKeys(prompter, health)

    async def open(self, lost: Callable[[str], None]) -> SshLine:
        """Connect hop by hop; `lost` is called when the last hop's connection ends.

        Raises UnreachableError.

        `attended` then says whether a person took part, or may have, at any hop of this login or
        one before: another login may need them again.
        """
        self._health.text = ""
        line = SshLine()
        try:
            for hop in self.hops:
                for text in hop.warnings:
                    self._health.text = f"{self._health.text}\n{hop.label}: {text}".strip()
                    self._prompter.show(hop.label, text)
                is_last = hop is self.hops[-1]
                connection = await self._open_hop(
                    hop, line, lost if is_last else lambda _reason: None
                )
                line.add(connection, hop.label)
        except BaseException:  # Also when cancelled: the caller may give up.
            line.abort()
            raise
        return line

    async def _open_hop(
        self, hop: Hop, line: SshLine, lost: Callable[[str], None]
    ) -> asyncssh.SSHClientConnection:
        clock = LoginClock(hop.login_seconds or LOGIN_SECONDS, self._health)
        while True:
            health = self._health
            health.state, health.detail, health.waiting_since = (
                "connecting",
                f"connecting to {hop.label}",
                None,
            )
            known = await asyncio.to_thread(
                known_keys,
                (*hop.user_known_hosts, *hop.global_known_hosts),
                hop.key_name,
                hop.key_port,
            )
            opened = [False]

            def report(reason: str, opened: list[bool] = opened) -> None:
                if opened[0]:
                    lost(reason)

            client = HopClient(hop, self._prompter, clock, self._health, report)
            identities = await read_identities(hop, client)
            try:
                connection = await clock.limit(
                    self._connect(hop, line, client, known, identities), client.silent
                )
            except asyncssh.HostKeyNotVerifiable as error:
                if client.shown_key is None:
                    raise HostKeyRefused(
                        f"The host certificate of {hop.label} does not hold: {error.reason}.",
                        "Ask the site which certificate authority its login nodes use.",
                    ) from error
                await self._host_keys.judge(hop, known, client.shown_key, clock)
            except (asyncssh.Error, OSError, ValueError) as error:
                raise explain_failure(error, hop, line, client, identities) from error
            else:
                opened[0] = True
                return connection
            finally:
                self.attended |= client.attended
                identities.close()

    async def _connect(
        self, hop: Hop, line: SshLine, client: HopClient, known: KnownKeys, identities: Identities
    ) -> asyncssh.SSHClientConnection:
        trusted = self._host_keys.trusted(hop, known)
        authorities = public_keys(known.authorities)
        sock = None
        if not line.connections and hop.proxy_command:
            line.proxy, sock = start_proxy(hop.proxy_command)
        return await asyncssh.connect(
            hop.alias.host,
            port=hop.alias.port if hop.alias.port is not None else (),
            username=hop.alias.user if hop.alias.user is not None else (),
            config=[str(path) for path in hop.config_paths] or None,
            # No options where asyncssh reads the files itself.
            options=None if hop.config_paths else _ReadOptions(hop.options),
            tunnel=line.connection if line.connections else None,
            sock=sock,
            proxy_command=None,
            client_factory=lambda: client,
            known_hosts=(trusted, authorities, []),
            server_host_key_algs=()
            if hop.has_host_key_algorithms
            else algorithms(trusted, bool(authorities)),
            # An empty list would stand for the default files.
            client_keys=identities.keys or None,
            client_certs=[],
            agent_path=None,
            # An unusable GSSAPI comes last, so that the host's offer of it is seen.
            preferred_auth=sorted(
                hop.authentications or _AUTHENTICATIONS,
                key=lambda method: method == GSSAPI and not identities.uses_gssapi,
            ),
            gss_auth=identities.uses_gssapi,
            compression_algs=_COMPRESSIONS if hop.compresses else ("none",),
            gss_kex=False,
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


_LONGEST_WORDS = 500


def explain_failure(
    error: Exception, hop: Hop, line: SshLine, client: HopClient, identities: Identities
) -> UnreachableError | ConfigError:
    """Return the error of a failed login to a hop, in plain words with a next step."""
    where = hop.label + (f" (by way of {', '.join(line.labels)})" if line.labels else "")
    seconds = client.clock.seconds
    if isinstance(error, asyncssh.PermissionDenied) or _is_too_many(error):
        tried = [*identities.names, *client.tried]
        steps = [*dict.fromkeys(identities.next_steps)]
        if identities.gssapi_problem and (not client.offered or GSSAPI in client.offered):
            tried.append(identities.gssapi_problem)
            steps.append(identities.gssapi_step)
        gave_up = " (given up)" if client.gave_up else ""
        if client.found_nobody:
            steps.append("Run it in a terminal, or let it log in with a key alone.")
        elif client.awaited_approval:
            steps.append(
                "Connect again when you can approve the login on your phone or another device."
            )
        return AuthenticationFailed(
            f"{where} did not let us in{gave_up}. Tried: "
            f"{', '.join(tried) or 'nothing it accepts'}.{_server_message(client)}",
            "\n".join(steps)
            or "Check the user name, the key (ssh-add -l) and the password, then connect again.",
        )
    if client.attended and isinstance(error, asyncssh.DisconnectError | OSError):
        took = format_age(client.clock.elapsed_seconds)
        if isinstance(error, TimeoutError) and error.errno is None:
            what = f"{where} had not let us in after {took}"
        else:
            reason = (
                error.reason
                if isinstance(error, asyncssh.DisconnectError)
                else error.strerror or str(error)
            )
            what = f"{where} ended the login after {took}: {reason}"
        return AuthenticationFailed(
            f"{what}.{_server_message(client)}",
            "Connect again when you can answer: a host waits for a password or an approval for two "
            "minutes as a rule.",
        )
    if isinstance(error, asyncssh.ChannelOpenError):
        return ConnectionFailed(
            f"The host before it could not reach {where}: {error.reason}.",
            "Check ProxyJump, HostName and Port.",
        )
    if isinstance(error, asyncssh.DisconnectError):
        return ConnectionFailed(
            f"{where} ended the connection: {error.reason}{_proxy_message(line)}.{_server_message(client)}",
            f"Try it by hand: {hop.alias.command_line}",
        )
    if isinstance(error, socket.gaierror):
        return ConnectionFailed(
            f"Cannot resolve {hop.host}: {error.strerror}.",
            "Check the host's name, the network and the VPN.",
        )
    if isinstance(error, TimeoutError) and error.errno is None:
        return ConnectionFailed(
            f"{where} did not answer within {seconds:g} s.",
            "Check the network, the VPN and the host's port.",
        )
    if isinstance(error, OSError):
        if _is(error, errno.ECONNREFUSED):
            return ConnectionFailed(
                f"{where} refused the connection: nothing listens there.",
                "Check the host and the port.",
            )
        return ConnectionFailed(
            f"{where} could not be reached: {error.strerror or error}{_proxy_message(line)}.",
            "Check the network, the VPN and ProxyCommand."
            if line.proxy
            else "Check the network and the VPN.",
        )
    return ConfigError(
        f"{where} cannot be connected to: {error}", "Check its entry in ~/.ssh/config."
    )


def _server_message(client: HopClient) -> str:
    """The last thing the host said, with a space before it."""
    text = " ".join(client.text.split())
    return f" It said: {text[:_LONGEST_WORDS]}" if text else ""


def _is_too_many(error: Exception) -> bool:
    """sshd's word for the last failed try: code 2 and "Too many authentication failures"."""
    return (
        isinstance(error, asyncssh.DisconnectError)
        and "authentication fail" in error.reason.lower()
    )


def _is(error: OSError, number: int) -> bool:
    """Also where asyncio tried several addresses and joined what they said into one text."""
    return error.errno == number or (error.errno is None and f"[Errno {number}]" in str(error))


def _proxy_message(line: SshLine) -> str:
    """Return the message of a failed ProxyCommand."""
    message = line.proxy.message() if line.proxy else ""
    return f" (ProxyCommand said: {message})" if message else ""
