"""Servers on loopback that keep what a hook or a mail brings, and a certificate for them.

Asserts nothing.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ipaddress
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"


@dataclass
class Request:
    """`headers` by lower-case name."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class HookReceiver:
    """`answers`: the whole answers to the next requests, OK after them; None: nothing, and the line
    stays open.
    """

    port: int = 0
    requests: list[Request] = field(default_factory=list)
    answers: list[bytes | None] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
            lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            method, path, _ = lines[0].split(" ")
            fields = (line.partition(": ") for line in lines[1:] if line)
            headers = {name.lower(): value for name, _, value in fields}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            self.requests.append(Request(method, path, headers, body))
            answer = self.answers.pop(0) if self.answers else OK
            if answer is None:
                await reader.read()
            else:
                writer.write(answer)
                await writer.drain()
        writer.close()


def answer(status: str, body: str = "", *headers: str) -> bytes:
    """`answer("429 Too Many Requests", "", "Retry-After: 7")`."""
    lines = [
        f"HTTP/1.1 {status}",
        f"Content-Length: {len(body.encode())}",
        "Connection: close",
        *headers,
    ]
    return "\r\n".join([*lines, "", body]).encode()


@contextlib.asynccontextmanager
async def hook_receiver(tls: ssl.SSLContext | None = None) -> AsyncIterator[HookReceiver]:
    receiver = HookReceiver()
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0, ssl=tls)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()


@dataclass
class Mail:
    """One that was taken; `over_tls` and `login` (user, password) as it was at the end."""

    sender: str
    recipients: list[str]
    message: EmailMessage
    over_tls: bool
    login: tuple[str, str] | None


@dataclass
class MailReceiver:
    """`refuses`: address to the whole reply.

    `greetings`: the first words to the next connections; 220 without any.
    """

    port: int = 0
    tls: ssl.SSLContext | None = None
    taken: list[Mail] = field(default_factory=list)
    connections: int = 0
    refuses: dict[str, str] = field(default_factory=dict)
    greetings: list[str] = field(default_factory=list)
    login_reply: str = "235 2.7.0 welcome"
    is_silent: bool = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
            if self.is_silent:
                await reader.read()
            else:
                await self._talk(reader, writer)
        writer.close()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def say(*lines: str) -> None:
            writer.write("".join(f"{line}\r\n" for line in lines).encode())
            await writer.drain()

        greeting = self.greetings.pop(0) if self.greetings else "220 loopback"
        await say(greeting)
        over_tls, login, sender = writer.get_extra_info("ssl_object") is not None, None, ""
        recipients: list[str] = []
        while line := (await reader.readline()).decode():
            verb, _, rest = line.rstrip("\r\n").partition(" ")
            match verb.upper():
                case "EHLO":
                    offers = ["250-STARTTLS"] if self.tls and not over_tls else []
                    await say("250-loopback", *offers, "250 AUTH PLAIN")
                case "STARTTLS":
                    assert self.tls is not None
                    await say("220 go ahead")
                    await writer.start_tls(self.tls)
                    over_tls = True
                case "AUTH":
                    _, user, password = base64.b64decode(rest.split()[1]).decode().split("\0")
                    login = (user, password)
                    await say(self.login_reply)
                case "MAIL":
                    sender, recipients = _address(rest), []
                    await say("250 ok")
                case "RCPT":
                    reply = self.refuses.get(_address(rest), "250 ok")
                    if reply.startswith("250"):
                        recipients.append(_address(rest))
                    await say(reply)
                case "DATA":
                    await say("354 go on")
                    raw = (await reader.readuntil(b"\r\n.\r\n"))[:-3]
                    message = message_from_bytes(raw.replace(b"\r\n..", b"\r\n."), policy=default)
                    assert isinstance(message, EmailMessage)
                    self.taken.append(Mail(sender, recipients, message, over_tls, login))
                    await say("250 taken")
                case "QUIT":
                    await say("221 bye")
                    return
                case _:
                    await say("250 ok")


def _address(words: str) -> str:
    return words[words.index("<") + 1 : words.index(">")]


@contextlib.asynccontextmanager
async def mail_receiver(
    tls: ssl.SSLContext | None = None, *, from_first_byte: bool = False
) -> AsyncIterator[MailReceiver]:
    """`tls` is offered with STARTTLS, or spoken at once."""
    receiver = MailReceiver(tls=tls)
    server = await asyncio.start_server(
        receiver.serve, "127.0.0.1", 0, ssl=tls if from_first_byte else None
    )
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()


def server_context(folder: Path) -> tuple[ssl.SSLContext, str]:
    """(the server's context, the file a client is to trust), for 127.0.0.1 and localhost."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "loopback")])
    now = datetime.now(UTC)
    hosts = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    trusted, secret = folder / "loopback.pem", folder / "loopback.key"
    trusted.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    secret.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(trusted, secret)
    return context, str(trusted)
