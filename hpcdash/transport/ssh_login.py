"""Logs in to a login node, hop by hop."""

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
from hpcdash.transport.ssh_client import HopClient
from hpcdash.transport.ssh_config import Hop, ReadConfig
from hpcdash.transport.ssh_connection import SshConnection, start_proxy
from hpcdash.transport.ssh_identity import GSSAPI, Identities, read_identities

LOGIN_SECONDS = 20.0
KEEPALIVE_SECONDS = 15.0
KEEPALIVE_MISSES = 3
_COMPRESSIONS = ("zlib@openssh.com", "zlib", "none")
# In ssh's order: ssh_config(5), PreferredAuthentications.
_AUTHENTICATIONS = (GSSAPI, "hostbased", "publickey", "keyboard-interactive", "password")


class _ReadOptions(asyncssh.SSHClientConnectionOptions):
    """Options read from files, which the arguments of asyncssh.connect override."""

    def __init__(self, options: Mapping[str, object]) -> None:
        self.kwargs = {}
        self.config = cast("Any", ReadConfig(options))


class Login:
    """Opens connections to one destination."""

    def __init__(self, hops: tuple[Hop, ...], prompter: Prompter, health: Health) -> None:
        self.hops = hops
        self.attended = False
        self._prompter = prompter
        self._health = health
        self._host_keys = HostKeys(prompter)

    async def open(self, lost: Callable[[str], None]) -> SshConnection:
        """Connect hop by hop; `lost` is called when the last hop's connection ends.

        `attended` is true once a person took part, or may have, at any hop of any login: another
        login may need them again. Raises UnreachableError.
        """
        self._health.text = ""
        connection = SshConnection()
        try:
            for hop in self.hops:
                for text in hop.warnings:
                    self._health.text = f"{self._health.text}\n{hop.label}: {text}".strip()
                    self._prompter.show(hop.label, text)
                hop_lost = lost if hop is self.hops[-1] else lambda _reason: None
                connection.add(await self._open_hop(hop, connection, hop_lost), hop.label)
        except BaseException:  # Including CancelledError: the caller may give up.
            connection.abort()
            raise
        return connection

    async def _open_hop(
        self, hop: Hop, connection: SshConnection, lost: Callable[[str], None]
    ) -> asyncssh.SSHClientConnection:
        clock = LoginClock(hop.login_seconds or LOGIN_SECONDS, self._health)
        while True:
            self._health.set_state("connecting", f"connecting to {hop.label}")
            self._health.waiting_since = None
            known = await asyncio.to_thread(
                known_keys,
                (*hop.user_known_hosts, *hop.global_known_hosts),
                hop.key_name,
                hop.key_port,
            )
            client = HopClient(hop, self._prompter, clock, self._health, lost)
            identities = await read_identities(hop, client)
            try:
                opened = await clock.limit(
                    self._connect(hop, connection, client, known, identities), client.silent
                )
            except asyncssh.HostKeyNotVerifiable as error:
                if client.shown_key is None:
                    raise HostKeyRefused(
                        f"The host certificate of {hop.label} is not valid: {error.reason}.",
                        "Ask your administrators which certificate authority the login nodes use.",
                    ) from error
                await self._host_keys.verify(hop, known, client.shown_key, clock)
            except (asyncssh.Error, OSError, ValueError) as error:
                raise _login_failure(error, hop, connection, client, identities) from error
            else:
                client.is_logged_in = True
                return opened
            finally:
                self.attended |= client.attended
                identities.close()

    async def _connect(
        self,
        hop: Hop,
        connection: SshConnection,
        client: HopClient,
        known: KnownKeys,
        identities: Identities,
    ) -> asyncssh.SSHClientConnection:
        trusted = self._host_keys.trusted(hop, known)
        authorities = public_keys(known.authorities)
        sock = None
        if not connection.hops and hop.proxy_command:
            connection.proxy, sock = start_proxy(hop.proxy_command)
        return await asyncssh.connect(
            hop.alias.host,
            port=hop.alias.port if hop.alias.port is not None else (),
            username=hop.alias.user if hop.alias.user is not None else (),
            config=[str(path) for path in hop.config_paths] or None,
            # asyncssh reads the files itself if it has to complete the host's name.
            options=None if hop.config_paths else _ReadOptions(hop.options),
            tunnel=connection.last_hop if connection.hops else None,
            sock=sock,
            proxy_command=None,
            client_factory=lambda: client,
            known_hosts=(trusted, authorities, []),
            server_host_key_algs=()
            if hop.has_host_key_algorithms
            else algorithms(trusted, bool(authorities)),
            # An empty list would mean the default files.
            client_keys=identities.keys or None,
            client_certs=[],
            agent_path=None,
            # Unusable GSSAPI is tried last, so that the host's offer of it is seen.
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


_MAX_MESSAGE_CHARACTERS = 500


def _login_failure(
    error: Exception, hop: Hop, connection: SshConnection, client: HopClient, identities: Identities
) -> UnreachableError | ConfigError:
    """Return the error for a failed login to a hop, with its next step."""
    where = hop.label
    if connection.labels:
        where += f" (through {', '.join(connection.labels)})"
    text = " ".join(client.text.split())[:_MAX_MESSAGE_CHARACTERS]
    server_message = f" Its message: {text}" if text else ""
    is_refused = isinstance(error, asyncssh.PermissionDenied) or (
        # sshd's message after the last failed attempt: "Too many authentication failures".
        isinstance(error, asyncssh.DisconnectError)
        and "authentication fail" in error.reason.lower()
    )
    if is_refused:
        return _refused_login(where, server_message, client, identities)
    if client.attended and isinstance(error, asyncssh.DisconnectError | OSError):
        after = format_age(client.clock.elapsed_seconds)
        if _is_timeout(error):
            ending = f"did not accept the login within {after}"
        elif isinstance(error, asyncssh.DisconnectError):
            ending = f"aborted the login after {after}: {error.reason}"
        else:
            ending = f"aborted the login after {after}: {error.strerror or error}"
        return AuthenticationFailed(
            f"{where} {ending}.{server_message}",
            "Connect again when you can answer: a host usually waits two minutes for a password or "
            "an approval.",
        )
    if isinstance(error, asyncssh.ChannelOpenError):
        return ConnectionFailed(
            f"The previous host could not reach {where}: {error.reason}.",
            "Check ProxyJump, HostName and Port.",
        )
    return _network_failure(error, hop, where, server_message, connection, client.clock.seconds)


def _refused_login(
    where: str, server_message: str, client: HopClient, identities: Identities
) -> AuthenticationFailed:
    tried = [*identities.names, *client.tried]
    steps = [*dict.fromkeys(identities.next_steps)]
    if identities.gssapi_problem and (not client.offered or GSSAPI in client.offered):
        tried.append(identities.gssapi_problem)
        steps.append(identities.gssapi_step)
    if client.found_nobody:
        steps.append("Run it in a terminal, or log in with only a key.")
    elif client.awaited_approval:
        steps.append(
            "Connect again when you can approve the login on your phone or another device."
        )
    elif not steps:
        steps.append(
            "Check the user name, the key (ssh-add -l) and the password, then connect again."
        )
    gave_up = " (given up)" if client.gave_up else ""
    return AuthenticationFailed(
        f"{where} refused the login{gave_up}. Tried: "
        f"{', '.join(tried) or 'no accepted method'}.{server_message}",
        "\n".join(steps),
    )


def _network_failure(
    error: Exception,
    hop: Hop,
    where: str,
    server_message: str,
    connection: SshConnection,
    limit_seconds: float,
) -> ConnectionFailed | ConfigError:
    proxy_message = connection.proxy.message() if connection.proxy else ""
    if proxy_message:
        proxy_message = f" (ProxyCommand reported: {proxy_message})"
    if isinstance(error, asyncssh.DisconnectError):
        return ConnectionFailed(
            f"{where} closed the connection: {error.reason}{proxy_message}.{server_message}",
            f"Try it by hand: {hop.alias.command_line}",
        )
    if isinstance(error, socket.gaierror):
        return ConnectionFailed(
            f"Cannot resolve {hop.host}: {error.strerror}.",
            "Check the host's name, the network and the VPN.",
        )
    if _is_timeout(error):
        return ConnectionFailed(
            f"{where} did not respond within {limit_seconds:g} s.",
            "Check the network, the VPN and the host's port.",
        )
    if isinstance(error, OSError):
        # asyncio joins the errors of several addresses into one text without an errno.
        is_refused = error.errno == errno.ECONNREFUSED or (
            error.errno is None and f"[Errno {errno.ECONNREFUSED}]" in str(error)
        )
        if is_refused:
            return ConnectionFailed(
                f"{where} refused the connection: no server is listening.",
                "Check the host and the port.",
            )
        checks = "the network and the VPN"
        if connection.proxy:
            checks = "the network, the VPN and ProxyCommand"
        return ConnectionFailed(
            f"{where} could not be reached: {error.strerror or error}{proxy_message}.",
            f"Check {checks}.",
        )
    return ConfigError(f"Cannot connect to {where}: {error}", "Check its entry in ~/.ssh/config.")


def _is_timeout(error: Exception) -> bool:
    """Whether our own limit was reached: the network's timeouts have an errno."""
    return isinstance(error, TimeoutError) and error.errno is None
