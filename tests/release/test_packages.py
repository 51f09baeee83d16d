"""The wheel, installed into an empty environment, works in an empty home."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.support.program import Program, home_with
from tests.support.screen import dashboard

pytestmark = pytest.mark.system

_ROOT = Path(__file__).parents[2]
_JOB = "#!/bin/sh\n#SBATCH --job-name=first\necho done\n"


def run(*argv: str | Path, home: Path, seconds: float = 120.0) -> str:
    """stdout of a command that ends well, in `home` and with nothing of this environment."""
    environment = {"HOME": str(home), "PATH": os.defpath, "LANG": "C.UTF-8"}
    environment |= {"SLURM_CONF": "/dev/null", "PBS_CONF_FILE": "/dev/null"}
    ended = subprocess.run(argv, env=environment, cwd=home, capture_output=True, text=True)
    assert ended.returncode == 0, ended
    return ended.stdout


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel and the sdist of this tree, in a folder."""
    folder = tmp_path_factory.mktemp("packages")
    argv = (sys.executable, "-m", "hatchling", "build", "-d", str(folder))
    subprocess.run(argv, cwd=_ROOT, check=True, capture_output=True)
    return folder


def only(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found


def use(program: Path, home: Path) -> None:
    """As a person would on the first day."""
    assert run(program, "--version", home=home).startswith("hpcdash ")
    (home / "job.sh").write_text(_JOB)
    job = run(program, "--local", "submit", "job.sh", home=home).strip()
    assert job.isdecimal()
    assert "first" in run(program, "--local", "show", job, home=home)
    assert "everyday" in run(program, "replay", home=home)
    assert (home / ".local" / "state" / "hpcdash").is_dir()


def test_the_wheel_alone_has_all_that_the_program_reads(packages: Path, tmp_path: Path) -> None:
    home, environment = tmp_path / "home", tmp_path / "environment"
    home.mkdir()
    venv.create(environment, symlinks=True)
    site = only(environment, "lib/python3.*/site-packages")
    # What it depends on, and not the checkout: files *.pth there are not read.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    wheel = only(packages, "*.whl")
    pip = (sys.executable, "-m", "pip", "--python", environment / "bin" / "python")
    run(
        *pip,
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        "--disable-pip-version-check",
        wheel,
        home=home,
    )
    use(environment / "bin" / "hpcdash", home)
    where = run(
        environment / "bin" / "python", "-c", "import hpcdash; print(hpcdash.__file__)", home=home
    )
    assert Path(where.strip()).is_relative_to(environment)
    assert (environment / "share" / "man" / "man1" / "hpcdash-submit.1").is_file()


def content_of(wheel: Path) -> dict[str, bytes]:
    """Each file's; RECORD lists them in the order of the folders."""
    with ZipFile(wheel) as files:
        return {name: files.read(name) for name in files.namelist() if not name.endswith("/RECORD")}


def test_the_wheel_has_all_shell_files(packages: Path) -> None:
    written = {path.relative_to(_ROOT).as_posix() for path in (_ROOT / "hpcdash").rglob("*.sh")}
    assert written <= set(content_of(only(packages, "*.whl")))


def test_a_wheel_of_the_sdist_is_the_same(packages: Path, tmp_path: Path) -> None:
    subprocess.run(("tar", "-xzf", only(packages, "*.tar.gz"), "-C", tmp_path), check=True)
    argv = (sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path))
    subprocess.run(argv, cwd=only(tmp_path, "hpcdash-*"), check=True, capture_output=True)
    assert content_of(only(tmp_path, "*.whl")) == content_of(only(packages, "*.whl"))


def pythons() -> list[str]:
    """One interpreter of each version from 3.11 on."""
    found: dict[str, str] = {}
    places = [
        *Path.home().glob(".pyenv/versions/*/bin/python"),
        *(f"python3.{minor}" for minor in range(11, 20)),
    ]
    for name in [sys.executable, *map(str, places)]:
        program = shutil.which(name)
        code = "import sys; sys.version_info >= (3, 11) and print(*sys.version_info[:2], sep='.')"
        if program is not None:
            said = subprocess.run(
                (program, "-c", code), capture_output=True, text=True
            ).stdout.strip()
            if said:
                found.setdefault(said, program)
    return [found[version] for version in sorted(found)]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["*.whl", "*.tar.gz"])
def test_each_python_here_installs_it_from_the_registry(
    packages: Path, tmp_path: Path, kind: str
) -> None:
    for number, python in enumerate(pythons()):
        home, environment = tmp_path / f"home {number}", tmp_path / str(number)
        home.mkdir()
        subprocess.run((python, "-m", "venv", environment), check=True)
        pip = (
            environment / "bin" / "pip",
            "install",
            "-q",
            "--disable-pip-version-check",
            only(packages, kind),
        )
        subprocess.run(pip, check=True)
        use(environment / "bin" / "hpcdash", home)


class UvProgram(Program, frozen=True):
    """hpcdash as `uvx hpcdash` runs it, with its wheel from a local index."""

    index: Path = Path()

    def argv(self, *words: str) -> tuple[str, ...]:
        uvx = Path(sys.executable).with_name("uvx")
        return (str(uvx), "--index", self.index.as_uri(), "hpcdash", *words)


@pytest.mark.long
async def test_uvx_runs_the_demo_from_an_index(packages: Path, tmp_path: Path) -> None:
    wheel = only(packages, "*.whl")
    index = tmp_path / "index"
    (index / "hpcdash").mkdir(parents=True)
    shutil.copy(wheel, index / "hpcdash")
    (index / "hpcdash" / "index.html").write_text(f'<a href="{wheel.name}">{wheel.name}</a>\n')
    network = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(("UV_", "SSL_CERT")) or name.lower().endswith("_proxy")
    }
    program = UvProgram(home_with(tmp_path / "home"), variables=network, index=index)
    async with dashboard(program, "demo", is_cold=True) as screen:
        await screen.until("allreduce-bench")
        screen.type("\x11")
        assert await screen.ended() == 0
