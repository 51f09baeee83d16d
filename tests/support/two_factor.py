"""An ssh server in this process that asks for a password, a code and an approval, runs commands and forwards. For
tests."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import asyncssh


class _Questions(asyncssh.SSHServer):
    def __init__(self, owner: TwoFactorServer) -> None:
        self._owner = owner
        self._asked_code = False
        self._pushed = False

    def begin_auth(self, username: str) -> bool:
        return True

    def password_auth_supported(self) -> bool:
        return False

    def public_key_auth_supported(self) -> bool:
        return False

    def kbdint_auth_supported(self) -> bool:
        return True

    def get_kbdint_challenge(
        self, username: str, lang: str, submethods: str
    ) -> tuple[str, str, str, Sequence[tuple[str, bool]]]:
        self._asked_code = False
        self._pushed = False
        return f"Welcome to {self._owner.name}", "Two factors", "", [("Password: ", False)]

    async def validate_kbdint_response(
        self, username: str, responses: Sequence[str]
    ) -> bool | tuple[str, str, str, Sequence[tuple[str, bool]]]:
        if self._pushed:
            await self._owner.approved.wait()
            return True
        self._owner.responses.append(list(responses))
        if not self._asked_code:
            if responses[0] != self._owner.password:
                return False
            self._asked_code = True
            return "", "", "", [("Code: ", True)]
        if responses[0] != self._owner.code or self._owner.push_words is None:
            return responses[0] == self._owner.code
        self._pushed = True
        return "", self._owner.push_words, "", []

    def connection_requested(self, dest_host: str, dest_port: int, orig_host: str, orig_port: int) -> bool:
        return True


async def _run(process: asyncssh.SSHServerProcess[bytes]) -> None:
    child = await asyncio.create_subprocess_exec(
        "/bin/sh",
        "-c",
        process.command or "",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    await process.redirect(stdin=child.stdin, stdout=child.stdout, stderr=child.stderr)
    process.exit(await child.wait())


class TwoFactorServer:
    """`password` is asked unseen, then `code` with echo; `responses` keeps what was typed.

    With `push_words` a round without a question comes then, and an answer to it once `approved` is set.
    """

    def __init__(self, name: str, host_key: Path, password: str = "secret", code: str = "123456") -> None:
        self.name = name
        self.host_key = host_key
        self.password = password
        self.code = code
        self.responses: list[list[str]] = []
        self.push_words: str | None = None
        self.approved = asyncio.Event()
        self.port = 0
        self._acceptor: asyncssh.SSHAcceptor | None = None

    async def start(self) -> None:
        self._acceptor = await asyncssh.listen(
            "127.0.0.1",
            self.port,
            server_factory=lambda: _Questions(self),
            server_host_keys=[str(self.host_key)],
            process_factory=_run,
            encoding=None,
        )
        self.port = self._acceptor.get_port()

    async def stop(self) -> None:
        if self._acceptor is not None:
            self._acceptor.close()
            await self._acceptor.wait_closed()
