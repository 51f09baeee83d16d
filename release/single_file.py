"""`python -m release.single_file WHEEL`: one file with hpcdash and all that it depends on, for
machines without pip.

Made by the Python and on the platform that it is for; needs nothing but that Python's pip. Beside
it comes the list of what is in it, with licences and hashes, as CycloneDX (`*.cdx.json`).
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from email.message import Message
from email.parser import BytesParser
from pathlib import Path

from hpcdash.cli.licenses import distribution_license

_HERE = Path(__file__).parent
_SHEBANG = b"#!/usr/bin/env python3\n"


def download(wheel: Path, folder: Path) -> list[Path]:
    """A wheel and all that it depends on, for this Python and platform, in a folder; raises
    CalledProcessError.
    """
    pip = (
        sys.executable,
        "-m",
        "pip",
        "download",
        "-q",
        "--disable-pip-version-check",
        "--only-binary",
        ":all:",
    )
    subprocess.run((*pip, "-d", str(folder), str(wheel)), check=True)
    return sorted(folder.glob("*.whl"))


def build(wheels: Sequence[Path], folder: Path) -> Path:
    """Write the single file of some wheels, hpcdash's among them, and its list into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    platform = f"{os.uname().sysname.lower()}-{os.uname().machine}"
    version = next(one.name.split("-")[1] for one in wheels if one.name.startswith("hpcdash-"))
    hashes = {one.name: hashlib.sha256(one.read_bytes()).hexdigest() for one in wheels}
    bootstrap = (_HERE / "bootstrap.py").read_bytes()
    manifest = {"python": python, "platform": platform, "wheels": hashes}
    # Another bootstrap may lay it out in another way.
    whole = json.dumps(manifest, sort_keys=True).encode() + bootstrap
    manifest["id"] = f"{version}-{hashlib.sha256(whole).hexdigest()[:16]}"
    file = folder / f"hpcdash-{version}-python{python}-{platform}.pyz"
    with file.open("wb") as stream:
        stream.write(_SHEBANG)
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
            _add(archive, "__main__.py", bootstrap)
            _add(
                archive,
                "manifest.json",
                json.dumps(manifest, indent=1, sort_keys=True).encode("ascii"),
            )
            for one in wheels:
                _add(archive, f"wheels/{one.name}", one.read_bytes())
    file.chmod(0o755)
    listed = json.dumps(components(wheels, version), indent=1) + "\n"
    file.with_suffix(".cdx.json").write_text(listed, encoding="utf-8")
    return file


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    # The same wheels make the same file.
    archive.writestr(zipfile.ZipInfo(name, (2020, 2, 2, 0, 0, 0)), content)


def components(wheels: Iterable[Path], version: str) -> dict[str, object]:
    """What is in some wheels as a CycloneDX document."""
    found = []
    for wheel in wheels:
        about = metadata_of(wheel)
        name = about["Name"].lower().replace("_", "-")
        found.append(
            {
                "type": "library",
                "name": name,
                "version": about["Version"],
                "purl": f"pkg:pypi/{name}@{about['Version']}",
                "licenses": [{"license": {"name": distribution_license(about)}}],
                "hashes": [
                    {"alg": "SHA-256", "content": hashlib.sha256(wheel.read_bytes()).hexdigest()}
                ],
            }
        )
    about_this = {"component": {"type": "application", "name": "hpcdash", "version": version}}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": about_this,
        "components": found,
    }


def metadata_of(wheel: Path) -> Message:
    """The METADATA of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (
            name
            for name in archive.namelist()
            if name.endswith(".dist-info/METADATA") and name.count("/") == 1
        )
        return BytesParser().parsebytes(archive.read(name))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m release.single_file WHEEL")
    with tempfile.TemporaryDirectory() as downloads:
        made = build(download(Path(sys.argv[1]), Path(downloads)), Path("dist"))
    print(
        f"{made}  {made.stat().st_size / 1e6:.0f} MB  SHA-256 "
        f"{hashlib.sha256(made.read_bytes()).hexdigest()}"
    )
