"""The tokens of clients, each with the accounts that it may use: a TOML file with mode 0600."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from hpcdash.config.document import MAX_FILE_BYTES, decode, parse_document, shown_path
from hpcdash.config.locate import located
from hpcdash.config.model import Table
from hpcdash.config.problems import ConfigProblems, did_you_mean
from hpcdash.config.request import text_list
from hpcdash.config.values import parse_line_text
from hpcdash.domain.request import ACCOUNT_NAME
from hpcdash.errors import ConfigError

# Output of `openssl rand -hex 32` or Python's secrets.token_urlsafe(32).
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{32,512}")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_NEXT_STEP = (
    'Each table is a token: [ci], token = "…" (from `openssl rand -hex 32`), accounts = ["alice"].'
)


class Client(Struct, frozen=True):
    """Owner of a token: `name` is its table in the file."""

    name: str
    accounts: tuple[str, ...]


class Tokens:
    """Tokens of a file, which is read again after a change, so that removed tokens expire."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._stamp: tuple[int, ...] = ()
        # Keyed by the token's digest, so that comparison time reveals nothing about the token.
        self._clients: Mapping[bytes, Client] = {}

    def find(self, token: str) -> Client | None:
        """Return the client with a token, None for an unknown token.

        Raises ConfigError if the file is unusable.
        """
        self.read()
        given = _digest(token)
        found = None
        for digest, client in self._clients.items():
            if hmac.compare_digest(digest, given):
                found = client
        return found

    def read(self) -> None:
        """Read the file if it has changed. Raises ConfigError, and then nobody is admitted."""
        path = shown_path(self._file)
        try:
            descriptor = os.open(self._file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            self._forget()
            step = f"{_NEXT_STEP} Then: chmod 600 {path}"
            raise ConfigError(
                f"cannot read the tokens: {error.strerror}", step, file=path
            ) from error
        try:
            status = os.fstat(descriptor)
            stamp = (
                status.st_dev,
                status.st_ino,
                status.st_mtime_ns,
                status.st_ctime_ns,
                status.st_size,
            )
            if stamp == self._stamp:
                return
            self._forget()
            if not stat.S_ISREG(status.st_mode):
                raise ConfigError("not a file", _NEXT_STEP, file=path)
            if status.st_uid != os.geteuid():
                raise ConfigError(
                    "the token file belongs to another user", f"Run: ls -l {path}", file=path
                )
            if status.st_mode & 0o077:
                raise ConfigError(
                    "other users can read the tokens", f"Run: chmod 600 {path}", file=path
                )
            content = os.read(descriptor, MAX_FILE_BYTES + 1)
        finally:
            os.close(descriptor)
        if len(content) > MAX_FILE_BYTES:
            raise ConfigError(f"larger than {MAX_FILE_BYTES >> 10} KiB", file=path)
        self._clients = parse_tokens(decode(content, path), path)
        self._stamp = stamp

    def _forget(self) -> None:
        self._clients = {}
        self._stamp = ()


def parse_tokens(text: str, path: str) -> Mapping[bytes, Client]:
    """Parse a file; return clients by the digest of their token.

    Raises ConfigProblems, which contain no token.
    """
    root = Table(parse_document(text, path), lambda key, path, known: did_you_mean(key, known))
    clients: dict[bytes, Client] = {}
    for name, values in root.values.items():
        if not _NAME.fullmatch(name):
            root.add_problem("a token name has at most 64 letters, digits, '.', '_' and '-'", name)
        if not isinstance(values, dict):
            # The value may be a token, which the message must not contain.
            root.add_problem("expected a table, [NAME]", name)
            continue
        table = root.table(name)
        fields = table.fields({"token": _token, "accounts": _accounts})
        if table.require(fields, "token", "accounts"):
            digest = _digest(fields["token"])
            if digest in clients:
                table.add_problem(f"same token as {clients[digest].name}", "token")
            clients[digest] = Client(name, fields["accounts"])
    if not clients and not root.problems:
        root.add_problem("the file has no tokens")
    if root.problems:
        raise ConfigProblems(path, located(text, root.problems), _NEXT_STEP)
    return clients


def _token(value: object) -> str:
    if not isinstance(value, str) or not _TOKEN.fullmatch(value):
        raise ValueError(
            "expected 32 to 512 letters, digits and ._~+/=-, for example from `openssl rand "
            "-hex 32`"
        )
    return value


def _accounts(value: object) -> tuple[str, ...]:
    accounts = text_list(value, parse_line_text)
    if not accounts:
        raise ValueError('expected at least one account, such as ["alice"]')
    for account in accounts:
        if not ACCOUNT_NAME.fullmatch(account):
            raise ValueError(f"{account!r} is not a login name")
    return tuple(dict.fromkeys(accounts))


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()
