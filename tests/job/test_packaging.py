"""The bash before the runner, run by bash: which Python starts it, what it can import, and what is
left afterwards.
"""

from __future__ import annotations

import importlib.util
import os
import pickle
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import hpcdash.job
from hpcdash.backends.script.call import venv_text
from hpcdash.backends.script.containers import container_command
from hpcdash.backends.script.containers.words import Word
from hpcdash.domain.request import Container, Runtime, SlotType
from hpcdash.job.pickles import packed
from tests.job.runner_scripts import call_text, runner_lines, runner_script
from tests.job.tiny_wheel import tiny_wheel

pytestmark = pytest.mark.system
ROOT = str(Path(hpcdash.job.__file__).parent.parent.parent)
BASH = str(shutil.which("bash"))
CODE = """
import sys

def where(*given):
    return sys.prefix, given

def fails():
    raise RuntimeError("nan")
"""
OFFLINE = {"PIP_NO_INDEX": "1"}
# What is asked of it is noted, and done by the real one.
PYTHON = f"""#!/bin/bash
echo "$*" >> "$ASKED"
{{before}}
exec {sys.executable} "$@"
"""
# Makes a folder that passes for a venv, at once, where only who makes it is looked at.
QUICK = """case "$*" in
"-m venv "*) made="${@: -1}"; mkdir -p "$made/bin"; : > "$made/pyvenv.cfg"; ln -s "$0" "$made/bin/python"; exit ;;
*"-m pip "*) exit ;;
esac"""


