"""A stub keeps the directives and runs what its file holds when it starts, not when it was
submitted.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from hpcdash.backends.script.stub import stub_script, stub_target
from hpcdash.errors import UsageError
from tests.support.records import for_each

pytestmark = pytest.mark.system
SCRIPT = """#!/bin/bash
# a note
#SBATCH --time=10
#PBS -l select=1

#SBATCH --array=1-3%1
echo first "$1"
#SBATCH --too=late
"""


def run(stub: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """As a scheduler does: a copy of the script, run from elsewhere."""
    copy = folder / "slurm_script"
    copy.write_text(stub)
    copy.chmod(0o700)
    return subprocess.run([str(copy), *arguments], capture_output=True, text=True, check=False)


def test_directives_before_the_first_command_are_kept_in_their_order() -> None:
    lines = stub_script(SCRIPT, "/home/a/real.sh").splitlines()
    assert lines[0] == "#!/bin/bash"
    assert [line for line in lines if line.startswith(("#SBATCH", "#PBS"))] == [
        "#SBATCH --time=10",
        "#PBS -l select=1",
        "#SBATCH --array=1-3%1",
    ]


@pytest.mark.parametrize(
    "interpreter", ["/bin/sh", "/bin/bash", "/usr/bin/env bash", "/bin/bash -e"]
)
def test_what_the_file_holds_when_it_starts_is_run_with_the_arguments(
    interpreter: str, tmp_path: Path
) -> None:
    real = tmp_path / "it's a real one.sh"
    text = SCRIPT.replace("/bin/bash", interpreter)
    real.write_text(text)
    stub = stub_script(text, str(real))
    assert run(stub, tmp_path, "x").stdout == "first x\n"
    real.write_text(text.replace("echo first", "echo second"))
    assert run(stub, tmp_path, "x").stdout == "second x\n"


@pytest.mark.parametrize("shell", ["/bin/sh", "/bin/bash"])
def test_the_status_of_what_is_read_is_the_jobs(shell: str, tmp_path: Path) -> None:
    real = tmp_path / "real.sh"
    real.write_text("false")
    assert run(stub_script(f"#!{shell}\n", str(real)), tmp_path).returncode == 1
    real.write_text("exit 7\necho not reached\n")
    assert run(stub_script(f"#!{shell}\n", str(real)), tmp_path).returncode == 7


@pytest.mark.parametrize("shell", ["/bin/sh", "/bin/bash"])
def test_a_file_that_is_gone_fails_the_job_and_says_which(shell: str, tmp_path: Path) -> None:
    ended = run(stub_script(f"#!{shell}\n", str(tmp_path / "gone.sh")), tmp_path)
    assert ended.returncode == 66
    assert str(tmp_path / "gone.sh") in ended.stderr


def test_a_script_that_is_no_shells_is_given_to_its_interpreter(tmp_path: Path) -> None:
    real = tmp_path / "train.py"
    text = "#!/usr/bin/env python3\n#SBATCH --time=5\nimport sys\nprint(sys.argv[1])\n"
    real.write_text(text)
    stub = stub_script(text, str(real))
    assert "#SBATCH --time=5\n" in stub
    assert run(stub, tmp_path, "two words").stdout == "two words\n"


@pytest.mark.skipif(shutil.which("csh") is None, reason="no csh here")
def test_a_c_shell_sources_it_too(tmp_path: Path) -> None:
    real = tmp_path / "real.csh"
    real.write_text("#!/bin/csh\nexit 5\n")
    assert run(stub_script("#!/bin/csh\n", str(real)), tmp_path).returncode == 5


@pytest.mark.parametrize("shell", ["/bin/sh", "/bin/bash"])
def test_one_that_runs_goes_on_with_the_file_it_began_with(shell: str, tmp_path: Path) -> None:
    real, new, gate = tmp_path / "real.sh", tmp_path / "new.sh", tmp_path / "gate"
    os.mkfifo(gate)
    padding = "".join(f": {number}\n" for number in range(5000))
    real.write_text(f"echo began\nread line < {gate}\n{padding}echo old\n")
    new.write_text("echo new\n" * 3000)
    copy = tmp_path / "script"
    copy.write_text(stub_script(f"#!{shell}\n", str(real)))
    with subprocess.Popen([shell, str(copy)], stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "began\n"
        new.replace(real)
        gate.write_text("go\n")
        assert running.stdout.read() == "old\n"


def test_a_stub_tells_its_file_and_another_script_none() -> None:
    assert stub_target(stub_script(SCRIPT, "/home/a/real one.sh")) == "/home/a/real one.sh"
    assert stub_target(SCRIPT) is None


@for_each(
    ("script", "path", "words"),
    [
        ("echo no\n", "/a", "does not start with #!"),
        (SCRIPT, "relative.sh", "not an absolute path"),
        (SCRIPT, "/a\n/b", "not an absolute path"),
    ],
)
def test_what_cannot_be_read_later_is_refused(script: str, path: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        stub_script(script, path)
