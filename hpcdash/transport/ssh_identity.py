"""A person's keys and certificates, from files and from an agent."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import time
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Protocol

import asyncssh
from asyncssh.gss import GSSClient, GSSError, gss_available  # type: ignore[attr-defined]
from msgspec import Struct, field

from hpcdash.domain.text import counted
from hpcdash.transport.ssh_config import Hop

GSSAPI = "gssapi-with-mic"
_PASSPHRASE_TRIES = 3
_AGENT_SECONDS = 5.0
_MAX_AGENT_NAMES = 4
_HARDWARE = b"sk-"
_RENEW = "Get a new certificate the way your site issues them, then connect again."


class KeyOwner(Protocol):
    """The person who owns the keys."""

    async def passphrase(self, path: Path, is_wrong: bool) -> str | None:
        """Prompt for the passphrase of a key file; None once the person gives up.

        `is_wrong`: the previous one was wrong.
        """
        ...

    def signing(self, needs_touch: bool) -> None:
        """Note that a key is about to sign; a hardware key `needs_touch`."""
        ...


class Identities(Struct):
    """Keys to try in order; `names` describes each key and certificate, or why it is unusable.

    `next_steps` are for unusable keys. `uses_gssapi`: there is a Kerberos ticket for a login. If
    the configuration requires one and there is none, `gssapi_problem` is the reason and
    `gssapi_step` the next step.
    """

    keys: list[asyncssh.SSHKeyPair] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    next_steps: list[str] = field(default_factory=list)
    agent: asyncssh.SSHAgentClient | None = None
    uses_gssapi: bool = False
    gssapi_problem: str = ""
    gssapi_step: str = ""

    def close(self) -> None:
        """Disconnect from the agent."""
        if self.agent is not None:
            self.agent.close()


class _PrivateKey:
    """A key file's private half, which is unlocked once a host accepts the public half."""

    def __init__(self, path: Path, content: bytes, key: asyncssh.SSHKey | None) -> None:
        self._path = path
        self._content = content
        self._key = key

    async def unlocked(self, owner: KeyOwner) -> asyncssh.SSHKey:
        """Raises ValueError, with which asyncssh tries the next key, if it stays locked."""
        if self._key is None:
            self._key = await self._unlock(owner)
        return self._key

    async def _unlock(self, owner: KeyOwner) -> asyncssh.SSHKey:
        for attempt in range(_PASSPHRASE_TRIES):
            passphrase = await owner.passphrase(self._path, attempt > 0)
            if passphrase is None:
                break
            try:
                # bcrypt takes a tenth of a second by design.
                return await asyncio.to_thread(
                    asyncssh.import_private_key, self._content, passphrase
                )
            except (asyncssh.KeyImportError, asyncssh.KeyEncryptionError) as error:
                # Otherwise a cipher or a module is missing, so another passphrase would not help.
                if "passphrase" not in str(error).lower():
                    break
        raise ValueError(f"{self._path} stayed locked")


class _FileKey(asyncssh.SSHKeyPair):
    """A key of a file, with or without a certificate."""

    _key_type = "local"

    def __init__(
        self,
        private: _PrivateKey,
        public: asyncssh.SSHKey,
        owner: KeyOwner,
        certificate: asyncssh.SSHCertificate | None = None,
    ) -> None:
        algorithms = public.sig_algorithms
        super().__init__(
            public.algorithm,
            public.algorithm,
            algorithms,
            algorithms,
            public_data=public.public_data,
            comment=None,
            cert=certificate,
        )
        self._private = private
        self._owner = owner

    async def sign_async(self, data: bytes) -> bytes:
        self._owner.signing(False)
        key = await self._private.unlocked(self._owner)
        return key.sign(data, self.sig_algorithm)


class _AgentKey(asyncssh.SSHAgentKeyPair):
    """A key that an agent holds, with or without a certificate."""

    def __init__(
        self,
        agent: asyncssh.SSHAgentClient,
        key: asyncssh.SSHKeyPair,
        owner: KeyOwner,
        certificate: asyncssh.SSHCertificate | None = None,
    ) -> None:
        comment = key.get_comment_bytes() or b""
        super().__init__(agent, key.key_algorithm, key.key_public_data, comment)
        self._owner = owner
        if certificate is not None:
            self.set_certificate(certificate)

    async def sign_async(self, data: bytes) -> bytes:
        self._owner.signing(self.key_algorithm.startswith(_HARDWARE))
        return await super().sign_async(data)


