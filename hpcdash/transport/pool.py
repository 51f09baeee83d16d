"""One transport per destination, so that clusters behind a host share its connection."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hpcdash.errors import ConfigError
from hpcdash.transport.base import Transport

# Builds a transport to a destination, with directories that go before its PATH; does not open it.
BuildTransport = Callable[[str, str], Transport]


class ConnectionPool:
    """Shared transports by kind (local, ssh, openssh, …), destination and path."""

    def __init__(self, builders: Mapping[str, BuildTransport]) -> None:
        self._builders = dict(builders)
        self._transports: dict[tuple[str, str, str], Transport] = {}

    def transport(self, kind: str, destination: str, path: str = "") -> Transport:
        """Return the transport, which is built on first use.

        Raises ConfigError for an unknown kind.
        """
        if kind not in self._builders:
            known = ", ".join(sorted(self._builders))
            raise ConfigError(
                f"{kind!r} is not a transport.", f"Use one of: {known}", key="transport"
            )
        place = (kind, destination, path)
        if place not in self._transports:
            self._transports[place] = self._builders[kind](destination, path)
        return self._transports[place]
