"""A run of the tests ends what it starts, whatever becomes of it, and has an end itself."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.support.sshd import commands_with

# One run inside the tests at a time: a run of another folder may take the number of one that was
# killed.
pytestmark = pytest.mark.xdist_group("suite")
ROOT = Path(__file__).resolve().parent.parent
NEEDS_LINUX = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux gives orphans to who asks for them"
)
# A daemon, which has another session and no parent any more.
LEAVES = (
    'import os, signal, subprocess, sys, time\nsubprocess.run(["setsid", "--fork", "sleep", '
    '"{word}"], check=True)\n'
)
DIES = "os.kill(os.getpid(), signal.SIGKILL)"


def run_suite(folder: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    """A run of its own, of one file with the body of one test."""
    file = folder / "test_it.py"
    file.write_text("def test_it():\n" + "".join(f"    {line}\n" for line in text.splitlines()))
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("HPCDASH_TEST_")
    }
    words = (
        "-c",
        ROOT / "pyproject.toml",
        "-p",
        "tests.conftest",
        "-p",
        "no:cacheprovider",
        *options,
        file,
    )
    return subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        env={**environment, "TMPDIR": str(folder)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.system
@NEEDS_LINUX
@pytest.mark.parametrize(
    ("end", "options"),
    [("pass", ()), ("assert False", ()), (DIES, ())],
    ids=["passes", "fails", "is killed"],
)
def test_what_a_test_leaves_ends_with_its_run(
    tmp_path: Path, end: str, options: tuple[str, ...]
) -> None:
    word = f"8877.{time.monotonic_ns()}"
    done = run_suite(tmp_path, LEAVES.format(word=word) + end, *options)
    assert (done.returncode == 0) == (end == "pass"), done.stdout
    assert commands_with(word) == []
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("hpcdash-test")] == []


@pytest.mark.system
@NEEDS_LINUX
def test_a_lost_worker_ends_the_run_with_what_it_left_and_its_test_is_named(tmp_path: Path) -> None:
    word = f"8879.{time.monotonic_ns()}"
    done = run_suite(tmp_path, LEAVES.format(word=word) + DIES, "-n", "1")
    assert done.returncode != 0
    assert "crashed while running" in done.stdout
    assert "FAILED ::test_it" in done.stdout
    assert commands_with(word) == []
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("hpcdash-test")] == []


@pytest.mark.system
@NEEDS_LINUX
def test_a_run_whose_first_process_is_killed_is_tidied_up_by_the_next(tmp_path: Path) -> None:
    word = f"8878.{time.monotonic_ns()}"
    killed = run_suite(
        tmp_path,
        LEAVES.format(word=word)
        + 'os.kill(int(os.environ["HPCDASH_TEST_PARENT"]), 9)\ntime.sleep(60)',
    )
    assert killed.returncode == -9
    assert len(commands_with(word)) == 1
    assert run_suite(tmp_path, "pass").returncode == 0
    assert commands_with(word) == []
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("hpcdash-test")] == []


@pytest.mark.system
@NEEDS_LINUX
def test_runs_side_by_side_have_folders_and_numbers_of_their_own(tmp_path: Path) -> None:
    said = 'import os\nprint("is", os.environ["HPCDASH_TEST_RUN"], os.environ["TMPDIR"])'
    words = run_suite(tmp_path, said, "-s").stdout.partition("is ")[2].split()
    assert words[0] != os.environ["HPCDASH_TEST_RUN"]
    assert words[1] == str(tmp_path / f"hpcdash-test-{words[0]}")
    assert Path(tempfile.gettempdir()).name == f"hpcdash-test-{os.environ['HPCDASH_TEST_RUN']}"


@pytest.mark.system
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import time\ntime.sleep(60)", "Timeout (>1.0s)"),
        # asyncio reports what a callback raises, and goes on.
        (
            "import asyncio, time\nasync def wait():\n    "
            "asyncio.get_running_loop().call_soon(time.sleep, 3)\n"
            "    await asyncio.sleep(60)\nasyncio.run(wait())",
            "Timeout (0:00:05)!",
        ),
    ],
    ids=["at its limit", "a while later"],
)
def test_a_test_that_hangs_is_ended(tmp_path: Path, text: str, words: str) -> None:
    done = run_suite(tmp_path, text, "--timeout", "1", "-o", "hard_timeout=5")
    assert done.returncode != 0
    assert words in done.stdout + done.stderr


@pytest.mark.system
def test_a_test_fails_that_leaves_a_coroutine_unawaited(tmp_path: Path) -> None:
    done = run_suite(tmp_path, "async def left():\n    pass\nleft()\n")
    assert (done.returncode, "left' was never awaited" in done.stdout) == (1, True), done.stdout
