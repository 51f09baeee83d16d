"""Keeps one transport for each place, so that clusters behind one host share its connection.

Builds none itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hpcdash.errors import ConfigError
from hpcdash.transport.base import Transport

# Builds a transport to a destination, with directories to put before its PATH, without opening it.
BuildTransport = Callable[[str, str], Transport]


class ConnectionPool:
    """Transports by kind (local, ssh, openssh, …), destination and path; asked for twice, the same
    one is given.
    """

    def __init__(self, builders: Mapping[str, BuildTransport]) -> None:
        self._builders = dict(builders)
        self._transports: dict[tuple[str, str, str], Transport] = {}

    def transport(self, kind: str, destination: str, path: str = "") -> Transport:
        """The transport to that place, built when first asked for.

        Raises ConfigError for a kind unknown here.
        """
        if kind not in self._builders:
            known = ", ".join(sorted(self._builders))
            raise ConfigError(
                f"{kind!r} is not a transport.", f"Known are: {known}", key="transport"
            )
        place = (kind, destination, path)
        if place not in self._transports:
            self._transports[place] = self._builders[kind](destination, path)
        return self._transports[place]
