"""Verifies host keys: known, accepted by a person and remembered, or refused."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import asyncssh
from asyncssh.public_key import get_default_certificate_algs, get_default_public_key_algs

from hpcdash.errors import HostKeyChanged, HostKeyRefused
from hpcdash.transport.base import HostKeyQuestion, Prompter
from hpcdash.transport.known_hosts import KnownKey, KnownKeys, fingerprint, remember
from hpcdash.transport.login_clock import LoginClock
from hpcdash.transport.ssh_config import Hop


class HostKeys:
    """Host keys that are trusted.

    A key that a person accepts stays trusted for the object's lifetime, even if known_hosts cannot
    be written.
    """

    def __init__(self, prompter: Prompter) -> None:
        self._prompter = prompter
        self._accepted: dict[tuple[str, int], list[asyncssh.SSHKey]] = {}

    def trusted(self, hop: Hop, known: KnownKeys) -> list[asyncssh.SSHKey]:
        """Return the keys that `hop` may show: known keys of supported types, and accepted keys."""
        return public_keys(known.host_keys) + self._accepted.get((hop.key_name, hop.key_port), [])

    async def verify(
        self, hop: Hop, known: KnownKeys, key: asyncssh.SSHKey, clock: LoginClock
    ) -> None:
        """Refuse a changed or revoked key; have an unknown key accepted, and remember it.

        Raises HostKeyChanged or HostKeyRefused.
        """
        blob = key.public_data
        algorithm = key.get_algorithm()
        shown = fingerprint(blob)
        for entry in known.revoked:
            if entry.blob == blob:
                raise HostKeyRefused(
                    f"{hop.label} shows the key {shown}, which {entry.where} marks as revoked.",
                    "Do not log in there; contact the site.",
                )
        if known.exact and known.host_keys:
            raise _changed(hop, known.host_keys, algorithm, shown)
        if hop.strict == "yes":
            raise HostKeyRefused(
                f"{hop.label} is not in known_hosts, and StrictHostKeyChecking is yes. Its key is "
                f"{algorithm} {shown}.",
                "Compare the key with the one that the site publishes, then add it: "
                f"{hop.alias.command_line}",
            )
        target = hop.user_known_hosts[0] if hop.user_known_hosts else None
        if hop.strict not in ("no", "accept-new"):
            question = HostKeyQuestion(
                hop=hop.label,
                algorithm=algorithm,
                fingerprint=shown,
                known_hosts_path=str(target or ""),
            )
            with clock.prompt():
                is_accepted = await self._prompter.accept_host_key(question)
            if not is_accepted:
                raise HostKeyRefused(
                    f"The key of {hop.label} was not accepted: {algorithm} {shown}.",
                    "Compare it with the key that the site publishes, then connect again.",
                )
        self._accepted.setdefault((hop.key_name, hop.key_port), []).append(key)
        if target is not None:
            try:
                await asyncio.to_thread(
                    remember,
                    target,
                    host=hop.key_name,
                    port=hop.key_port,
                    key_type=algorithm,
                    blob=blob,
                )
            except OSError as error:
                self._prompter.show(
                    hop.label, f"hpcdash could not store its key in {target}: {error.strerror}"
                )


def public_keys(known: Sequence[KnownKey]) -> list[asyncssh.SSHKey]:
    """Return the known keys of the types that this program can verify."""
    keys = []
    for entry in known:
        with suppress(asyncssh.KeyImportError):
            keys.append(asyncssh.import_public_key(entry.public_line))
    return keys


def algorithms(trusted: Sequence[asyncssh.SSHKey], with_certificates: bool) -> list[str]:
    """Return the key types to request from a host, the known ones first so that it sends that key.

    Without the others, a host whose key has a new type would fail without a message about its key.
    Certificates are requested only from a host with a known authority.
    """
    names = list(get_default_certificate_algs()) if with_certificates else []
    for key in trusted:
        names += key.sig_algorithms
    names += get_default_public_key_algs()
    return [name.decode() for name in dict.fromkeys(names)]


def _changed(hop: Hop, entries: tuple[KnownKey, ...], algorithm: str, shown: str) -> HostKeyChanged:
    known = "; ".join(
        f"{entry.key_type} {fingerprint(entry.blob)} ({entry.where})" for entry in entries
    )
    file = entries[0].path
    option = "" if file == Path("~/.ssh/known_hosts").expanduser() else f" -f {file}"
    name = hop.name_in_known_hosts
    if name.startswith("["):
        name = f"'{name}'"
    return HostKeyChanged(
        f"The host key of {hop.label} has changed: someone may be intercepting the connection. "
        f"It shows {algorithm} {shown}; the known key is {known}.",
        f"Ask the site whether it changed its keys. If it did: ssh-keygen -R {name}{option}",
    )
