"""Whether the key that a host shows is let in: known, accepted by a person and remembered, or
refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import asyncssh
from asyncssh.public_key import get_default_certificate_algs, get_default_public_key_algs

from hpcdash.errors import HostKeyChanged, HostKeyRefused
from hpcdash.transport.base import Health, HostKeyQuestion, Prompter
from hpcdash.transport.known_hosts import KnownKey, KnownKeys, fingerprint, remember
from hpcdash.transport.login_clock import LoginClock
from hpcdash.transport.ssh_config import Hop


class HostKeys:
    """A key a person accepted holds for its lifetime, also where no file takes it."""

    def __init__(self, prompter: Prompter, health: Health) -> None:
        self._prompter = prompter
        self._health = health
        self._accepted: dict[tuple[str, int], list[asyncssh.SSHKey]] = {}

    def trusted(self, hop: Hop, known: KnownKeys) -> list[asyncssh.SSHKey]:
        """The keys that `hop` may show: known ones that this program can check, and accepted
        ones.
        """
        return public_keys(known.host_keys) + self._accepted.get((hop.key_name, hop.key_port), [])

    async def judge(
        self, hop: Hop, known: KnownKeys, key: asyncssh.SSHKey, clock: LoginClock
    ) -> None:
        """Refuse a changed or revoked key, have an unknown one accepted and remember it."""
        blob = key.public_data
        algorithm = key.get_algorithm()
        shown = fingerprint(blob)
        if revoked := [entry for entry in known.revoked if entry.blob == blob]:
            raise HostKeyRefused(
                f"{hop.label} shows the key {shown}, which is marked as revoked in "
                f"{revoked[0].where}.",
                "Do not log in there; ask the site.",
            )
        if known.exact and known.host_keys:
            raise _changed(hop, known.host_keys, algorithm, shown)
        if hop.strict == "yes":
            raise HostKeyRefused(
                f"{hop.label} is not in known_hosts, and StrictHostKeyChecking is yes. Its key is "
                f"{algorithm} {shown}.",
                f"Compare that with what the site publishes, then add it: {hop.alias.command_line}",
            )
        target = hop.user_known_hosts[0] if hop.user_known_hosts else None
        if hop.strict not in ("no", "accept-new"):
            question = HostKeyQuestion(hop.label, algorithm, shown, str(target or ""))
            with clock.prompt():
                accepted = await self._prompter.accept_host_key(question)
            if not accepted:
                raise HostKeyRefused(
                    f"The key of {hop.label} was not accepted: {algorithm} {shown}.",
                    "Compare it with what the site publishes, then connect again.",
                )
        self._accepted.setdefault((hop.key_name, hop.key_port), []).append(key)
        if target is not None:
            try:
                await asyncio.to_thread(
                    remember, target, hop.key_name, hop.key_port, algorithm, blob
                )
            except OSError as error:
                self._health.extra["known_hosts"] = (
                    f"{target} could not be written: {error.strerror}"
                )


def public_keys(known: Sequence[KnownKey]) -> list[asyncssh.SSHKey]:
    """Known keys to check others by, without those of a type that this program cannot check."""
    return [*filter(None, map(_public_key, known))]


def _public_key(known: KnownKey) -> asyncssh.SSHKey | None:
    """None for a type of key this program cannot check."""
    try:
        return asyncssh.import_public_key(known.public_line)
    except asyncssh.KeyImportError:
        return None


def algorithms(trusted: Sequence[asyncssh.SSHKey], with_certificates: bool) -> list[str]:
    """Return the known types of key first, so that a host sends the known key; the others follow.

    Without the others a host whose key changed its type would fail without a message about its key.
    Certificates are requested only where an authority is known for the host.
    """
    first = [algorithm for key in trusted for algorithm in key.sig_algorithms]
    certificates = get_default_certificate_algs() if with_certificates else []
    return [
        name.decode()
        for name in dict.fromkeys([*certificates, *first, *get_default_public_key_algs()])
    ]


def _changed(hop: Hop, entries: tuple[KnownKey, ...], algorithm: str, shown: str) -> HostKeyChanged:
    old = "; ".join(
        f"{entry.key_type} {fingerprint(entry.blob)} ({entry.where})" for entry in entries
    )
    file = entries[0].path
    option = "" if file == Path("~/.ssh/known_hosts").expanduser() else f" -f {file}"
    name = hop.name_in_known_hosts
    name = f"'{name}'" if name.startswith("[") else name
    return HostKeyChanged(
        f"The host key of {hop.label} has changed: somebody may be listening in. "
        f"It shows {algorithm} {shown}; known is {old}.",
        f"Ask the site whether it changed its keys. If it did: ssh-keygen -R {name}{option}",
    )
