"""Finds, reads and checks the configuration file."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Collection
from pathlib import Path

import platformdirs

from hpcdash.config.check import check_document
from hpcdash.config.locate import MOST_KEY_PARTS, key_lines, line_of, overlong_key_line
from hpcdash.config.problems import ConfigProblems, KeyPath, Problem, dotted, printable
from hpcdash.config.settings import Settings
from hpcdash.errors import ConfigError, UsageError

ENVIRONMENT_VARIABLE = "HPCDASH_CONFIG"
MAX_FILE_BYTES = 256 * 1024
_POSITION = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
# tomllib's words for what a person would call a repetition.
_REPEATED = re.compile(r"Cannot (?:overwrite a value|declare .* twice|mutate immutable namespace .*)", re.DOTALL)


def config_path(explicit: Path | None = None) -> tuple[Path, bool]:
    """The file to read and whether it was asked for by name, so must be there.

    That is `explicit`, else $HPCDASH_CONFIG, else config.toml in the user's configuration folder (XDG_CONFIG_HOME).
    """
    if explicit is not None:
        return explicit, True
    named = path_variable(ENVIRONMENT_VARIABLE)
    if named is not None:
        return named, True
    return platformdirs.user_config_path("hpcdash") / "config.toml", False


def path_variable(name: str) -> Path | None:
    """The path that an environment variable names; None where it is not set. Raises UsageError where it is empty."""
    named = os.environ.get(name)
    if named is None:
        return None
    if not named.strip():
        raise UsageError(f"${name} is empty", f"Give it a path, or unset {name}.")
    return Path(named)


def load_settings(path: Path | None = None, *, action_names: Collection[str] | None = None) -> Settings:
    """Read the configuration: `path`, else where config_path() says; defaults when the usual file is not there.

    `action_names`, where given, are the only keys [keys] may have. Raises ConfigError: with file, line and key for
    every problem of what the file says (ConfigProblems), with the file alone when it cannot be read.
    """
    file, must_exist = config_path(path)
    raw = read_bytes(file)
    if raw is None:
        if must_exist:
            raise ConfigError(
                "there is no such file",
                f"Give --config or ${ENVIRONMENT_VARIABLE} a file that exists, or leave them out.",
                file=shown_path(file),
            )
        return Settings()
    return settings_from_text(decode(raw, shown_path(file)), file, action_names=action_names)


def settings_from_text(text: str, file: Path, *, action_names: Collection[str] | None = None) -> Settings:
    """Settings of a TOML text; `file` is where it came from. Raises ConfigProblems."""
    named = shown_path(file)
    document = parse_document(text, named)
    settings, problems = check_document(document, file, action_names)
    if problems:
        raise ConfigProblems(named, _in_order(text, problems))
    return settings


def _in_order(text: str, problems: list[tuple[KeyPath, str]]) -> list[Problem]:
    lines = key_lines(text)
    placed = [Problem(line_of(lines, path), dotted(path), message) for path, message in problems]
    return sorted(placed, key=lambda problem: problem.line or 0)


def parse_document(text: str, named: str) -> dict[str, object]:
    """A TOML text as Python values; raises ConfigProblems with tomllib's line for what is not TOML."""
    line = overlong_key_line(text)
    if line is not None:
        raise ConfigProblems(named, [Problem(line, "", f"this key has more than {MOST_KEY_PARTS} parts")])
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ConfigProblems(named, [Problem(None, "", "arrays or tables are nested too deeply")]) from None
    except ValueError as error:
        raise ConfigProblems(named, [_syntax_problem(text, str(error))]) from None


def _syntax_problem(text: str, words: str) -> Problem:
    match = _POSITION.search(words)
    if match is None:
        # The one such case: an integer with more digits than Python converts.
        return Problem(None, "", f"not TOML: {printable(words)}")
    said = words[: match.start()]
    if _REPEATED.fullmatch(said):
        said = "this key or table was given before"
    if match[1] is None:
        last_line = text.count("\n") + (0 if text.endswith("\n") else 1)
        return Problem(max(1, last_line), "", f"not TOML: {printable(said)}, at the end of the file")
    return Problem(int(match[1]), "", f"not TOML: {printable(said)} (column {match[2]})")


def read_bytes(file: Path) -> bytes | None:
    """What a file holds; None where there is none. Raises ConfigError for all else that keeps it from being read."""
    named = shown_path(file)
    try:
        with file.open("rb") as opened:
            raw = opened.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return None
    except IsADirectoryError:
        raise ConfigError("this is a directory; expected a TOML file", file=named) from None
    except PermissionError:
        raise ConfigError("no permission to read it", "Look at its owner and mode with `ls -l`.", file=named) from None
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror or error}", file=named) from None
    except ValueError:
        raise ConfigError("no file can have this name", file=named) from None
    if len(raw) > MAX_FILE_BYTES:
        raise ConfigError(f"larger than {MAX_FILE_BYTES // 1024} KiB; no configuration is", file=named)
    return raw


def decode(raw: bytes, named: str) -> str:
    """UTF-8 with or without a byte order mark, line ends as they are; raises ConfigProblems."""
    if raw.startswith(_UTF16_MARKS):
        raise ConfigProblems(named, [Problem(1, "", "this is UTF-16; TOML is UTF-8: save it as UTF-8")])
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        byte = error.object[error.start]
        raise ConfigProblems(named, [Problem(line, "", f"not UTF-8 (byte 0x{byte:02X}): save it as UTF-8")]) from None


def shown_path(file: Path) -> str:
    """A path for a message: on one line, without what a terminal would act on."""
    return printable(str(file))
