"""The package as a zip that runs where nothing is installed, on the oldest Python it is for."""

import ast
import io
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import hpcdash.job
from hpcdash.job.zip import job_zip, main
from tests.job.oldest_python import oldest_python
from tests.support.records import for_each

pytestmark = pytest.mark.system
PACKAGE = Path(hpcdash.job.__file__).parent
SOURCES = sorted(PACKAGE.rglob("*.py"))
# What only the callback of a framework imports.
FRAMEWORKS = {
    "huggingface.py": {"transformers"},
    "lightning.py": {"lightning", "pytorch_lightning"},
}
OLDEST = (3, 8)
# 30 ms where argparse's source is compiled in 12: how fast the machine is today says nothing of the
# library.
MAX_IMPORT_MS, COMPILE_MS = 30, 12

EVERYTHING = """
import sys, time
begun = time.process_time()
from hpcdash.job import Checkpoints, MetricsWriter, TrainingGuard
took = time.process_time() - begun
assert not {"pathlib", "pkgutil", "typing", "urllib.parse"} & set(sys.modules)
import hpcdash, hpcdash.job, os, pkgutil, importlib
assert hpcdash.__file__.startswith(sys.argv[1]), hpcdash.__file__
for module in pkgutil.walk_packages(hpcdash.job.__path__, "hpcdash.job."):
    if module.name.rpartition(".")[2] not in ("huggingface", "lightning"):
        importlib.import_module(module.name)
for name in hpcdash.job._MODULES:
    getattr(hpcdash.job, name)
from hpcdash.job import current_job_context
checkpoints = Checkpoints("checkpoints", keep=2)
guard = TrainingGuard(save_every_steps=3, metrics="metrics.jsonl", kill="KILL", save="SAVE", look_every_seconds=0)
for step in range(1, 100):
    if step == 11: open("KILL", "w").close()
    guard.step(step, loss=1 / step)
    if guard.should_save():
        with checkpoints.saving(step) as folder:
            (folder / "model").write_text(str(step))
    if guard.should_stop():
        break
guard.close()
assert len(open("metrics.jsonl").readlines()) == 11
assert [found.step for found in checkpoints.all()] == [11, 9], checkpoints.all()
assert current_job_context().rank is None
import argparse
with open(argparse.__file__) as file:
    source = file.read()
begun = time.process_time()
compile(source, "argparse.py", "exec")
print(took * 1000, (time.process_time() - begun) * 1000)
"""


def run_everything(python: str, folder: Path) -> tuple[float, float]:
    """CPU milliseconds that the import of three of its names takes from a zip (no site packages, a
    foreign folder), and that argparse's source takes to compile.
    """
    made, elsewhere = folder / "job.zip", folder / "elsewhere"
    made.write_bytes(job_zip())
    elsewhere.mkdir(exist_ok=True)
    for path in elsewhere.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    ended = subprocess.run(
        [python, "-S", "-s", "-W", "error", "-c", EVERYTHING, str(made)],
        cwd=elsewhere,
        env={"PYTHONPATH": str(made), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    imported, compiled = map(float, ended.stdout.split())
    return imported, compiled


def test_all_of_it_runs_from_a_zip_on_the_oldest_python(tmp_path: Path) -> None:
    run_everything(oldest_python(), tmp_path)


def test_all_of_it_runs_from_a_zip_on_this_python_and_is_imported_at_once(tmp_path: Path) -> None:
    imported, compiled = zip(
        *(run_everything(sys.executable, tmp_path) for _ in range(5)), strict=True
    )
    assert min(imported) / min(compiled) < MAX_IMPORT_MS / COMPILE_MS


def test_the_program_writes_the_same_zip_each_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "job.zip"
    command = [sys.executable, "-m", "hpcdash.job.zip", str(out)]
    subprocess.run(command, cwd=PACKAGE.parents[1], check=True, capture_output=True, text=True)
    assert out.read_bytes() == job_zip()
    assert os.listdir(tmp_path) == ["job.zip"]
    assert main([]) == 2
    assert main([str(tmp_path / "gone" / "job.zip")]) == 1
    assert "usage: " in capsys.readouterr().err


@for_each("path", SOURCES, ids=lambda path: path.name)
def test_every_file_is_of_the_oldest_python_and_imports_the_standard_library_alone(
    path: Path,
) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"), feature_version=OLDEST)
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            imported.add(node.module or "")
    own = {name for name in imported if name == "hpcdash.job" or name.startswith("hpcdash.job.")}
    others = {name.partition(".")[0] for name in imported - own} - set(sys.stdlib_module_names)
    assert others <= FRAMEWORKS.get(path.name, set())


def test_a_file_that_is_too_new_is_seen() -> None:
    with pytest.raises(SyntaxError):
        ast.parse("match 1:\n    case 1: pass\n", feature_version=OLDEST)


def test_an_hpcdash_that_is_installed_as_well_is_not_hidden(tmp_path: Path) -> None:
    (tmp_path / "job.zip").write_bytes(job_zip())
    code = "import hpcdash.job, hpcdash.errors; print(hpcdash.job.__file__, hpcdash.__version__)"
    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": f"{tmp_path}/job.zip:{tmp_path}/other.zip:{PACKAGE.parents[1]}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.stdout == f"{tmp_path}/job.zip/hpcdash/job/__init__.py {hpcdash.__version__}\n", (
        ended.stderr
    )


def test_the_command_in_a_job_takes_its_own_files_and_not_those_of_an_older_zip(
    tmp_path: Path,
) -> None:
    with (
        zipfile.ZipFile(io.BytesIO(job_zip())) as new,
        zipfile.ZipFile(tmp_path / "job.zip", "w") as old,
    ):
        old.writestr("hpcdash/__init__.py", new.read("hpcdash/__init__.py"))
        old.writestr("hpcdash/job/__init__.py", "")
    (tmp_path / "request.toml").write_text('name = "again"\ncommand = "true"\n')
    ended = subprocess.run(
        [sys.executable, "-m", "hpcdash", "render", "request.toml", "--for", "slurm"],
        cwd=tmp_path,
        env={
            "PYTHONPATH": f"{tmp_path}/job.zip:{PACKAGE.parents[1]}",
            "HOME": str(tmp_path),
            "PATH": "/usr/bin:/bin",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "#SBATCH --job-name=again" in ended.stdout


def test_the_zip_is_made_anew_of_one_that_it_was_read_from(tmp_path: Path) -> None:
    (tmp_path / "job.zip").write_bytes(job_zip())
    ended = subprocess.run(
        [sys.executable, "-m", "hpcdash.job.zip", "again.zip"],
        cwd=tmp_path,
        env={"PYTHONPATH": "job.zip"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (tmp_path / "again.zip").read_bytes() == job_zip(), ended.stderr