class _File(Struct, frozen=True):
    """Contents of a key file; `key` is its private half, None if absent or locked."""

    path: Path
    content: bytes
    public: asyncssh.SSHKey | None
    key: asyncssh.SSHKey | None

    @property
    def is_private(self) -> bool:
        return b"PRIVATE KEY" in self.content


async def read_identities(hop: Hop, owner: KeyOwner) -> Identities:
    """Read the identities for a login to a hop: the agent's keys first, then those of files.

    Each key follows its certificates. Files without a key, and unusable keys, are named and
    skipped.
    """
    found = Identities()
    files, certificates = await asyncio.to_thread(_read_files, hop, found)
    named = {file.public.public_data for file in files if file.public is not None}
    requested = named | {certificate.public_data for certificate in certificates.values()}
    agent_keys = await _fetch_agent_keys(hop.agent_path, found)
    if hop.identities_only:
        agent_keys = [key for key in agent_keys if key.key_public_data in requested]
    # OpenSSH tries the configured keys first.
    agent_keys.sort(key=lambda key: key.key_public_data not in requested)
    in_agent = {key.key_public_data for key in agent_keys}
    by_key: dict[bytes, list[asyncssh.SSHCertificate]] = {}
    for path, certificate in certificates.items():
        title = f"certificate {path.name}"
        public_data = certificate.key.public_data
        by_key.setdefault(public_data, []).append(certificate)
        if public_data in in_agent or public_data in named:
            _name_certificate(title, certificate, hop.user, found)
        else:
            found.names.append(f"{title} (its private key is not here)")
    for key in agent_keys:
        assert found.agent is not None
        for key_certificate in (*by_key.get(key.key_public_data, ()), None):
            found.keys.append(_AgentKey(found.agent, key, owner, key_certificate))
        # An agent may also list a certificate as a key of its own.
        with contextlib.suppress(asyncssh.KeyImportError):
            line = key.key_algorithm + b" " + base64.b64encode(key.key_public_data)
            own_certificate = asyncssh.import_certificate(line)
            title = f"certificate {_comment(key)} from the agent"
            _name_certificate(title, own_certificate, hop.user, found)
    _name_agent_keys(agent_keys, found)
    for file in files:
        _add_file(file, in_agent, by_key, owner, found)
    if hop.uses_gssapi:
        await asyncio.to_thread(_find_ticket, hop.host, found)
    return found


def _find_ticket(host: str, found: Identities) -> None:
    if not gss_available:
        found.gssapi_problem = "GSSAPI (not tried: the Python package gssapi is not installed)"
        found.gssapi_step = (
            "For Kerberos: pip install 'hpcdash[gssapi]', or set transport = "
            '"openssh" for this cluster.'
        )
        return
    try:
        GSSClient(host, None, False)
    except GSSError as error:
        # "Major (458752): …, Minor (2529639053): No Kerberos credentials available"
        reason = " ".join(str(error).split()).rpartition("): ")[2]
        found.gssapi_problem = f"GSSAPI ({reason})"
        found.gssapi_step = "Get a Kerberos ticket (kinit), then connect again."
    else:
        found.uses_gssapi = True
        found.names.append("GSSAPI")


def _add_file(
    file: _File,
    in_agent: set[bytes],
    by_key: dict[bytes, list[asyncssh.SSHCertificate]],
    owner: KeyOwner,
    found: Identities,
) -> None:
    name = f"key {file.path.name}"
    public = file.public
    if public is not None and public.public_data in in_agent:
        return
    if public is not None and public.algorithm.startswith(_HARDWARE):
        found.names.append(f"{name} (a hardware key, usable only through an agent)")
        found.next_steps.append(
            f'Add it to an agent (ssh-add {file.path}), or set transport = "openssh" for this '
            "cluster."
        )
    elif not file.is_private:
        if public is not None:
            found.names.append(f"{name} (its private key is neither beside it nor in an agent)")
    elif public is None:
        found.names.append(
            f"{name} (not used: locked or damaged, and {file.path.name}.pub is not beside it)"
        )
    else:
        private = _PrivateKey(file.path, file.content, file.key)
        certificates = (*by_key.get(public.public_data, ()), None)
        found.keys += [
            _FileKey(private, public, owner, certificate) for certificate in certificates
        ]
        found.names.append(name)


