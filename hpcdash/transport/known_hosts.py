"""Reads and extends OpenSSH's known_hosts files: which keys a host is known by, and where.

Opens no connection.
"""

from __future__ import annotations

import base64
import binascii
import fnmatch
import hashlib
import hmac
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec import Struct

from hpcdash.private_files import make_folder

DEFAULT_PORT = 22
_MARKERS = ("@cert-authority", "@revoked")


def fingerprint(blob: bytes) -> str:
    """A public key's fingerprint as `ssh-keygen -l` prints it: SHA256:…, unpadded base64."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def name_in_file(host: str, port: int = DEFAULT_PORT) -> str:
    """Return a host's name in known_hosts: lower case, [host]:port where the port is not 22."""
    return host.lower() if port == DEFAULT_PORT else f"[{host.lower()}]:{port}"


class KnownKey(Struct, frozen=True):
    """One line that speaks of a host: `marker` is '', '@cert-authority' or '@revoked'."""

    path: Path
    line: int
    marker: str
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
    """All that is known of one host; `exact` is false when only its name without the port is known.

    A revoked key is in `revoked` alone, whatever else is written of it.
    """

    host_keys: tuple[KnownKey, ...] = ()
    authorities: tuple[KnownKey, ...] = ()
    revoked: tuple[KnownKey, ...] = ()
    exact: bool = True


def known_keys(paths: Iterable[Path], host: str, port: int = DEFAULT_PORT) -> KnownKeys:
    """Look up a host's keys; like in ssh, a name with another port than 22 falls back to the name.

    Missing or unreadable files, and lines that are no entries, are skipped.
    """
    files = [(path, _lines(path)) for path in paths]
    found = _matching(files, name_in_file(host, port))
    if port != DEFAULT_PORT and not (found.host_keys or found.authorities):
        fallback = _matching(files, name_in_file(host))
        return KnownKeys(
            fallback.host_keys, fallback.authorities, found.revoked + fallback.revoked, exact=False
        )
    return found


def remember(path: Path, host: str, port: int, key_type: str, blob: bytes) -> None:
    """Append a host's key; creates the file with mode 0600 and its folder with 0700.

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


def _lines(path: Path) -> list[bytes]:
    try:
        return path.read_bytes().splitlines()
    except OSError:
        return []


def _matching(files: Sequence[tuple[Path, list[bytes]]], name: str) -> KnownKeys:
    by_marker: dict[str, list[KnownKey]] = {"": [], "@cert-authority": [], "@revoked": []}
    for path, lines in files:
        for number, line in enumerate(lines, start=1):
            fields = line.decode("utf-8", "replace").split()
            if not fields or fields[0].startswith("#"):
                continue
            marker = fields.pop(0) if fields[0] in _MARKERS else ""
            if len(fields) < 3 or not _names(fields[0], name):
                continue
            try:
                blob = base64.b64decode(fields[2], validate=True)
            except binascii.Error:
                continue
            by_marker[marker].append(KnownKey(path, number, marker, fields[1], blob))
    revoked = {key.blob for key in by_marker["@revoked"]}
    return KnownKeys(
        tuple(key for key in by_marker[""] if key.blob not in revoked),
        tuple(key for key in by_marker["@cert-authority"] if key.blob not in revoked),
        tuple(by_marker["@revoked"]),
    )


def _names(patterns: str, name: str) -> bool:
    """Whether a line's first field speaks of `name`: hashed, or patterns with * and ?, and ! to
    take a host out.
    """
    if patterns.startswith("|1|"):
        return _hashed_names(patterns, name)
    named = False
    for pattern in patterns.lower().split(","):
        # fnmatch takes […] for a set of letters; in known_hosts it is part of [host]:port.
        if fnmatch.fnmatchcase(name, pattern.removeprefix("!").replace("[", "[[]")):
            if pattern.startswith("!"):
                return False
            named = True
    return named


def _hashed_names(hashed: str, name: str) -> bool:
    """|1|salt|HMAC-SHA1(salt, name), as `ssh-keygen -H` writes it."""
    try:
        salt, digest = (base64.b64decode(part, validate=True) for part in hashed.split("|")[2:])
    except (ValueError, binascii.Error):
        return False
    return hmac.compare_digest(hmac.new(salt, name.encode(), hashlib.sha1).digest(), digest)
