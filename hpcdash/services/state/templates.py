"""Requests and scripts that a person keeps by name."""

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
_WHAT_RUNS = re.compile(r"^(?:command|script)[ \t]*=", re.MULTILINE)
REQUEST_END, SCRIPT_END = ".toml", ".sh"
_LARGEST_BYTES = 4_000_000


class Templates:
    """Files of a folder, mode 0600, one a template: NAME.toml (a REQUEST.toml) or NAME.sh (a
    script, by its text).

    Bytes of a script that are no UTF-8 are lone surrogates, as in backends.base.Script.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, name: str, text: str) -> Path:
        """Keep a text under a name, in place of what it held.

        Raises UsageError (a name that cannot be), OSError.
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
        """Sorted; () where there is no folder."""
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
        """Raises UsageError where there is none, naming the nearest, or where it cannot be read."""
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
        """Raises UsageError where there is none, OSError."""
        self._found(name).unlink()

    def _path(self, name: str, end: str) -> Path:
        return self.folder / f"{name}{end}"

    def _found(self, name: str) -> Path:
        paths = (
            [self._path(name, end) for end in (REQUEST_END, SCRIPT_END)]
            if _NAME.fullmatch(name)
            else []
        )
        found = next((path for path in paths if path.is_file()), None)
        if found is None:
            raise UsageError(f"there is no template {name!r}", nearest(name, self.names()))
        return found


def is_script(text: str) -> bool:
    """Whether a text is a script rather than a REQUEST.toml."""
    if text.lstrip("\ufeff \t\r\n").startswith("#!"):
        return True
    return _DIRECTIVE.search(text) is not None and _WHAT_RUNS.search(text) is None


def difference(before: Recent, text: str) -> list[str]:
    """A unified difference of what was submitted and `text`, [] where there is none.

    hpcdash.domain.scripts.difference_lines makes it safe to show.
    """
    return unified(before.text, text, ("last submission", "now"))
