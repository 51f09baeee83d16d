"""The key files a person logs in with; a locked one asks for its passphrase once a host wants it. Connects nowhere."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import asyncssh

# Asks for the passphrase of a key file; `wrong` says that the last one did not fit. None: the person gives up.
AskPassphrase = Callable[[Path, bool], Awaitable["str | None"]]

_TRIES = 3
# An agent holds no key of this name: with IdentitiesOnly and no file, none of its keys is offered.
_NO_IDENTITY = b"-"


@dataclass(frozen=True, slots=True)
class Identities:
    """`keys` to try in order; `agent_keys` limits the agent to these public keys (None: all it holds)."""

    keys: tuple[asyncssh.SSHKeyPair, ...]
    agent_keys: tuple[bytes, ...] | None
    names: tuple[str, ...]


class LockedKey(asyncssh.SSHKeyPair):
    """A key file under a passphrase whose public half is known; unlocked when a host accepts that half."""

    _key_type = "local"

    def __init__(self, path: Path, private: bytes, public: asyncssh.SSHKey, ask: AskPassphrase) -> None:
        super().__init__(
            public.algorithm,
            public.algorithm,
            public.sig_algorithms,
            public.sig_algorithms,
            public.public_data,
            None,
            filename=str(path).encode(),
        )
        self._path = path
        self._private = private
        self._ask = ask
        self._unlocked: asyncssh.SSHKey | None = None

    async def sign_async(self, data: bytes) -> bytes:
        """Sign with the private half. Raises ValueError, which passes on to the next key, when it stays locked."""
        if self._unlocked is None:
            self._unlocked = await self._unlock()
        return self._unlocked.sign(data, self.sig_algorithm)

    async def _unlock(self) -> asyncssh.SSHKey:
        for attempt in range(_TRIES):
            passphrase = await self._ask(self._path, attempt > 0)
            if passphrase is None:
                break
            try:
                # bcrypt takes a tenth of a second on purpose.
                return await asyncio.to_thread(asyncssh.import_private_key, self._private, passphrase)
            except (asyncssh.KeyImportError, asyncssh.KeyEncryptionError) as error:
                # Any other word means that no passphrase would help: a cipher or a module is missing.
                if "passphrase" not in str(error).lower():
                    break
        raise ValueError(f"{self._path} stayed locked")


def read_identities(paths: Sequence[Path], identities_only: bool, ask: AskPassphrase) -> Identities:
    """Read key files; those that are no keys, or locked without their public half to be found, are passed over.

    `names` says of a file that is there why it is no use.
    """
    keys: list[asyncssh.SSHKeyPair] = []
    public_blobs: list[bytes] = []
    names: list[str] = []
    for path in paths:
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            continue
        except OSError as error:
            names.append(f"{path.name} (cannot be read: {error.strerror})")
            continue
        public = _public_half(path, content)
        if public is not None:
            public_blobs.append(public.public_data)
        if b"PRIVATE KEY" not in content:
            continue
        name = path.name
        try:
            keys.extend(asyncssh.load_keypairs(path))
        except (asyncssh.KeyImportError, asyncssh.KeyEncryptionError):
            if public is not None:
                keys.append(LockedKey(path, content, public, ask))
            else:
                name = f"{name} (not used: locked or damaged, and {name}.pub is not beside it)"
        names.append(name)
    agent_keys = tuple(public_blobs) or (_NO_IDENTITY,)
    return Identities(tuple(keys), agent_keys if identities_only else None, tuple(names))


def _public_half(path: Path, content: bytes) -> asyncssh.SSHKey | None:
    """From the file itself, as the head of OpenSSH's own format is never locked, or from the .pub beside it."""
    for source in (content, _read(path.with_name(path.name + ".pub"))):
        try:
            return asyncssh.import_public_key(source)
        except asyncssh.KeyImportError:
            continue
    return None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