def _read_files(
    hop: Hop, found: Identities
) -> tuple[list[_File], dict[Path, asyncssh.SSHCertificate]]:
    """Return the key files, and the certificates by their files."""
    files: list[_File] = []
    certificates: dict[Path, asyncssh.SSHCertificate] = {}
    for path in hop.certificate_files:
        try:
            certificates[path] = asyncssh.import_certificate(path.read_bytes())
        except (OSError, asyncssh.KeyImportError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it contains no certificate"
            found.names.append(f"certificate {path.name} (cannot be read: {reason})")
            found.next_steps.append(
                f"{path} is set as CertificateFile: recreate it, or fix ~/.ssh/config."
            )
    for path in hop.identity_files:
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            continue
        except OSError as error:
            found.names.append(f"key {path.name} (cannot be read: {error.strerror})")
            continue
        key = None
        if b"PRIVATE KEY" in content:
            # It may be locked, or damaged.
            with contextlib.suppress(asyncssh.KeyImportError, asyncssh.KeyEncryptionError):
                key = asyncssh.import_private_key(content)
        files.append(_File(path, content, key or _read_public_half(path, content), key))
        certificate_file = path.with_name(path.name.removesuffix(".pub") + "-cert.pub")
        with contextlib.suppress(OSError, asyncssh.KeyImportError):
            content = certificate_file.read_bytes()
            certificates[certificate_file] = asyncssh.import_certificate(content)
    return files, certificates


def _read_public_half(path: Path, content: bytes) -> asyncssh.SSHKey | None:
    """Read the public key of a file, or of the .pub file beside it.

    The head of OpenSSH's own format is never encrypted.
    """
    with contextlib.suppress(asyncssh.KeyImportError):
        return asyncssh.import_public_key(content)
    with contextlib.suppress(OSError, asyncssh.KeyImportError):
        return asyncssh.import_public_key(path.with_name(path.name + ".pub").read_bytes())
    return None


def _name_certificate(
    title: str, certificate: asyncssh.SSHCertificate, user: str, found: Identities
) -> None:
    """Name a certificate with its defects.

    It is offered even if it looks invalid, as the host's clock counts and not this machine's.
    """
    now = time.time()
    # Private names of asyncssh, in seconds since 1970; 2**64 - 1 is for ever.
    valid_after: int = certificate._valid_after  # type: ignore[attr-defined]
    valid_before: int = certificate._valid_before  # type: ignore[attr-defined]
    principals: Sequence[str] = certificate.principals  # type: ignore[attr-defined]
    if valid_before <= now:
        found.names.append(f"{title} (expired on {_local_time(valid_before)})")
        found.next_steps.append(_RENEW)
    elif valid_after > now:
        found.names.append(f"{title} (not valid before {_local_time(valid_after)})")
        found.next_steps.append("Compare this machine's clock with the host's.")
    elif principals and user not in principals:
        found.names.append(f"{title} (issued to {', '.join(principals)}, not to {user})")
    else:
        found.names.append(title)


def _local_time(epoch_seconds: int) -> str:
    local = datetime.fromtimestamp(min(epoch_seconds, 2**33)).astimezone()
    return local.strftime("%Y-%m-%d %H:%M %Z")


async def _fetch_agent_keys(path: str, found: Identities) -> list[asyncssh.SSHKeyPair]:
    """Return the keys from the agent behind a socket; [] if `path` is '' or it does not answer."""
    if not path:
        return []
    found.agent = asyncssh.SSHAgentClient(path)
    try:
        async with asyncio.timeout(_AGENT_SECONDS):
            return list(await found.agent.get_keys())
    except TimeoutError:
        found.names.append(f"agent {path} (no answer within {_AGENT_SECONDS:g} s)")
    except ValueError as error:
        # "[Errno 2] No such file or directory"
        reason = str(error).partition("] ")[2] or str(error) or "it closed the connection"
        found.names.append(f"agent {path} ({reason})")
    return []


def _comment(key: asyncssh.SSHKeyPair) -> str:
    return key.get_comment(errors="replace") or "unnamed"


def _name_agent_keys(keys: Iterable[asyncssh.SSHKeyPair], found: Identities) -> None:
    names = [
        f"key {_comment(key)} from the agent"
        for key in keys
        if not key.key_algorithm.endswith(b"-cert-v01@openssh.com")
    ]
    if len(names) > _MAX_AGENT_NAMES:
        more = counted(len(names) - _MAX_AGENT_NAMES + 1, "more key")
        names = [*names[: _MAX_AGENT_NAMES - 1], f"{more} from the agent"]
    found.names += names
