"""Opens the chain of ssh connections to a login node, hop by hop. Knows nothing of what is run there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import asyncssh

from hpcdash.errors import HostKeyRefused
from hpcdash.transport.base import Health, Prompter, PromptField
from hpcdash.transport.host_keys import HostKeys, algorithms, public_keys
from hpcdash.transport.known_hosts import KnownKeys, known_keys
from hpcdash.transport.login_clock import LoginClock
from hpcdash.transport.login_failures import in_words
from hpcdash.transport.proxy_command import start_proxy
from hpcdash.transport.ssh_client import HopClient
from hpcdash.transport.ssh_config import Hop
from hpcdash.transport.ssh_identity import Identities, read_identities
from hpcdash.transport.ssh_line import Line

LOGIN_SECONDS = 20.0
KEEPALIVE_SECONDS = 15.0
KEEPALIVE_MISSES = 3


class Login:
    """Opens lines to one destination. A key a person accepted holds for its lifetime, also where no file takes it."""

    def __init__(self, hops: tuple[Hop, ...], prompter: Prompter, health: Health) -> None:
        self.hops = hops
        self._prompter = prompter
        self._health = health
        self._host_keys = HostKeys(prompter, health)

    async def open(self, lost: Callable[[str], None]) -> Line:
        """Connect hop by hop; `lost` is called when the last hop's connection ends. Raises UnreachableError."""
        line = Line()
        try:
            for hop in self.hops:
                is_last = hop is self.hops[-1]
                client, connection = await self._open_hop(hop, line, lost if is_last else lambda _reason: None)
                line.add(connection, hop.label)
                if client.banner:
                    self._health.extra["banner"] = client.banner
        except BaseException:  # Cancelled as well: whoever waits may give up.
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
                await self._host_keys.judge(hop, known, client.shown_key, clock)
            except (asyncssh.Error, OSError, ValueError) as error:
                raise in_words(error, hop, line, client, clock.seconds) from error
            else:
                opened[0] = True
                return client, connection

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
