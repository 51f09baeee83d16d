"""A hardware key (sk-ssh-ed25519) made in software, and an agent that holds it and waits for its
touch. For tests.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import struct
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

ALGORITHM = b"sk-ssh-ed25519@openssh.com"
_APPLICATION = b"ssh:"
_USER_PRESENT = 1
# draft-ietf-sshm-ssh-agent, message numbers.
_FAILURE, _REQUEST_IDENTITIES, _IDENTITIES, _SIGN_REQUEST, _SIGNATURE = 5, 11, 12, 13, 14


def _string(content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + content


class HardwareKey:
    """What the agent signs with it, it signs once `touched` is set; `signatures` counts them."""

    def __init__(self) -> None:
        self._key = Ed25519PrivateKey.generate()
        self.touched = asyncio.Event()
        self.signatures = 0
        self._server: asyncio.Server | None = None

    @property
    def _public(self) -> bytes:
        return self._key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)

    @property
    def blob(self) -> bytes:
        return _string(ALGORITHM) + _string(self._public) + _string(_APPLICATION)

    @property
    def public_line(self) -> str:
        return f"{ALGORITHM.decode()} {base64.b64encode(self.blob).decode()} yubi\n"

    def write(self, path: Path) -> None:
        """The file that ssh-keygen makes (PROTOCOL.key), which holds a handle and no secret, and
        the .pub beside it.
        """
        inner = (
            struct.pack(">II", 1, 1)
            + _string(ALGORITHM)
            + _string(self._public)
            + _string(_APPLICATION)
        )
        inner += bytes([_USER_PRESENT]) + _string(b"handle") + _string(b"") + _string(b"yubi")
        inner += bytes(range(1, 1 + -len(inner) % 8))
        content = (
            b"openssh-key-v1\0"
            + _string(b"none")
            + _string(b"none")
            + _string(b"")
            + struct.pack(">I", 1)
        )
        text = base64.encodebytes(content + _string(self.blob) + _string(inner)).decode()
        path.write_text(
            f"-----BEGIN OPENSSH PRIVATE KEY-----\n{text}-----END OPENSSH PRIVATE KEY-----\n"
        )
        path.chmod(0o600)
        path.with_name(path.name + ".pub").write_text(self.public_line)

    async def start_agent(self, socket: Path) -> None:
        self._server = await asyncio.start_unix_server(self._serve, socket)

    async def stop_agent(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                (size,) = struct.unpack(">I", await reader.readexactly(4))
                request = await reader.readexactly(size)
                answer = await self._answer(request)
                writer.write(_string(answer))
        except asyncio.IncompleteReadError:
            writer.close()

    async def _answer(self, request: bytes) -> bytes:
        if request[0] == _REQUEST_IDENTITIES:
            return (
                bytes([_IDENTITIES]) + struct.pack(">I", 1) + _string(self.blob) + _string(b"yubi")
            )
        if request[0] != _SIGN_REQUEST:
            return bytes([_FAILURE])
        await self.touched.wait()
        self.signatures += 1
        start = 1 + 4 + len(self.blob)
        (size,) = struct.unpack(">I", request[start : start + 4])
        signed = hashlib.sha256(request[start + 4 : start + 4 + size]).digest()
        # PROTOCOL.u2f: what the device signs, and what it adds to its signature.
        added = bytes([_USER_PRESENT]) + struct.pack(">I", self.signatures)
        signature = self._key.sign(hashlib.sha256(_APPLICATION).digest() + added + signed)
        return bytes([_SIGNATURE]) + _string(_string(ALGORITHM) + _string(signature) + added)
