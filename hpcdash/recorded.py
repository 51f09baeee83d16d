"""Reads a recorded case: commands once run on a real cluster, and what they left.

A case is a folder with `case.toml` and the bytes it names:

    backend = "slurm"                     # whose commands these are
    about = "one sentence"
    user = "alice"                        # who asked
    clock = 2025-03-04T09:30:00Z          # when; time stands still in a recording
    extends = "../everyday"               # a case whose answers it has too; default none

    [[command]]
    argv = ["squeue", "-h", "-u", "alice", "-O", { file = "../words/squeue-fields" }]
    exit = 0                              # default 0
    stdout = "squeue-mine.out"            # default: nothing was written
    stderr = "squeue-mine.err"
    seconds = 9.02                        # how long it took; default 0
    truncated = false                     # whether the output was cut at the cap

Below `files/` a case may have files of the cluster, such as logs and scripts, under the paths they
had there.

`argv` holds the words from the program on: an `env` before it, with its settings, takes no part in
the comparison. A word may stand in a file, so that long ones do not hide the short. The random
token of a poll is written as `RECORDED_TOKEN`, in argv and in stdout. The same argv may come
several times: the answers are given in that order, the last one for good.
"""

from __future__ import annotations

import re
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from msgspec import Struct

from hpcdash.backends.tokens import RECORDED_TOKEN, TOKEN_PATTERN
from hpcdash.errors import ConfigError, without_env

CASE_FILE = "case.toml"
_TOKEN = re.compile(TOKEN_PATTERN)
_COMMAND_KEYS = frozenset({"argv", "exit", "stdout", "stderr", "seconds", "truncated"})


class RecordedAnswer(Struct, frozen=True):
    """Recorded output of one command; its files are read on demand."""

    argv: tuple[str, ...]
    status: int
    stdout_file: Path | None
    stderr_file: Path | None
    seconds: float
    truncated: bool


class Case(Struct, frozen=True):
    """A recorded case; `answers` maps a normalised argv to what it gave, time after time."""

    directory: Path
    backend: str
    about: str
    user: str
    clock_epoch_seconds: float
    answers: dict[tuple[str, ...], tuple[RecordedAnswer, ...]]


def normalised_argv(argv: tuple[str, ...]) -> tuple[str, ...]:
    """Return the form of a command in a case: from the program on, with RECORDED_TOKEN for the
    poll's token."""
    return tuple(_TOKEN.sub(RECORDED_TOKEN, word) for word in without_env(argv))


def find_token(argv: tuple[str, ...]) -> str | None:
    """The poll's token in a command, if it has one."""
    return next((found.group() for word in argv if (found := _TOKEN.search(word))), None)


def find_case(named: Path) -> Path:
    """The folder of a case: as named, or the shipped case of that name, such as `everyday` or
    `pbs/everyday`.
    """
    if named.exists() or not 1 <= len(named.parts) <= 2 or named.is_absolute():
        return named
    backend = named.parts[0] if len(named.parts) == 2 else "*"
    # Of several versions the newest.
    found = sorted(_shipped_folder().glob(f"{backend}/*/{named.name}/{CASE_FILE}"), reverse=True)
    return found[0].parent if found else named


def shipped_cases() -> dict[str, str]:
    """Return descriptions of the shipped cases by their names in `find_case`, such as
    `pbs/everyday`.
    """
    cases: dict[str, str] = {}
    # Of several versions the newest counts.
    for file in sorted(_shipped_folder().glob(f"*/*/*/{CASE_FILE}")):
        cases[f"{file.parts[-4]}/{file.parts[-2]}"] = str(
            tomllib.loads(file.read_text("utf-8")).get("about", "")
        )
    return dict(sorted(cases.items(), key=lambda case: (not case[0].endswith("/training"), case)))


def _shipped_folder() -> Path:
    package = Path(__file__).resolve().parent
    shipped = package / "fixtures"
    return shipped if shipped.is_dir() else package.parent / "fixtures"


def load_case(directory: Path) -> Case:
    """The case of a folder; raises ConfigError, with file and key, where it is none."""
    file = directory / CASE_FILE
    try:
        written = tomllib.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            "no such file", f"A recorded case is a folder with a {CASE_FILE}.", file=str(file)
        ) from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(str(error), "", file=str(file)) from error
    answers: dict[tuple[str, ...], tuple[RecordedAnswer, ...]] = {}
    if "extends" in written:
        answers |= load_case(directory / _required(file, written, "extends", str)).answers
    commands = written.get("command", [])
    if not isinstance(commands, list):
        raise ConfigError("is not a list of [[command]]", file=str(file), key="command")
    for index, command in enumerate(commands, start=1):
        answer = _answer(file, f"command {index}", command)
        answers[answer.argv] = (*answers.get(answer.argv, ()), answer)
    clock = _required(file, written, "clock", datetime)
    return Case(
        directory=directory,
        backend=_required(file, written, "backend", str),
        about=str(written.get("about", "")),
        user=_required(file, written, "user", str),
        clock_epoch_seconds=(clock if clock.tzinfo else clock.replace(tzinfo=UTC)).timestamp(),
        answers=answers,
    )


def _required(file: Path, written: dict[str, Any], key: str, kind: type) -> Any:
    value = written.get(key)
    if not isinstance(value, kind):
        problem = "is missing" if value is None else f"is not a {kind.__name__}: {value!r}"
        raise ConfigError(problem, file=str(file), key=key)
    return value


def _answer(file: Path, key: str, command: Any) -> RecordedAnswer:
    if not isinstance(command, dict):
        raise ConfigError("is not a table", file=str(file), key=key)
    unknown = sorted(command.keys() - _COMMAND_KEYS)
    if unknown:
        raise ConfigError("unknown key", file=str(file), key=f"{key}: {unknown[0]}")
    text = command.get("argv")
    if not isinstance(text, list) or not text:
        raise ConfigError("is not a list of strings", file=str(file), key=f"{key}: argv")
    try:
        return RecordedAnswer(
            argv=normalised_argv(tuple(_word(file, key, word) for word in text)),
            status=int(command.get("exit", 0)),
            stdout_file=_named_file(file, key, command.get("stdout")),
            stderr_file=_named_file(file, key, command.get("stderr")),
            seconds=float(command.get("seconds", 0.0)),
            truncated=bool(command.get("truncated", False)),
        )
    except (TypeError, ValueError) as error:
        raise ConfigError(str(error), file=str(file), key=key) from error


def _word(file: Path, key: str, word: Any) -> str:
    if isinstance(word, str):
        return word
    if isinstance(word, dict) and isinstance(word.get("file"), str):
        named = _named_file(file, key, word["file"])
        assert named is not None
        return named.read_bytes().decode("utf-8", "surrogateescape")
    raise ConfigError(
        f"neither a string nor {{ file = … }}: {word!r}", file=str(file), key=f"{key}: argv"
    )


def _named_file(file: Path, key: str, name: Any) -> Path | None:
    if name is None:
        return None
    path = file.parent / str(name)
    if not path.is_file():
        raise ConfigError(f"refers to a missing file: {name}", file=str(file), key=key)
    return path
