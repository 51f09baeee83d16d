"""A TOML file as a document: its bytes, its text, its values; errors name file and line."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from hpcdash.config.locate import MOST_KEY_PARTS, overlong_key_line
from hpcdash.config.problems import ConfigProblems, Problem, printable
from hpcdash.errors import ConfigError

MAX_FILE_BYTES = 256 * 1024
_POSITION = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
# tomllib's messages for a repetition.
_REPEATED = re.compile(
    r"Cannot (?:overwrite a value|declare .* twice|mutate immutable namespace .*)", re.DOTALL
)


def parse_document(text: str, named: str) -> dict[str, object]:
    """A TOML text as Python values; raises ConfigProblems with tomllib's line for what is not
    TOML.
    """
    line = overlong_key_line(text)
    if line is not None:
        raise ConfigProblems(
            named, [Problem(line, "", f"this key has more than {MOST_KEY_PARTS} parts")]
        )
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ConfigProblems(
            named, [Problem(None, "", "arrays or tables are nested too deeply")]
        ) from None
    except ValueError as error:
        raise ConfigProblems(named, [_syntax_problem(text, str(error))]) from None


def _syntax_problem(text: str, message: str) -> Problem:
    match = _POSITION.search(message)
    if match is None:
        # The one such case: an integer with more digits than Python converts.
        return Problem(None, "", f"not TOML: {printable(message)}")
    reported = message[: match.start()]
    if _REPEATED.fullmatch(reported):
        reported = "this key or table was given before"
    if match[1] is None:
        last_line = text.count("\n") + (0 if text.endswith("\n") else 1)
        return Problem(
            max(1, last_line), "", f"not TOML: {printable(reported)}, at the end of the file"
        )
    return Problem(int(match[1]), "", f"not TOML: {printable(reported)} (column {match[2]})")


def read_bytes(file: Path) -> bytes | None:
    """Read a file; None where it does not exist.

    Raises ConfigError for any other reason that keeps it from being read.
    """
    named = shown_path(file)
    try:
        with file.open("rb") as opened:
            raw = opened.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return None
    except IsADirectoryError:
        raise ConfigError("this is a directory; expected a TOML file", file=named) from None
    except PermissionError:
        raise ConfigError(
            "no permission to read it", "Look at its owner and mode with `ls -l`.", file=named
        ) from None
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror or error}", file=named) from None
    except ValueError:
        raise ConfigError("no file can have this name", file=named) from None
    if len(raw) > MAX_FILE_BYTES:
        raise ConfigError(
            f"larger than {MAX_FILE_BYTES // 1024} KiB; no configuration is", file=named
        )
    return raw


def decode(raw: bytes, named: str) -> str:
    """UTF-8 with or without a byte order mark, line ends as they are; raises ConfigProblems."""
    if raw.startswith(_UTF16_MARKS):
        raise ConfigProblems(
            named, [Problem(1, "", "this is UTF-16; TOML is UTF-8: save it as UTF-8")]
        )
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        byte = error.object[error.start]
        raise ConfigProblems(
            named, [Problem(line, "", f"not UTF-8 (byte 0x{byte:02X}): save it as UTF-8")]
        ) from None


def shown_path(file: Path) -> str:
    """A path for a message: on one line, without what a terminal would act on."""
    return printable(str(file))
