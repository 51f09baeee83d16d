"""The file of tokens: what is taken, what is refused, and that no complaint repeats a token."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpcdash.errors import ConfigError
from hpcdash.web.api.tokens import Client, Tokens

SECRET = "s3cret" + "0" * 40
OTHER = "another" + "1" * 40


def written(folder: Path, text: str, mode: int = 0o600) -> Path:
    file = folder / "api-tokens.toml"
    file.write_text(text)
    file.chmod(mode)
    return file


def table(name: str, token: str, *accounts: str) -> str:
    return f"[{name}]\ntoken = {token!r}\naccounts = {list(accounts)!r}\n"


def test_a_token_is_known_until_it_is_taken_out(tmp_path: Path) -> None:
    file = written(
        tmp_path, table("ci", SECRET, "alice", "bob", "alice") + table("night", OTHER, "carol")
    )
    tokens = Tokens(file)
    assert tokens.find(SECRET) == Client("ci", ("alice", "bob"))
    assert tokens.find(OTHER) == Client("night", ("carol",))
    for unknown in ("", SECRET[:-1], f"{SECRET}0", SECRET.upper(), "\udcff" * 40, "x" * 100_000):
        assert tokens.find(unknown) is None
    written(tmp_path, table("night", OTHER, "carol"))
    assert tokens.find(SECRET) is None
    file.unlink()
    with pytest.raises(ConfigError):
        tokens.find(OTHER)


@pytest.mark.parametrize(
    ("text", "mode", "words"),
    [
        (table("ci", SECRET, "alice"), 0o640, "other users can read the tokens"),
        (table("ci", SECRET, "alice"), 0o604, "other users can read the tokens"),
        ("", 0o600, "has no token"),
        (f"[ci]\ntoken = '{SECRET}'\n", 0o600, "accounts = … is missing"),
        (table("ci", SECRET), 0o600, "at least one account"),
        (table("ci", SECRET, "al ice"), 0o600, "not a login name"),
        (table("ci", "short", "alice"), 0o600, "32 to 512"),
        (table("ci", f"{SECRET} \n", "alice"), 0o600, "32 to 512"),
        (table("'a b'", SECRET, "alice"), 0o600, "a token name"),
        (
            table("a", SECRET, "alice") + table("b", SECRET, "bob"),
            0o600,
            "same token as a",
        ),
        (f"[ci]\ntoken = '{SECRET}'\naccount = ['alice']\n", 0o600, "did you mean"),
        (f"ci = '{SECRET}'\n", 0o600, "expected a table"),
        (f"[ci]\ntoken = {SECRET}\n", 0o600, "not TOML"),
    ],
)
def test_a_file_that_is_not_to_be_used_lets_nobody_in(
    tmp_path: Path, text: str, mode: int, words: str
) -> None:
    tokens = Tokens(written(tmp_path, text, mode))
    for _ in range(2):
        with pytest.raises(ConfigError) as refused:
            tokens.find(SECRET)
        assert words in str(refused.value)
        assert SECRET[:6] not in str(refused.value)


def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    for path in (tmp_path / "pipe", tmp_path, tmp_path / "missing"):
        with pytest.raises(ConfigError):
            Tokens(path).read()
