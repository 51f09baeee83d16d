"""Reads OpenSSH's known_hosts files, and adds keys to them."""

from __future__ import annotations

import base64
import binascii
import fnmatch
import hashlib
import hmac
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from hpcdash.private_files import make_folder

DEFAULT_PORT = 22
_MARKERS = ("@cert-authority", "@revoked")


def fingerprint(blob: bytes) -> str:
    """Return a public key's fingerprint as in `ssh-keygen -l`: SHA256:…, unpadded base64."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def name_in_file(host: str, port: int = DEFAULT_PORT) -> str:
    """Return a host's name in known_hosts: lower case, [host]:port if the port is not 22."""
    return host.lower() if port == DEFAULT_PORT else f"[{host.lower()}]:{port}"


class KnownKey(Struct, frozen=True):
    """A line about a host."""

    path: Path
    line: int
    key_type: str
    blob: bytes

    @property
    def where(self) -> str:
        return f"{self.path}:{self.line}"

    @property
    def public_line(self) -> str:
        """The key as one line of a .pub file."""
        return f"{self.key_type} {base64.b64encode(self.blob).decode()}"


class KnownKeys(Struct, frozen=True):
    """All entries of one host; `exact` is false if only its name without the port is known.

    A revoked key is only in `revoked`.
    """

    host_keys: tuple[KnownKey, ...] = ()
    authorities: tuple[KnownKey, ...] = ()
    revoked: tuple[KnownKey, ...] = ()
    exact: bool = True


def known_keys(paths: Iterable[Path], host: str, port: int = DEFAULT_PORT) -> KnownKeys:
    """Return a host's keys; as in ssh, the lookup falls back to the name without its port.

    Missing or unreadable files, and lines that are not entries, are skipped.
    """
    files: list[tuple[Path, list[bytes]]] = []
    for path in paths:
        with suppress(OSError):
            files.append((path, path.read_bytes().splitlines()))
    found = _matching(files, name_in_file(host, port))
    if port == DEFAULT_PORT or found.host_keys or found.authorities:
        return found
    fallback = _matching(files, name_in_file(host))
    return KnownKeys(
        host_keys=fallback.host_keys,
        authorities=fallback.authorities,
        revoked=found.revoked + fallback.revoked,
        exact=False,
    )


def remember(path: Path, *, host: str, port: int, key_type: str, blob: bytes) -> None:
    """Append a host's key to a file, which is created with mode 0600 and its folder with 0700.

    Raises OSError.
    """
    make_folder(path.parent)
    entry = f"{name_in_file(host, port)} {key_type} {base64.b64encode(blob).decode()}\n".encode()
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(descriptor, "rb+", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
            entry = b"\n" + entry
        file.write(entry)


def _matching(files: Sequence[tuple[Path, list[bytes]]], name: str) -> KnownKeys:
    by_marker: dict[str, list[KnownKey]] = {"": [], "@cert-authority": [], "@revoked": []}
    for path, lines in files:
        for number, line in enumerate(lines, start=1):
            fields = line.decode("utf-8", "replace").split()
            if not fields or fields[0].startswith("#"):
                continue
            marker = fields.pop(0) if fields[0] in _MARKERS else ""
            if len(fields) < 3 or not _matches(fields[0], name):
                continue
            try:
                blob = base64.b64decode(fields[2], validate=True)
            except binascii.Error:
                continue
            by_marker[marker].append(KnownKey(path, number, fields[1], blob))
    revoked = {key.blob for key in by_marker["@revoked"]}
    return KnownKeys(
        host_keys=tuple(key for key in by_marker[""] if key.blob not in revoked),
        authorities=tuple(key for key in by_marker["@cert-authority"] if key.blob not in revoked),
        revoked=tuple(by_marker["@revoked"]),
    )


def _matches(patterns: str, name: str) -> bool:
    """Whether a line's first field matches `name`: a hash, or patterns with *, ? and !."""
    if patterns.startswith("|1|"):
        # |1|salt|HMAC-SHA1(salt, name), as `ssh-keygen -H` writes it.
        try:
            salt, digest = (base64.b64decode(x, validate=True) for x in patterns.split("|")[2:])
        except ValueError:
            return False
        return hmac.compare_digest(hmac.digest(salt, name.encode(), "sha1"), digest)
    is_match = False
    for pattern in patterns.lower().split(","):
        # fnmatch takes […] for a set of letters; in known_hosts it is part of [host]:port.
        if fnmatch.fnmatchcase(name, pattern.removeprefix("!").replace("[", "[[]")):
            if pattern.startswith("!"):
                return False
            is_match = True
    return is_match
