"""`[user@]host[:port]` as people give it to ssh."""

from __future__ import annotations

import re
from pathlib import Path

from msgspec import Struct

# A leading '-' would be read as an option by the ssh program; shell characters have no place in
# either part.
USER_NAME = re.compile(r"[\w.](?:[\w.@+%=\\-]*[\w.@+%=-])?", re.ASCII)
# A Host of ~/.ssh/config in quotes may hold blanks.
_HOST = re.compile(r"\w[\w.+-]*(?: [\w.+-]+)*", re.ASCII)
_IPV6 = re.compile(r"[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(?:%[\w.-]+)?", re.ASCII)
MAX_PORT = 65535


class SshDestination(Struct, frozen=True):
    """Login node: `host` is a name, an address or a Host of ~/.ssh/config; user and port are None
    where that file has them.
    """

    host: str
    user: str | None = None
    port: int | None = None

    def __str__(self) -> str:
        user = f"{self.user}@" if self.user else ""
        if self.port is None:
            return user + self.host
        return user + (f"[{self.host}]" if ":" in self.host else self.host) + f":{self.port}"


def parse_ssh_destination(text: str) -> SshDestination:
    """Parse an ssh destination.

    It is one of `host`, `user@host`, `host:port`, `user@host:port`, `[::1]:port`, `::1`, or one of
    them as `ssh://…/`. Raises ValueError with a message.
    """
    if text.startswith("ssh://"):
        text = text.removeprefix("ssh://").removesuffix("/")
    if text.startswith("-"):
        raise ValueError("a destination cannot start with '-'")
    user, separator, place = text.rpartition("@")
    if separator and not USER_NAME.fullmatch(user):
        raise ValueError("the part before '@' is not a user name")
    host, port = _split_port(place)
    if not (_HOST.fullmatch(host) or (_IPV6.fullmatch(host) and host.count(":") > 1)):
        raise ValueError("no host name; expected [user@]host[:port]")
    return SshDestination(host, user or None, port)


def _split_port(place: str) -> tuple[str, int | None]:
    if place.startswith("["):
        host, bracket, rest = place[1:].partition("]")
        if not bracket or ":" not in host or (rest and not rest.startswith(":")):
            raise ValueError("brackets are for an IPv6 address, as in [::1]:22")
        return host, _parse_port(rest[1:]) if rest else None
    if place.count(":") == 1:
        host, _, port = place.partition(":")
        return host, _parse_port(port)
    return place, None


def _parse_port(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", text) or not 1 <= int(text) <= MAX_PORT:
        raise ValueError(f"the port must be a number from 1 to {MAX_PORT}")
    return int(text)


class ClusterChoice(Struct, frozen=True):
    """Cluster and connection that a person chooses; None and False: not given.

    `program` names the program in prompts, as in `hpcdash jobs`.
    """

    cluster: str | None = None
    ssh: str | None = None
    local: bool = False
    url: str | None = None
    backend: str | None = None
    config: Path | None = None
    read_only: bool = False
    no_broker: bool = False
    program: str = ""
