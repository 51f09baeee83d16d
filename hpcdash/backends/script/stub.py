"""A batch script that keeps its directives and reads all else from a file when it starts. Pure.

A scheduler takes a script as it is when it is submitted. With a stub what runs can be edited while
it waits, or while others of its array run; a shell reads what it sources from the file that it
opened, so that a file put in its place counts for those that start later.
"""

from __future__ import annotations

import re
import shlex
from pathlib import PurePosixPath

from hpcdash.errors import UsageError

_DIRECTIVES = ("#SBATCH", "#PBS", "#BB", "#DW")
_SHELLS = frozenset({"sh", "bash", "dash", "ksh", "zsh", "ash", "mksh"})
_C_SHELLS = frozenset({"csh", "tcsh"})
_MARK = "# hpcdash stub: the rest is read, when this starts, from"
_TARGET = re.compile(rf"^{re.escape(_MARK)} (.+)$", re.MULTILINE)
# sysexits.h: an input file that is not there or cannot be read.
_NO_INPUT = 66


def stub_script(script_text: str, real_path: str) -> str:
    """The stub for a script whose text is, or will be, in `real_path`, absolute, on every node.

    Its directives are those before the first command, as schedulers read them; edited ones in the
    file do not count. A script for a shell is sourced, with the same arguments; any other is given
    to its interpreter. Raises UsageError for a script without an interpreter, and for a path that
    is not absolute or holds a line end.
    """
    first, *others = script_text.split("\n")
    interpreter = first[2:].split()
    if not first.startswith("#!") or not interpreter:
        raise UsageError(
            "the script's first line does not start with #!", "Start it with #!/bin/bash."
        )
    if not PurePosixPath(real_path).is_absolute() or re.search(r"[\n\r\0]", real_path):
        raise UsageError(
            f"{real_path!r} is not an absolute path", "Use the script's absolute path."
        )
    # sh of /bin/sh, bash of `/usr/bin/env bash`.
    names = [PurePosixPath(word).name for word in interpreter]
    if names[0] == "env":
        names = [
            name for name in names[1:] if not name.startswith("-") and "=" not in name
        ] or names
    path = shlex.quote(real_path)
    if names[0] in _SHELLS:
        complaint = shlex.quote("the script of this stub is missing or cannot be read: ")
        complain = f"printf '%s%s\\n' {complaint} {path} >&2; exit {_NO_INPUT};"
        body = [f"[ -r {path} ] || {{ {complain} }}", f". {path}"]
    elif names[0] in _C_SHELLS:
        body = [f"if (! -r {path}) exit {_NO_INPUT}", f"source {path}"]
    else:
        first = "#!/bin/sh"
        body = [f'exec {shlex.join(interpreter)} {path} "$@"']
    return "\n".join([first, *_directives(others), f"{_MARK} {real_path}", *body, ""])


def stub_target(script_text: str) -> str | None:
    """The file a stub reads, None for a script that is none."""
    found = _TARGET.search(script_text)
    return found[1] if found else None


def _directives(lines: list[str]) -> list[str]:
    """Return the directives before the first line that is neither empty nor a comment."""
    found = []
    for line in lines:
        text = line.strip()
        if text and not text.startswith("#"):
            break
        if line.startswith(_DIRECTIVES):
            found.append(line)
    return found
