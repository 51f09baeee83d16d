"""A request's file as a person names it: read, checked, with the script it points to."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from hpcdash.config.locate import key_lines, line_of
from hpcdash.config.problems import ConfigProblems, Problem
from hpcdash.config.read import decode, shown_path
from hpcdash.config.request import RequestProblems, read_request
from hpcdash.domain.request import Request, Site
from hpcdash.errors import ConfigError, HpcdashError, UsageError

# A command may be a whole script, and sbatch takes one of 4 MiB.
MAX_REQUEST_BYTES = 4 << 20
_STDIN = "-"
# How what cannot be asked of a scheduler begins: `name: …`; of a person's own options: `--nodes is not for extra_args`.
_KEY_IN_WORDS = re.compile(r"([a-z_]+): ")
_ARGUMENTS_IN_WORDS = re.compile(r" (extra_args)\b")


@dataclass(frozen=True, slots=True)
class RequestSource:
    """A request, its text as it was written, and its script on this machine where it names one by a relative path."""

    request: Request
    text: str
    script: Path | None = None
    file: str = ""

    def placed(self, error: UsageError) -> HpcdashError:
        """The same error at the file's line of the key that it names; as it is where the file does not have that."""
        word = _KEY_IN_WORDS.match(error.message) or _ARGUMENTS_IN_WORDS.search(error.message)
        key = word[1] if word else ""
        line = key_lines(self.text).get((key,))
        if line is None:
            return error
        return ConfigError(error.message.removeprefix(f"{key}: "), error.next_step, file=self.file, line=line, key=key)


def read_source(path: str, *, site: Site, user: str | None) -> RequestSource:
    """The request in a file, '-' for stdin; raises ConfigError with file, line and key of what is wrong.

    A relative `script` is looked for beside the file (with stdin: in the current folder) and has to be there; one from
    the root is the cluster's own.
    """
    named = "stdin" if path == _STDIN else shown_path(Path(path))
    try:
        text = decode(_bytes(path, named), named)
    except ConfigProblems as error:
        raise RequestProblems(named, error.problems) from None
    request = read_request(text, named, site=site, user=user)
    if not request.script or request.script.startswith("/"):
        return RequestSource(request, text, file=named)
    folder = Path.cwd() if path == _STDIN else Path(path).parent
    script = Path(os.path.abspath(folder / request.script))
    if not script.is_file():
        what = "is a folder" if script.is_dir() else "is not there"
        words = f"{shown_path(script)} {what}; the path is relative to this file's folder"
        raise RequestProblems(named, [Problem(line_of(key_lines(text), ("script",)), "script", words)])
    return RequestSource(request, text, script, named)


def _bytes(path: str, named: str) -> bytes:
    try:
        if path == _STDIN:
            content = sys.stdin.buffer.read(MAX_REQUEST_BYTES + 1)
        else:
            with Path(path).open("rb") as stream:
                content = stream.read(MAX_REQUEST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", "Is the path right?", file=named) from error
    if len(content) > MAX_REQUEST_BYTES:
        raise ConfigError(f"more than {MAX_REQUEST_BYTES >> 20} MiB: is it a request?", file=named)
    return content
