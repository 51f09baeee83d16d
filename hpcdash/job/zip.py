"""Writes this package as a zip for PYTHONPATH: `python -m hpcdash.job.zip OUT`."""

from __future__ import annotations

import io
import os
import sys
import zipfile

# The earliest time that a zip can store; a fixed time makes the zip reproducible.
_TIMESTAMP = (1980, 1, 1, 0, 0, 0)
# The zip is first on PYTHONPATH, and must not hide an installed hpcdash, which a job may run too.
# hpcdash is not installed in a folder without a readable __init__.py. pkgutil.extend_path would add
# 8 ms to each import, a third of it.
_PACKAGE = b"""\
import os as _os, sys as _sys
def __getattr__(name):
    from hpcdash.job.names import find
    return find(__name__, name)
_folders = [_os.path.join(_entry, __name__) for _entry in _sys.path]
__path__ += [_folder for _folder in _folders if _folder not in __path__ and _os.path.isdir(_folder)]
for _folder in __path__[1:]:
    try:
        with open(_folder + "/__init__.py", encoding="utf-8") as _file:
            exec(_file.read())
        break
    except OSError:
        pass
"""


def job_zip() -> bytes:
    """Return a zip of `hpcdash/job/`, whose `hpcdash/__init__.py` finds an installed hpcdash.

    The same files give the same bytes, also if they are in such a zip. Raises FileNotFoundError if
    this package has no files.
    """
    sources = {"hpcdash/__init__.py": _PACKAGE, **_own_files()}
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in sorted(sources.items()):
            entry = zipfile.ZipInfo(name, _TIMESTAMP)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, content)
    return out.getvalue()


def _own_files() -> dict[str, bytes]:
    """Return this package's files by their names in the zip."""
    package = os.path.dirname(os.path.abspath(__file__))
    sources = {}
    for folder, folders, names in os.walk(package):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in names:
            if name.endswith(".py"):
                path = os.path.join(folder, name)
                with open(path, "rb") as file:
                    sources[f"hpcdash/job/{os.path.relpath(path, package)}"] = file.read()
    archive_path = getattr(globals().get("__loader__"), "archive", "")
    if archive_path:
        prefix = os.path.relpath(package, os.path.abspath(archive_path)) + "/"
        with zipfile.ZipFile(archive_path) as archive:
            for name in archive.namelist():
                if name.startswith(prefix) and name.endswith(".py"):
                    sources[f"hpcdash/job/{name[len(prefix) :]}"] = archive.read(name)
    if not sources:
        raise FileNotFoundError(f"the files of hpcdash.job are not in {package}")
    return sources


def main(arguments: list[str]) -> int:
    """Write the zip to the path in the arguments; return the exit status."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print("usage: python -m hpcdash.job.zip OUT", file=sys.stderr)
        return 2
    from hpcdash.job.on_disk import write_whole

    try:
        with write_whole(arguments[0]) as beside:
            beside.write_bytes(job_zip())
    except OSError as error:
        print(f"hpcdash.job.zip: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