class Site:
    """A folder with a space and a quote in its name, tiny code, and a Python that notes what it is
    asked.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "it's here"
        self.folder.mkdir()
        self.out = self.folder / "out.pkl"
        self.started = 0
        self.environment = {
            "PATH": os.environ["PATH"],
            "ASKED": str(folder / "asked"),
            "HOME": str(folder),
        } | OFFLINE
        self.python = str(self.program("asked-python", PYTHON.format(before="")))

    def program(self, name: str, text: str) -> Path:
        path = self.folder / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
        return path

    def use_quick_venvs(self) -> None:
        self.python = str(self.program("quick", PYTHON.format(before=QUICK)))
        (self.folder / "tiny.py").write_text(CODE)

    def code(self) -> str:
        """A folder to be on PYTHONPATH."""
        folder = self.folder / "code"
        folder.mkdir()
        (folder / "tiny.py").write_text(CODE)
        return str(folder)

    def wheel(self) -> str:
        """A wheel of the module `tiny`."""
        return tiny_wheel(self.folder, CODE)

    def call(self, function: str = "where", **fields: Any) -> str:
        return call_text(f"tiny:{function}", str(self.folder), output=str(self.out), **fields)

    def start(self, text: str, **env: str) -> subprocess.Popen[str]:
        # bash reads a script as it runs: one that runs is not written again.
        self.started += 1
        script = self.folder / f"script-{self.started}"
        script.write_text(f"#!/bin/bash\nset -euo pipefail\n{text}")
        return subprocess.Popen(
            [BASH, str(script)],
            cwd=self.folder,
            env={**self.environment, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, text: str, **env: str) -> tuple[int, str, str]:
        process = self.start(text, **env)
        out, err = process.communicate()
        return process.returncode, out, err

    def result(self, ending: str = "") -> Any:
        return pickle.loads(self.out.with_name(f"out{ending}.pkl").read_bytes())

    @property
    def asked(self) -> list[str]:
        return Path(self.environment["ASKED"]).read_text().splitlines()


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.mark.parametrize(
    ("wheel", "source"), [("/jobs/x.whl", ""), ("", "/my src")], ids=["wheel", "source"]
)
@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_has_nothing_to_say(wheel: str, source: str, tmp_path: Path) -> None:
    script = tmp_path / "script"
    call = call_text(
        "m:f",
        "/jobs/a b",
        output="/jobs/o.pkl",
        items_file="/jobs/i",
        task="SLURM_ARRAY_TASK_ID",
        sys_path=("/c d",),
    )
    venv = venv_text("/jobs/a b/env", "python3", wheel, source, 9)
    script.write_text("#!/bin/bash\n" + runner_script(call, "", ("/c d",), venv=venv))
    words = ["shellcheck", "-e", "SC2317", str(script)]
    checked = subprocess.run(words, capture_output=True, text=True)
    assert (checked.stdout, checked.returncode) == ("", 0)


# -- the node's own Python


def test_the_runners_status_is_the_scripts(site: Site) -> None:
    text = runner_script(site.call("fails"), site.python, (site.code(), ROOT))
    status, _, err = site.run(text)
    assert status == 1
    assert err.endswith("RuntimeError: nan\n")


def test_each_array_task_has_its_item_and_an_output_of_its_own(site: Site) -> None:
    site.code()
    (site.folder / "items").write_bytes(packed(["a", "b"]))
    for variable, task in (("SLURM_ARRAY_TASK_ID", "1"), ("PBS_ARRAY_INDEX", "0")):
        call = site.call(items_file=str(site.folder / "items"), task=variable)
        text = runner_script(call, site.python, (str(site.folder / "code"), ROOT))
        assert site.run(text, **{variable: task})[0] == 0
    assert (site.result("-0")[1], site.result("-1")[1]) == (("a",), ("b",))


# -- wheel


def packaged_wheel(
    site: Site, *, source: str = "", array_tasks: int = 1, stale_seconds: int = 180
) -> str:
    venv = venv_text(
        str(site.folder / "env"),
        site.python,
        "" if source else site.wheel(),
        source,
        array_tasks,
        stale_seconds=stale_seconds,
    )
    call = site.call(items_file=str(site.folder / "items"), task="SLURM_ARRAY_TASK_ID")
    return runner_script(call, site.python, (ROOT,), venv=venv)


def test_four_of_an_array_that_race_share_one_venv_and_the_last_removes_it(site: Site) -> None:
    (site.folder / "items").write_bytes(packed(list("abcd")))
    text = packaged_wheel(site, array_tasks=4)
    racing = [site.start(text, SLURM_ARRAY_TASK_ID=str(number)) for number in range(4)]
    ended = [(process.communicate()[1], process.returncode) for process in racing]
    assert ended == [("", 0)] * 4
    (prefix,) = {site.result(f"-{number}")[0] for number in range(4)}
    assert Path(prefix).parent == site.folder / "env"
    assert [site.result(f"-{number}")[1] for number in range(4)] == [("a",), ("b",), ("c",), ("d",)]
    assert len([line for line in site.asked if line.startswith("-m venv")]) == 1
    assert not (site.folder / "env").exists()


@pytest.mark.parametrize("path", ["", ":"])
def test_what_the_wheel_holds_is_run_and_not_the_working_copy_where_the_job_starts(
    site: Site, path: str
) -> None:
    (site.folder / "items").write_bytes(packed(["a"]))
    (site.folder / "tiny.py").write_text(
        "def where(*given):\n    return 'the working copy', given\n"
    )
    status, _, err = site.run(packaged_wheel(site), SLURM_ARRAY_TASK_ID="0", PYTHONPATH=path)
    assert (status, err) == (0, "")
    assert site.result("-0")[0].startswith(str(site.folder / "env"))


def test_a_wheel_that_cannot_be_installed_ends_the_job_and_leaves_nothing_half_made(
    site: Site,
) -> None:
    site.python = str(
        site.program(
            "no-pip", PYTHON.format(before=QUICK.replace('pip "*) exit', 'pip "*) exit 2'))
        )
    )
    text = packaged_wheel(site)
    status, _, err = site.run(text)
    assert status == 1
    assert "hpcdash: could not create the job's environment" in err
    assert not site.out.exists()
    assert not (site.folder / "env").exists()


def test_a_builder_that_shows_no_life_is_replaced(site: Site) -> None:
    site.use_quick_venvs()
    (site.folder / "items").write_bytes(packed(["a"]))
    (site.folder / "env" / "lock").mkdir(parents=True)
    (site.folder / "env" / "lock" / "other.77").touch()
    status, _, err = site.run(packaged_wheel(site, stale_seconds=1), SLURM_ARRAY_TASK_ID="0")
    assert status == 0
    assert "is not alive; removing the lock" in err
    assert not (site.folder / "env").exists()


def test_a_job_that_is_ended_while_it_builds_leaves_nothing(site: Site) -> None:
    fifo = site.folder / "building"
    os.mkfifo(fifo)
    site.python = str(
        site.program(
            "slow", PYTHON.format(before=f'mkdir -p "${{@: -1}}"; echo > "{fifo}"; sleep 600')
        )
    )
    process = site.start(packaged_wheel(site))
    fifo.read_text()
    assert (site.folder / "env" / "lock").exists()
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait() != 0
    process.communicate()
    assert not (site.folder / "env").exists()


def test_a_folder_that_cannot_be_written_is_said_and_not_waited_for(site: Site) -> None:
    (site.folder / "env").mkdir()
    site.program("mkdir", '#!/bin/bash\n[[ "$*" == *lock* ]] && exit 1\nexec /bin/mkdir "$@"\n')
    status, _, err = site.run(packaged_wheel(site), PATH=f"{site.folder}/bin:{os.environ['PATH']}")
    assert status == 1
    assert "check that" in err


@pytest.mark.skipif(
    importlib.util.find_spec("hatchling") is None, reason="hatchling is not installed"
)
def test_a_project_is_built_on_the_node_without_a_network(site: Site) -> None:
    (site.folder / "items").write_bytes(packed(["a"]))
    project = _project(site)
    text = packaged_wheel(site, source=str(project))
    status, _, err = site.run(text, SLURM_ARRAY_TASK_ID="0")
    assert (status, err) == (0, "")
    assert Path(site.result("-0")[0]).parent == site.folder / "env"
    assert not (site.folder / "env").exists()


def test_what_a_build_needs_is_fetched_only_where_it_fails_without(site: Site) -> None:
    site.use_quick_venvs()
    site.python = str(site.program("no-back-end", PYTHON.format(before=f"{BUILDS}\n{QUICK}")))
    text = packaged_wheel(site, source="/src")
    status, _, err = site.run(text, SLURM_ARRAY_TASK_ID="0", ROOT=ROOT)
    assert (status, "building again" in err) == (1, True)
    builds = [line for line in site.asked if " pip wheel " in line]
    assert ["--no-build-isolation" in line for line in builds] == [True, False]


BUILDS = 'case "$*" in *--no-build-isolation*) exit 1 ;; esac'


def _project(site: Site) -> Path:
    project = Path(site.code())
    (project / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
        '[project]\nname = "tiny"\nversion = "1.0"\nrequires-python = ">=3.8"\n'
        '[tool.hatch.build.targets.wheel]\ninclude = ["tiny.py"]\n'
    )
    return project


# -- container


def test_another_runtime_runs_the_same_words(site: Site) -> None:
    site.program(
        "apptainer", '#!/bin/bash\nwhile [ "$1" != /net.sif ]; do shift; done\nshift\nexec "$@"\n'
    )
    words = [Word(site.call(), is_shell=True)]
    container = Container(Runtime.APPTAINER, "/net.sif")
    command = container_command(container, words, slot_type=SlotType.CPU, environment={})
    text = "\n".join([*runner_lines(site.python, (site.code(), ROOT)), *command.lines()])
    status, _, err = site.run(text + "\n", PATH=f"{site.folder}/bin:{os.environ['PATH']}")
    assert (status, err) == (0, "")
    assert site.result()[1] == ()
