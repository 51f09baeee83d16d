"""Bash that copies what a launch staged into a folder of the account's own on each node, and checks
it. Pure.

Where others could put another folder in the place of the launch's, its files are run from such a
copy: the script that the scheduler keeps holds their digests.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from hpcdash.backends.script.folder import CODE_ARCHIVE
from hpcdash.shell_files import shell_text

# The variable that names the copy, on the node and in the container.
COPY = "HPCDASH_COPY"
_UNPACK = """\
tar -xzomf "$HPCDASH_COPY"/{archive} -C "$HPCDASH_COPY" && rm -f -- "$HPCDASH_COPY"/{archive} || exit
cd -- "$HPCDASH_COPY"/{folder} || exit
"""


def copy_part(folder: str, copies: Mapping[str, str], code_folder: str = "") -> str:
    """Bash that makes the copy of `copies`, name → SHA-256, and removes it as the shell ends; ''
    for none.

    Where the archive of code is one of them it is unpacked, and `code_folder` in it entered.
    """
    if not copies:
        return ""
    lines = [f"hpcdash_copy {digest} {shlex.quote(name)}\n" for name, digest in copies.items()]
    unpack = (
        _UNPACK.format(archive=CODE_ARCHIVE, folder=shlex.quote(code_folder))
        if CODE_ARCHIVE in copies
        else ""
    )
    copy = f"hpcdash_folder={shlex.quote(folder)}\n{shell_text('backends/script/copies.sh')}"
    return copy + "".join(lines) + unpack


def staged_path(folder: str, name: str, copies: Mapping[str, str]) -> str:
    """Bash for a file that a launch staged: in its folder, or in the node's copy."""
    return f'"${COPY}"/{shlex.quote(name)}' if name in copies else shlex.quote(f"{folder}/{name}")


def with_copies(bash: str, folder: str, copies: Mapping[str, str]) -> str:
    """Return bash with the copies in place of the files in the launch's folder."""
    for name in copies:
        bash = bash.replace(shlex.quote(f"{folder}/{name}"), staged_path(folder, name, copies))
    return bash
