"""Reader of TOML files: bytes, text and values; errors name file and line."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from hpcdash.config.locate import MAX_KEY_PARTS, overlong_key_line
from hpcdash.config.problems import ConfigProblems, Problem, printable
from hpcdash.errors import ConfigError

MAX_FILE_BYTES = 256 * 1024
_POSITION = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
# tomllib's messages for a repetition.
_REPEATED = re.compile(
    r"Cannot (?:overwrite a value|declare .* twice|mutate immutable namespace .*)", re.DOTALL
)


def parse_document(text: str, file_name: str) -> dict[str, object]:
    """Parse a TOML text; raises ConfigProblems with the line of a syntax error."""
    line = overlong_key_line(text)
    if line is not None:
        raise _refusal(file_name, line, f"this key has more than {MAX_KEY_PARTS} parts")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise _refusal(file_name, None, "arrays or tables are nested too deeply") from None
    except ValueError as error:
        message = str(error)
    position = _POSITION.search(message)
    reason = message[: position.start()] if position else message
    if _REPEATED.fullmatch(reason):
        reason = "duplicate key or table"
    reason = f"not TOML: {printable(reason)}"
    if position is None:
        # An integer with more digits than Python converts has no position.
        raise _refusal(file_name, None, reason)
    if position[1] is None:
        last_line = max(1, len(text.split("\n")) - text.endswith("\n"))
        raise _refusal(file_name, last_line, f"{reason}, at the end of the file")
    raise _refusal(file_name, int(position[1]), f"{reason} (column {position[2]})")


def _refusal(file_name: str, line: int | None, message: str) -> ConfigProblems:
    return ConfigProblems(file_name, [Problem(line, "", message)])


def read_bytes(file: Path) -> bytes | None:
    """Read a file; None if it does not exist.

    Raises ConfigError if it cannot be read or is too large.
    """
    file_name = shown_path(file)
    try:
        with file.open("rb") as source:
            raw = source.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return None
    except IsADirectoryError:
        raise ConfigError("this is a directory; expected a TOML file", file=file_name) from None
    except PermissionError:
        raise ConfigError(
            "no permission to read this file",
            "Check its owner and mode with `ls -l`.",
            file=file_name,
        ) from None
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror or error}", file=file_name) from None
    except ValueError:
        raise ConfigError("not a valid file name", file=file_name) from None
    if len(raw) > MAX_FILE_BYTES:
        raise ConfigError(
            f"larger than {MAX_FILE_BYTES // 1024} KiB, too large for a configuration",
            file=file_name,
        )
    return raw


def decode(raw: bytes, file_name: str) -> str:
    """Decode UTF-8 with or without a byte order mark; raises ConfigProblems."""
    if raw.startswith(_UTF16_MARKS):
        raise _refusal(file_name, 1, "this is UTF-16; TOML is UTF-8: save it as UTF-8")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        byte = error.object[error.start]
        raise _refusal(
            file_name, line, f"not UTF-8 (byte 0x{byte:02X}): save it as UTF-8"
        ) from None


def example_text() -> str:
    """Return example.toml: every key of config.toml with its meaning, commented out."""
    return Path(__file__).with_name("example.toml").read_text("utf-8")


def shown_path(file: Path) -> str:
    """Return a path for a message: on one line, without control characters."""
    return printable(str(file))
