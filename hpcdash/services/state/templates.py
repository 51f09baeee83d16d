"""Requests and scripts that a person saved by name."""

from __future__ import annotations

import os
import re
from pathlib import Path

from hpcdash.domain.demand import nearest
from hpcdash.domain.scripts import unified
from hpcdash.errors import UsageError
from hpcdash.private_files import atomic_write, make_folder
from hpcdash.services.state.recents import Recent

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,79}")
_DIRECTIVE = re.compile(r"^#(?:SBATCH|PBS)\b", re.MULTILINE)
_PROGRAM_KEY = re.compile(r"^(?:command|script)[ \t]*=", re.MULTILINE)
REQUEST_END = ".toml"
SCRIPT_END = ".sh"
_LARGEST_BYTES = 4_000_000


class Templates:
    """Templates in files of a folder, mode 0600: NAME.toml (a REQUEST.toml) or NAME.sh (a script).

    Bytes of a script that are not UTF-8 are lone surrogates, as in backends.base.Script.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, name: str, text: str) -> Path:
        """Save a text under a name, in place of an earlier one.

        Raises UsageError for a bad name, OSError.
        """
        if not _NAME.fullmatch(name) or name.endswith((REQUEST_END, SCRIPT_END)):
            raise UsageError(
                f"{name!r} is not a template name",
                "Use up to 80 letters, digits and ._@+-, starting with a letter or digit, "
                "without a file extension.",
            )
        path = self._path(name, SCRIPT_END if is_script(text) else REQUEST_END)
        make_folder(self.folder)
        # A link to a file elsewhere stays a link.
        atomic_write(Path(os.path.realpath(path)), text.encode("utf-8", "surrogateescape"))
        other = self._path(name, REQUEST_END if is_script(text) else SCRIPT_END)
        other.unlink(missing_ok=True)
        return path

    def names(self) -> tuple[str, ...]:
        """Return the names, sorted; () if there is no folder."""
        try:
            files = os.listdir(self.folder)
        except OSError:
            return ()
        names = (
            file.removesuffix(end)
            for file in files
            for end in (REQUEST_END, SCRIPT_END)
            if file.endswith(end)
        )
        return tuple(sorted({name for name in names if _NAME.fullmatch(name)}))

    def read(self, name: str) -> str:
        """Read a template; raises UsageError, with the nearest name, if there is none to read."""
        path = self._found(name)
        try:
            with path.open("rb") as file:
                content = file.read(_LARGEST_BYTES + 1)
        except OSError as error:
            raise UsageError(
                f"template {name} cannot be read: {error.strerror or error}", str(path)
            ) from None
        if len(content) > _LARGEST_BYTES:
            raise UsageError(
                f"template {name} is larger than {_LARGEST_BYTES // 1_000_000} MB", str(path)
            )
        return content.decode("utf-8", "surrogateescape")

    def remove(self, name: str) -> None:
        """Delete a template; raises UsageError if there is none, OSError."""
        self._found(name).unlink()

    def _path(self, name: str, end: str) -> Path:
        return self.folder / f"{name}{end}"

    def _found(self, name: str) -> Path:
        if _NAME.fullmatch(name):
            for end in (REQUEST_END, SCRIPT_END):
                path = self._path(name, end)
                if path.is_file():
                    return path
        raise UsageError(f"no template {name!r}", nearest(name, self.names()))


def is_script(text: str) -> bool:
    """Whether a text is a script rather than a REQUEST.toml."""
    if text.lstrip("\ufeff \t\r\n").startswith("#!"):
        return True
    return _DIRECTIVE.search(text) is not None and _PROGRAM_KEY.search(text) is None


def difference(before: Recent, text: str) -> list[str]:
    """Return a unified diff of a submission and `text`, [] if they are equal.

    hpcdash.domain.scripts.difference_lines makes it safe to show.
    """
    return unified(before.text, text, ("last submission", "now"))
