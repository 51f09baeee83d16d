"""Opens the chain of ssh connections to a login node, hop by hop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import asyncssh

from hpcdash.errors import HostKeyRefused
from hpcdash.transport.base import Health, Prompter
from hpcdash.transport.host_keys import HostKeys, algorithms, public_keys
from hpcdash.transport.known_hosts import KnownKeys, known_keys
from hpcdash.transport.login_clock import LoginClock
from hpcdash.transport.login_failures import explain_failure
from hpcdash.transport.proxy_command import start_proxy
from hpcdash.transport.ssh_client import HopClient
from hpcdash.transport.ssh_config import Hop
from hpcdash.transport.ssh_identity import GSSAPI, Identities, read_identities
from hpcdash.transport.ssh_line import Line

LOGIN_SECONDS = 20.0
KEEPALIVE_SECONDS = 15.0
KEEPALIVE_MISSES = 3
# In ssh's order: ssh_config(5), PreferredAuthentications.
_AUTHENTICATIONS = (GSSAPI, "hostbased", "publickey", "keyboard-interactive", "password")


class Login:
    """Opens lines to one destination. A key a person accepted holds for its lifetime, also where no file takes it."""

    def __init__(self, hops: tuple[Hop, ...], prompter: Prompter, health: Health) -> None:
        self.hops = hops
        self.attended = False
        self._prompter = prompter
        self._health = health
        self._host_keys = HostKeys(prompter, health)

    async def open(self, lost: Callable[[str], None]) -> Line:
        """Connect hop by hop; `lost` is called when the last hop's connection ends. Raises UnreachableError.

        `attended` then says whether a person took part, or may have, at any hop: another login would ask them again.
        After a failure it says so of any login before, too.
        """
        was_attended, self.attended = self.attended, False
        self._health.words = ""
        line = Line()
        try:
            for hop in self.hops:
                is_last = hop is self.hops[-1]
                connection = await self._open_hop(hop, line, lost if is_last else lambda _reason: None)
                line.add(connection, hop.label)
        except BaseException:  # Cancelled as well: whoever waits may give up.
            self.attended |= was_attended
            line.abort()
            raise
        return line

    async def _open_hop(self, hop: Hop, line: Line, lost: Callable[[str], None]) -> asyncssh.SSHClientConnection:
        clock = LoginClock(hop.login_seconds or LOGIN_SECONDS, self._health)
        while True:
            health = self._health
            health.state, health.detail, health.waiting_since = "connecting", f"connecting to {hop.label}", None
            known = await asyncio.to_thread(
                known_keys, (*hop.user_known_hosts, *hop.global_known_hosts), hop.key_name, hop.key_port
            )
            opened = [False]

            def report(reason: str, opened: list[bool] = opened) -> None:
                if opened[0]:
                    lost(reason)

            client = HopClient(hop, self._prompter, clock, self._health, report)
            identities = await read_identities(hop, client)
            try:
                connection = await clock.limit(self._connect(hop, line, client, known, identities), client.silent)
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
        self, hop: Hop, line: Line, client: HopClient, known: KnownKeys, identities: Identities
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
            config=[str(path) for path in hop.config_paths],
            tunnel=line.connection if line.connections else None,
            sock=sock,
            proxy_command=None,
            client_factory=lambda: client,
            known_hosts=(trusted, authorities, []),
            server_host_key_algs=() if hop.has_host_key_algorithms else algorithms(trusted, bool(authorities)),
            # An empty list would stand for the default files.
            client_keys=identities.keys or None,
            client_certs=[],
            agent_path=None,
            # Where GSSAPI cannot be used it comes last, so that whether the host offers it is seen.
            preferred_auth=sorted(
                hop.authentications or _AUTHENTICATIONS,
                key=lambda method: method == GSSAPI and not identities.uses_gssapi,
            ),
            gss_auth=identities.uses_gssapi,
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
