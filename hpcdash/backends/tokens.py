"""The separators of a poll's rows and fields, which no job's name can forge."""

from __future__ import annotations

import secrets
import string

_ALPHABET = string.ascii_letters + string.digits
TOKEN_START = "\x1e"
TOKEN_RANDOM_LETTERS = 10
# What a recording writes where a poll's token stood.
TOKEN_PATTERN = TOKEN_START + f"[0-9A-Za-z]{{{TOKEN_RANDOM_LETTERS}}}"
RECORDED_TOKEN = TOKEN_START + "T" * TOKEN_RANDOM_LETTERS


def fresh_token() -> str:
    """A separator no job name can forge: a control byte and 10 random letters (62¹⁰ of them), new
    for each poll.
    """
    return TOKEN_START + "".join(secrets.choice(_ALPHABET) for _ in range(TOKEN_RANDOM_LETTERS))
