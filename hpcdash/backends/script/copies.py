"""Bash that copies what a launch staged into a folder of the account's own on each node, and checks
it. Pure.

Where others could put another folder in the place of the launch's, its files are run from such a
copy: the script that the scheduler keeps holds their digests.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from hpcdash.backends.script.folder import CODE_ARCHIVE

# The variable that names the copy, on the node and in the container.
COPY = "HPCDASH_COPY"
# A sticky folder or one's own: in any other the copy could be replaced too.
_COPY = """\
# Others could replace the launch's folder. What is run is a copy of this account's own, checked by its digest.
hpcdash_tmp=${TMPDIR:-/tmp}
[ -k "$hpcdash_tmp" ] || [ -O "$hpcdash_tmp" ] || hpcdash_tmp=/tmp
HPCDASH_COPY=$(mktemp -d "$hpcdash_tmp/hpcdash.XXXXXXXX") || exit
export HPCDASH_COPY
trap 'trap "" TERM; rm -rf -- "$HPCDASH_COPY"' EXIT
hpcdash_folder=FOLDER
hpcdash_copy() {
  [ -f "$hpcdash_folder/$2" ] && mkdir -p -- "$HPCDASH_COPY/files" && cat < "$hpcdash_folder/$2" > "$HPCDASH_COPY/$2" &&
    chmod u+x "$HPCDASH_COPY/$2" && [ "$(sha256sum < "$HPCDASH_COPY/$2")" = "$1  -" ] && return
  echo "hpcdash: $hpcdash_folder/$2 is not what was submitted; others could have replaced it. Nothing was started." >&2
  exit 1
}
"""
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
    return _COPY.replace("FOLDER", shlex.quote(folder)) + "".join(lines) + unpack


def staged_path(folder: str, name: str, copies: Mapping[str, str]) -> str:
    """Bash for a file that a launch staged: in its folder, or in the node's copy."""
    return f'"${COPY}"/{shlex.quote(name)}' if name in copies else shlex.quote(f"{folder}/{name}")


def with_copies(bash: str, folder: str, copies: Mapping[str, str]) -> str:
    """Return bash with the copies in place of the files in the launch's folder."""
    for name in copies:
        bash = bash.replace(shlex.quote(f"{folder}/{name}"), staged_path(folder, name, copies))
    return bash
