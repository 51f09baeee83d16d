"""This package as a zip for PYTHONPATH, where it need not be installed: `python -m hpcdash.job.zip
OUT`.
"""

from __future__ import annotations

import io
import os
import sys
import zipfile

# The earliest time a zip can store: the same files give the same bytes.
_WHEN = (1980, 1, 1, 0, 0, 0)
# First on PYTHONPATH it would hide an hpcdash that is installed, which a job may run as well.
# A folder whose file is missing or cannot be read is none that hpcdash is installed in.
# Not by pkgutil.extend_path: that costs each import here 8 ms, a third of all.
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
    """A zip of `hpcdash/job/`, and of an `hpcdash/__init__.py` that hides no hpcdash which is
    installed beside it.

    The same files give the same bytes, were they read from such a zip.
    Raises FileNotFoundError where this package has no files of its own.
    """
    sources = {"hpcdash/__init__.py": _PACKAGE, **_own_files()}
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as made:
        for inside in sorted(sources):
            entry = zipfile.ZipInfo(inside, _WHEN)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o100644 << 16
            made.writestr(entry, sources[inside])
    return out.getvalue()


def _own_files() -> dict[str, bytes]:
    """This package's files by their names in the zip."""
    here = os.path.dirname(os.path.abspath(__file__))
    sources = {}
    for folder, folders, names in os.walk(here):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in names:
            if name.endswith(".py"):
                path = os.path.join(folder, name)
                with open(path, "rb") as file:
                    sources["hpcdash/job/" + os.path.relpath(path, here).replace(os.sep, "/")] = (
                        file.read()
                    )
    archive = getattr(globals().get("__loader__"), "archive", "")
    if archive:
        inside = os.path.relpath(here, os.path.abspath(archive)).replace(os.sep, "/") + "/"
        with zipfile.ZipFile(archive) as read:
            for name in read.namelist():
                if name.startswith(inside) and name.endswith(".py"):
                    sources["hpcdash/job/" + name[len(inside) :]] = read.read(name)
    if not sources:
        raise FileNotFoundError(f"the files of hpcdash.job are not in {here}")
    return sources


def main(arguments: list[str]) -> int:
    """Writes the zip to the path given."""
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
