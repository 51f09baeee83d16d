"""An SMTP server on loopback that keeps what it is sent, and refuses what it is told to. Asserts nothing."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default


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
    """`refuses`: address to the whole reply. `greetings`: the first words to the next connections; 220 without any."""

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
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0, ssl=tls if from_first_byte else None)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()
