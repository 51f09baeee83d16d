"""Scripts, names, folders and environments as somebody may hand them in to the embedded queue,
PBS's among them.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.embedded.queue_lab import QueueLab
from tests.support.records import for_each


@for_each(
    ("script", "words"),
    [
        (b"echo hi\n", "its first line does not begin with #!"),
        (b"", "its first line does not begin with #!"),
        (b"#!/bin/sh\r\necho hi\r\n", "DOS line endings"),
        (b"#!/bin/sh\necho \0\n", "NUL bytes"),
        (b"\x7fELF\x02\x01\x01\0", "its first line does not begin with #!"),
        (b"#!/bin/sh\n" + b"#" * (4 << 20), "more than 4 MiB"),
        (
            b"#!/bin/sh\n#SBATCH --time=soon\n",
            "line 2 of the script: --time: 'soon' is not a duration",
        ),
        (b"#!/bin/sh\n#SBATCH --no-such\n", "line 2 of the script: --no-such: unknown"),
        (b"#!/bin/sh\n#SBATCH --nodes=2\n", "2 nodes requested, but this machine is a single"),
        (b"#!/bin/sh\n#SBATCH -c 64\n", "requests 64 CPUs; this machine has 4"),
        (b"#!/bin/sh\n#SBATCH --array=5-1\n", "is an empty range"),
        (
            b"#!/bin/sh\n#SBATCH --array=0-200000\n",
            "200001 tasks exceed the queue's limit of 100000",
        ),
    ],
)
def test_what_is_no_batch_script_is_refused_in_words(
    queue: QueueLab, script: bytes, words: str
) -> None:
    done = queue.run("submit", stdin=script)
    assert (done.returncode, done.stdout) == (2, b"")
    assert words in done.stderr.decode()
    assert queue.rows("jobs") == []


@for_each(
    ("words", "complaint"),
    [
        (["--no-such", "job.sh"], "--no-such: unknown"),
        (["missing.sh"], "missing.sh: No such file or directory"),
        (["."], ".: Is a directory"),
        (["--wrap=true", "job.sh"], "--wrap replaces the script"),
        (["--token"], "--token needs a value"),
        (["--dependency=before:1", "job.sh"], "'before' is not one of"),
        (["--signal=XYZ@10", "job.sh"], "'XYZ' is not a signal"),
        (["--begin=someday", "job.sh"], "'someday' is not a time"),
    ],
)
def test_a_command_line_that_cannot_be_read_is_refused_in_words(
    queue: QueueLab, words: list[str], complaint: str
) -> None:
    (queue.work / "job.sh").write_text("#!/bin/sh\n")
    done = queue.run("submit", *words)
    assert done.returncode == 2
    assert complaint in done.stderr.decode()
    assert "Traceback" not in done.stderr.decode()


def test_a_job_that_cannot_be_started_has_failed_with_the_reason_in_words(queue: QueueLab) -> None:
    missing = queue.submit("true", "--chdir=/no/such/folder", "--output=/dev/null")
    unwritable = queue.submit("true", "--output=/no/such/folder/%j.out")
    unreadable = queue.submit("true", "--input=no-input")
    queue.run("submit", stdin=b"#!/no/such/interpreter -u\ntrue\n")
    os.mkfifo(queue.work / "pipe")
    nobody = queue.submit("true", "--output=pipe")
    reasons = {
        number: queue.ended(number) for number in (missing, unwritable, unreadable, "4", nobody)
    }
    assert {job.state for job in reasons.values()} == {"failed"}
    assert [job.reason for job in reasons.values()] == [
        "cannot change to /no/such/folder: No such file or directory",
        f"cannot write /no/such/folder/{unwritable}.out: No such file or directory",
        "cannot read no-input: No such file or directory",
        "cannot run /no/such/interpreter: No such file or directory",
        "cannot write " + str(queue.work / "pipe") + ": No such device or address",
    ]
    assert queue.rows("history", missing)[0]["exit_code"] == 126


def test_odd_bytes_in_names_paths_comments_and_the_environment_are_taken(queue: QueueLab) -> None:
    name = b"na\xffme \x1b[31m\xe2\x82\xac'\"$(touch x)"
    folder = os.fsencode(queue.work) + b"/odd \xfe \n $HOME '\""
    os.mkdir(folder)
    script = b'#!/bin/sh\nprintf \'%s|%s|\' "$SLURM_JOB_NAME" "$ODD" > seen\npwd >> seen\n'
    done = queue.run(
        "submit",
        "--token",
        b"tok\xffen",
        b"--job-name=" + name,
        b"--comment=\xf0\x28\x8c",
        stdin=script,
        cwd=Path(os.fsdecode(folder)),
        env={
            b"ODD": b"\xff\n=x",
            **{os.fsencode(key): os.fsencode(value) for key, value in queue.environment.items()},
        },
    )
    assert done.returncode == 0, done.stderr
    assert queue.ended("1").state == "completed"
    with open(folder + b"/seen", "rb") as seen:
        assert seen.read() == name + b"|\xff\n=x|" + folder + b"\n"
    row = queue.rows("jobs", "1")[0]
    assert row["name"] == name.decode(errors="replace")
    assert queue.ask("show", "1")["Comment"] == b"\xf0\x28\x8c".decode(errors="replace")
    assert queue.run("find", b"tok\xffen").stdout == b'{"id":"1"}\n'
    assert not (queue.work / "x").exists()


def test_a_path_of_any_depth_is_taken(queue: QueueLab) -> None:
    # Deeper than one path may be long.
    before = os.open(".", os.O_RDONLY)
    try:
        os.chdir(queue.work)
        for _ in range(18):
            os.mkdir("d" * 200)
            os.chdir("d" * 200)
        deep = os.getcwd()
    finally:
        os.fchdir(before)
        os.close(before)
    number = queue.submit("true", cwd=Path(deep))
    assert queue.ended(number).state == "completed"
    assert (Path(deep) / f"slurm-{number}.out").exists()


def test_a_folder_that_is_gone_is_no_place_to_submit_from(queue: QueueLab) -> None:
    gone = queue.work / "gone"
    gone.mkdir()
    (queue.work / "call.sh").write_text(f'cd "{gone}" && rmdir "{gone}" && exec "$@"')
    done = subprocess.run(
        ["sh", str(queue.work / "call.sh"), *queue.program, "submit", "--wrap=true"],
        capture_output=True,
        env=queue.environment,
        check=False,
    )
    assert (done.returncode, b"no longer exists" in done.stderr) == (2, True)


def test_an_environment_larger_than_the_system_takes_fails_in_words(queue: QueueLab) -> None:
    # Linux takes no variable of more than 128 KiB.
    script = f"#!/bin/sh\n#SBATCH --export=ALL,V={'x' * 140_000}\ntrue\n"
    assert queue.run("submit", stdin=script.encode()).returncode == 0
    assert queue.ended("1").reason == "the arguments and environment are too large for this system"


def test_a_queue_s_folder_may_have_any_name_and_be_relative(tmp_path: Path) -> None:
    queue = QueueLab(tmp_path / 'it\'s a "queue" $HOME;x', tmp_path / "work")
    number = queue.submit("srun sh -c 'echo $0 ok'; scontrol show hostnames > /dev/null || exit 9")
    assert queue.ended(number).state == "completed"
    assert queue.output(number) == "sh ok\n"
    done = subprocess.run(
        [
            sys.executable,
            "-P",
            "-m",
            "hpcdash.embedded",
            os.path.relpath(queue.folder, queue.work),
            "submit",
            "--wrap=true",
        ],
        capture_output=True,
        cwd=queue.work,
        env=queue.environment,
        check=True,
    )
    assert queue.ended(json.loads(done.stdout)["id"]).state == "completed"
    queue.end()


@pytest.mark.parametrize("umask", [0, 0o077, 0o777])
def test_only_its_owner_can_read_or_write_a_queue(tmp_path: Path, umask: int) -> None:
    queue = QueueLab(tmp_path / "outer" / "inner", tmp_path / "work")
    for path in (queue.folder / "slots.json", queue.folder, tmp_path / "outer"):
        path.unlink() if path.is_file() else path.rmdir()
    # Without a supervisor of this umask one is started with it.
    done = queue.run(
        "submit",
        "--output=/dev/null",
        stdin=b"#!/bin/sh\nwhile [ ! -e go ]; do sleep 0.02; done\n",
        umask=umask,
    )
    assert done.returncode == 0, done.stderr
    queue.wait("1", "running")
    modes: dict[Path, int] = {}
    for path in (tmp_path / "outer", queue.folder, *queue.folder.rglob("*")):
        # What is written anew is there under another name for a moment.
        with contextlib.suppress(FileNotFoundError):
            modes[path] = stat.S_IMODE(path.stat().st_mode)
    assert {path: oct(mode) for path, mode in modes.items() if mode & 0o077} == {}
    of = {path.name: mode for path, mode in modes.items() if path.parent == queue.folder}
    assert (of["queue.db"], of["wake"], of["supervisor.lock"], of["bin"]) == (
        0o600,
        0o600,
        0o600,
        0o700,
    )
    (queue.work / "go").touch()
    queue.end()


def test_a_queue_s_folder_is_closed_again_and_one_of_somebody_else_refused(
    queue: QueueLab, tmp_path: Path
) -> None:
    queue.folder.chmod(0o755)
    queue.rows("jobs")
    assert stat.S_IMODE(queue.folder.stat().st_mode) == 0o700
    if os.geteuid() != 0:
        pytest.skip("giving a folder to another user takes root")
    theirs = tmp_path / "theirs"
    theirs.mkdir(mode=0o777)
    os.chown(theirs, 12345, 12345)
    other = QueueLab.__new__(QueueLab)
    other.folder, other.work, other.environment = theirs, queue.work, queue.environment
    done = other.run("jobs")
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"belongs to uid 12345, not to you" in done.stderr
    assert list(theirs.iterdir()) == []


def test_slots_that_cannot_be_read_are_told(queue: QueueLab) -> None:
    (queue.folder / "slots.json").write_text('{"cpus": "many"}')
    done = queue.run("jobs")
    assert done.returncode == 2
    assert b"slots.json: must contain only numbers" in done.stderr
    queue.set_slots(cpus=1)


def test_a_pbs_script_runs_unchanged(queue: QueueLab) -> None:
    lines = [
        "#!/bin/bash",
        "#PBS -N sweep",
        "#PBS -l select=1:ncpus=2,walltime=00:10:00",
        "#PBS -J 3-4",
        "#PBS -j oe -o sweep.^array_index^.log",
        "#PBS -v LEVEL=7",
        'cd "$PBS_O_WORKDIR"',
        'echo "$PBS_JOBNAME $PBS_ARRAY_INDEX $PBS_JOBID $NCPUS $LEVEL $PBS_ENVIRONMENT" > '
        '"$PBS_ARRAY_INDEX"; pwd',
    ]
    done = queue.run("submit", stdin="\n".join(lines).encode())
    assert done.returncode == 0, done.stderr
    node = queue.ask("probe")["node"]
    for task in (3, 4):
        job = queue.ended(f"1_{task}")
        assert (job.state, job.cpus, job.limit_seconds) == ("completed", 2, 600)
        assert (
            queue.work / str(task)
        ).read_text() == f"sweep {task} 1[{task}].{node} 2 7 PBS_BATCH\n"
        assert (queue.work / f"sweep.{task}.log").read_text() == f"{queue.work}\n"


def test_a_pbs_script_may_depend_on_a_job_by_its_full_name(queue: QueueLab) -> None:
    first = queue.submit('echo "$SLURM_JOB_ID" > first')
    script = f"#!/bin/sh\n#PBS -W depend=afterok:{first}.server.example\ntest -e first\n"
    assert queue.run("submit", stdin=script.encode()).returncode == 0
    assert queue.ended("2").state == "completed"
