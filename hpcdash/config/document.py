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


def parse_document(text: str, named: str) -> dict[str, object]:
    """Parse a TOML text; raises ConfigProblems with the line of what is not TOML."""
    line = overlong_key_line(text)
    if line is not None:
        raise _refusal(named, line, f"this key has more than {MAX_KEY_PARTS} parts")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise _refusal(named, None, "arrays or tables are nested too deeply") from None
    except ValueError as error:
        message = str(error)
    match = _POSITION.search(message)
    reported = message[: match.start()] if match else message
    if _REPEATED.fullmatch(reported):
        reported = "duplicate key or table"
    reported = f"not TOML: {printable(reported)}"
    if match is None:
        # The one such case: an integer with more digits than Python converts.
        raise _refusal(named, None, reported)
    if match[1] is None:
        last_line = max(1, len(text.split("\n")) - text.endswith("\n"))
        raise _refusal(named, last_line, f"{reported}, at the end of the file")
    raise _refusal(named, int(match[1]), f"{reported} (column {match[2]})")


def _refusal(named: str, line: int | None, message: str) -> ConfigProblems:
    return ConfigProblems(named, [Problem(line, "", message)])


def read_bytes(file: Path) -> bytes | None:
    """Read a file; None if it does not exist.

    Raises ConfigError if it cannot be read or is too large.
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
            "no permission to read it", "Check its owner and mode with `ls -l`.", file=named
        ) from None
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror or error}", file=named) from None
    except ValueError:
        raise ConfigError("not a valid file name", file=named) from None
    if len(raw) > MAX_FILE_BYTES:
        raise ConfigError(
            f"larger than {MAX_FILE_BYTES // 1024} KiB, too large for a configuration", file=named
        )
    return raw


def decode(raw: bytes, named: str) -> str:
    """Decode UTF-8 with or without a byte order mark; raises ConfigProblems."""
    if raw.startswith(_UTF16_MARKS):
        raise _refusal(named, 1, "this is UTF-16; TOML is UTF-8: save it as UTF-8")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        byte = error.object[error.start]
        raise _refusal(named, line, f"not UTF-8 (byte 0x{byte:02X}): save it as UTF-8") from None


def example_text() -> str:
    """Return example.toml: every key of config.toml with its meaning, commented out."""
    return Path(__file__).with_name("example.toml").read_text("utf-8")


def shown_path(file: Path) -> str:
    """Return a path for a message: on one line, without control characters."""
    return printable(str(file))
