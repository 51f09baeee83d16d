"""`__main__` of the single file: unpacks the program once, below the cache folder, and runs it from
there.

Standard library only, and syntax of Python 3.6: another Python than the file is for is told which
one it takes.
"""

import os
import stat
import sys
from typing import Any

_archive: Any = globals()["__loader__"]


class Refused(Exception):
    """It cannot run: what stands in the way, and what to do."""


def main() -> None:
    manifest = _manifest()
    try:
        _require_python(manifest)
        root = _folder_of_programs()
        program = os.path.join(root, manifest["id"])
        if not _is_own_folder(program):
            _unpack(manifest, root, program)
        python = _environment(program)
    except Refused as error:
        sys.exit(f"hpcdash: {error}")
    except OSError as error:
        sys.exit(
            f"hpcdash: it cannot be unpacked: {error}\n  Set HPCDASH_CACHE to a folder with 400 MB "
            "of room."
        )
    os.execv(
        python, [python, "-P", os.path.join(os.path.dirname(python), "hpcdash"), *sys.argv[1:]]
    )


def _manifest() -> Any:
    """`id`, `python` ("3.11"), `platform` (as `os.uname` names it), and `wheels`: file name →
    SHA-256.
    """
    import json

    return json.loads(_archive.get_data("manifest.json").decode("ascii"))


def _require_python(manifest: Any) -> None:
    platform = f"{os.uname().sysname.lower()}-{os.uname().machine}"
    if platform != manifest["platform"]:
        raise Refused(f"this file is for {manifest['platform']}; this machine is {platform}")
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if own == manifest["python"]:
        return
    from shutil import which

    other = which("python" + manifest["python"])
    if other is None or os.environ.get("HPCDASH_OTHER_PYTHON"):
        raise Refused(f"this file is for Python {manifest['python']}; this is {own}")
    os.environ["HPCDASH_OTHER_PYTHON"] = "1"
    os.execv(other, [other, *sys.argv])


def _folder_of_programs() -> str:
    """The folder that programs are unpacked in; nobody else can put anything there, or another in
    its place.
    """
    named = os.environ.get("HPCDASH_CACHE")
    if not named:
        usual = "~/Library/Caches" if sys.platform == "darwin" else "~/.cache"
        named = os.path.join(
            os.environ.get("XDG_CACHE_HOME") or os.path.expanduser(usual), "hpcdash"
        )
    folder = os.path.realpath(os.path.join(named, "program"))
    os.makedirs(folder, mode=0o700, exist_ok=True)
    if not _is_own_folder(folder):
        raise Refused(
            f"{folder} belongs to somebody else. Set HPCDASH_CACHE to a folder of your own."
        )
    above = os.path.dirname(folder)
    while True:
        found = os.lstat(above)
        if found.st_uid not in (os.geteuid(), 0) or (
            _others_write(found) and not found.st_mode & stat.S_ISVTX
        ):
            raise Refused(
                f"others can replace what is in {above}. Set HPCDASH_CACHE to a folder of your own."
            )
        if above == os.path.dirname(above):
            return folder
        above = os.path.dirname(above)


def _is_own_folder(path: str) -> bool:
    """False where there is none; raises Refused where somebody else could write there."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return False
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or _others_write(found):
        raise Refused(
            f"{path} is not yours alone, and programs are run from there.\n"
            "  Look what it is, and remove it; or set HPCDASH_CACHE to a folder of your own."
        )
    return True


def _others_write(found: os.stat_result) -> bool:
    """Whether others than oneself and root can; a group that has one's own name is oneself."""
    if found.st_mode & stat.S_IWOTH:
        return True
    if not found.st_mode & stat.S_IWGRP or found.st_gid == 0:
        return False
    import grp
    import pwd

    try:
        me, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(found.st_gid)
    except KeyError:
        return True
    return group.gr_name != me.pw_name or bool(set(group.gr_mem) - {me.pw_name})


def _unpack(manifest: Any, root: str, program: str) -> None:
    """Unpack all wheels beside `program`, each after a look at its hash, and give them its name at
    once.
    """
    import hashlib
    import io
    import tempfile
    import zipfile

    sys.stderr.write(f"hpcdash: unpacking into {program}, once\n")
    unfinished = tempfile.mkdtemp(prefix=".new-", dir=root)
    try:
        for name, expected in sorted(manifest["wheels"].items()):
            content = _archive.get_data("wheels/" + name)
            if hashlib.sha256(content).hexdigest() != expected:
                raise Refused(f"{name} is damaged in {sys.argv[0]}; copy the file anew")
            with zipfile.ZipFile(io.BytesIO(content)) as wheel:
                for member in wheel.namelist():
                    # Programs, headers and man pages of what hpcdash depends on.
                    if ".data/" not in member.partition("/")[0] + "/":
                        wheel.extract(member, unfinished)
        os.rename(unfinished, program)
    except OSError:
        # Another one was first.
        if not _is_own_folder(program):
            raise
    finally:
        if os.path.isdir(unfinished):
            from shutil import rmtree

            rmtree(unfinished, ignore_errors=True)


def _environment(program: str) -> str:
    """The Python of a virtual environment that has the unpacked program, made where it is not there
    yet.

    What hpcdash starts has this Python too, without a variable that jobs would inherit. A home may
    be shared by machines whose Pythons are in different places: each has its own.
    """
    base = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
    folder = os.path.join(program, "python" + base.replace("/", "-"))
    python = os.path.join(folder, "bin", "python")
    if os.path.exists(python):
        return python
    import tempfile

    unfinished = tempfile.mkdtemp(prefix=".new-", dir=program)
    packages = os.path.join(
        unfinished, "lib", f"python{sys.version_info[0]}.{sys.version_info[1]}", "site-packages"
    )
    os.makedirs(packages)
    os.mkdir(os.path.join(unfinished, "bin"))
    os.symlink(base, os.path.join(unfinished, "bin", "python"))
    for name, text in (
        (os.path.join(packages, "hpcdash.pth"), program + "\n"),
        (os.path.join(unfinished, "pyvenv.cfg"), f"home = {os.path.dirname(base)}\n"),
        (
            os.path.join(unfinished, "bin", "hpcdash"),
            "from hpcdash.__main__ import main\n\nmain()\n",
        ),
    ):
        with open(name, "w") as file:
            file.write(text)
    try:
        os.rename(unfinished, folder)
    except OSError:
        from shutil import rmtree

        rmtree(unfinished, ignore_errors=True)
        if not os.path.exists(python):
            raise
    return python


if __name__ == "__main__":
    main()
