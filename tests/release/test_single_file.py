"""The single file unpacks once, whole and undamaged, into a folder that nobody else can change, and
runs from there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from release.single_file import build

pytestmark = pytest.mark.system

_PROGRAM = """
import json, os, sys
def main():
    said = {"words": sys.argv[1:], "python": sys.executable, "file": __file__, "path": os.environ.get("PYTHONPATH")}
    print(json.dumps(said))
"""
_METADATA = "Metadata-Version: 2.1\nName: hpcdash\nVersion: 9.9\nLicense-Expression: MIT\n"


def make_wheel(folder: Path, name: str = "hpcdash") -> Path:
    wheel = folder / f"{name}-9.9-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(f"{name}/__init__.py", "")
        archive.writestr(f"{name}/__main__.py", _PROGRAM)
        archive.writestr(f"{name}-9.9.dist-info/METADATA", _METADATA.replace("hpcdash", name))
        archive.writestr(f"{name}-9.9.data/scripts/evil", "echo")
    return wheel


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return build([make_wheel(tmp_path), make_wheel(tmp_path, "other")], tmp_path / "dist")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    return home


def start(file: Path, home: Path, *words: str, **variables: str) -> subprocess.Popen[str]:
    argv = (sys.executable, str(file), *words)
    environment = {"HOME": str(home), "PATH": os.defpath, **variables}
    return subprocess.Popen(
        argv,
        env=environment,
        cwd=home,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
    )


def run(file: Path, home: Path, *words: str, **variables: str) -> tuple[int, str, str]:
    """Status, stdout and stderr."""
    process = start(file, home, *words, **variables)
    out, err = process.communicate()
    return process.returncode, out, err


def programs(home: Path) -> Path:
    return home / ".cache" / "hpcdash" / "program"


def test_it_unpacks_once_and_runs_from_there_with_a_python_that_has_it_too(
    file: Path, home: Path
) -> None:
    status, out, err = run(file, home, "jobs", "--all")
    assert (status, err.startswith("hpcdash: unpacking into ")) == (0, True)
    said = json.loads(out)
    (program,) = programs(home).iterdir()
    assert said["words"] == ["jobs", "--all"]
    assert said["path"] is None
    assert Path(said["file"]).is_relative_to(program)
    child = subprocess.run(
        (said["python"], "-P", "-c", "import hpcdash; print(hpcdash.__file__)"), capture_output=True
    )
    assert child.stdout.decode().strip() == str(program / "hpcdash" / "__init__.py")
    assert (program.stat().st_mode & 0o777, (program / "evil").exists()) == (0o700, False)
    assert run(file, home, "jobs", "--all") == (0, out, "")
    assert [one.name for one in programs(home).iterdir()] == [program.name]


def test_several_first_starts_at_once_leave_one_program(file: Path, home: Path) -> None:
    started = [start(file, home, str(number)) for number in range(3)]
    for number, process in enumerate(started):
        out, err = process.communicate()
        assert (process.returncode, json.loads(out)["words"]) == (0, [str(number)]), err
    assert len(list(programs(home).iterdir())) == 1


def test_a_damaged_file_is_refused_and_leaves_nothing(file: Path, home: Path) -> None:
    with zipfile.ZipFile(file) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(file, "w") as archive:
        for name, raw in content.items():
            archive.writestr(
                name, raw.replace(b"sys.executable", b"sys.executablf") if "other" in name else raw
            )
    status, out, err = run(file, home)
    assert (status, out) == (1, "")
    assert "other-9.9-py3-none-any.whl is damaged" in err
    assert list(programs(home).iterdir()) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives a folder to somebody else")
@pytest.mark.parametrize("whose", ["program", "hpcdash", "id"])
def test_a_folder_of_somebody_else_is_refused(file: Path, home: Path, whose: str) -> None:
    assert run(file, home)[0] == 0
    (program,) = programs(home).iterdir()
    os.chown(
        {"program": programs(home), "hpcdash": programs(home).parent, "id": program}[whose],
        65534,
        65534,
    )
    status, out, err = run(file, home)
    assert (status, out) == (1, "")
    assert "HPCDASH_CACHE" in err


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770])
@pytest.mark.parametrize("whose", ["program", "id"])
def test_a_folder_that_others_can_write_is_refused(
    file: Path, home: Path, whose: str, mode: int
) -> None:
    assert run(file, home)[0] == 0
    (program,) = programs(home).iterdir()
    folder = programs(home) if whose == "program" else program
    if os.getuid() == 0:
        os.chown(folder, 0, 65534)
    elif mode == 0o770:
        pytest.skip("one's own group is oneself")
    folder.chmod(mode)
    status, out, err = run(file, home)
    assert (status, out) == (1, "")
    assert "is not yours alone" in err


def test_a_parent_in_which_others_could_replace_it_is_refused(
    file: Path, home: Path, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    (shared / "mine").mkdir(parents=True)
    shared.chmod(0o777)
    status, _, err = run(file, home, HPCDASH_CACHE=str(shared / "mine"))
    assert (status, f"others can replace what is in {shared}." in err) == (1, True)
    # As in /tmp, where each may replace their own alone.
    shared.chmod(0o1777)
    assert run(file, home, HPCDASH_CACHE=str(shared / "mine"))[0] == 0


def test_a_link_in_place_of_the_program_is_refused(file: Path, home: Path, tmp_path: Path) -> None:
    assert run(file, home)[0] == 0
    (program,) = programs(home).iterdir()
    program.rename(tmp_path / "elsewhere")
    program.symlink_to(tmp_path / "elsewhere")
    assert "is not yours alone" in run(file, home)[2]


def test_another_python_is_named(file: Path, home: Path) -> None:
    with zipfile.ZipFile(file) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(content["manifest.json"]) | {"python": "3.99"}
    with zipfile.ZipFile(file, "w") as archive:
        for name, raw in (content | {"manifest.json": json.dumps(manifest).encode()}).items():
            archive.writestr(name, raw)
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert run(file, home) == (1, "", f"hpcdash: this file is for Python 3.99; this is {own}\n")


def test_beside_it_is_a_list_of_what_is_in_it(file: Path) -> None:
    listed = json.loads(file.with_suffix(".cdx.json").read_text())
    assert listed["bomFormat"] == "CycloneDX"
    (own, other) = listed["components"]
    assert (own["purl"], own["licenses"]) == (
        "pkg:pypi/hpcdash@9.9",
        [{"license": {"name": "MIT"}}],
    )
    assert len(other["hashes"][0]["content"]) == 64
