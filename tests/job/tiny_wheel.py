"""Writes a wheel of one module, as a build would make it."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path


def tiny_wheel(folder: Path, code: str) -> str:
    """The path of a wheel in `folder` that installs `code` as the module `tiny`."""
    path = folder / "tiny-1.0-py3-none-any.whl"
    files = {
        "tiny.py": code,
        "tiny-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n",
        "tiny-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: "
        "py3-none-any\n",
    }
    sums = {
        name: base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest())
        for name, text in files.items()
    }
    record = [
        f"{name},sha256={sums[name].rstrip(b'=').decode()},{len(text)}\n"
        for name, text in files.items()
    ]
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in {**files, "tiny-1.0.dist-info/RECORD": "".join(record)}.items():
            archive.writestr(name, text)
    return str(path)
