"""`hpcdash render`: the script alone on stdout, all that is said of it on stderr, no cluster
asked.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.support.program import Program, home_with

REQUEST = """\
name = "train llm"
script = "train.sh"
slots = 16
slots_per_node = 8
queue = "GPU"
time = "2h"
"""
CONFIG = """\
[launch]
storage_root = "/work/ada/launches"
[clusters.juno]
ssh = "nobody@127.0.0.1:9"
backend = "slurm"
[clusters.juno.launch]
tres_supported = false
queues.gpu.account = "llm"
queues.gpu.extra_args = ["--constraint=a100"]
[clusters.vega]
ssh = "nobody@127.0.0.1:9"
"""


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(home_with(tmp_path / "home"))


@pytest.fixture
def configured(program: Program) -> Program:
    program.config.parent.mkdir(parents=True)
    program.config.write_text(CONFIG)
    return program


@pytest.fixture
def request_file(program: Program) -> Path:
    folder = program.home / "runs"
    folder.mkdir()
    (folder / "train.sh").write_text("#!/bin/sh\n")
    (folder / "R.toml").write_text(REQUEST)
    return folder / "R.toml"


def directives(text: str, prefix: str) -> list[str]:
    return [
        line.removeprefix(f"{prefix} ")
        for line in text.splitlines()
        if line.startswith(f"{prefix} ")
    ]


def test_the_default_cluster_s_site_and_queue_count(
    configured: Program, request_file: Path
) -> None:
    done = configured("render", str(request_file))
    assert done.status == 0, done
    options = directives(done.text, "#SBATCH")
    assert {"--gres=gpu:8", "--account=llm", "--constraint=a100", "--partition=GPU"} <= set(options)
    folder = next(option for option in options if option.startswith("--output=")).removeprefix(
        "--output="
    )
    assert folder.startswith("/work/ada/launches/trainllm-")
    assert f"{Path(folder).parent}/files/train.sh" in done.text
    assert (
        "hpcdash: the job is named trainllm: 'train llm' is not a valid name here\n" in done.stderr
    )
    assert (
        f"hpcdash: the job's files and logs go to {Path(folder).parent}: create that folder"
        in done.stderr
    )
    assert configured("render", str(request_file)).stdout == done.stdout


def test_as_another_account_the_script_lies_beside_the_batch_script(
    configured: Program, request_file: Path
) -> None:
    request_file.write_text(f'{request_file.read_text()}\n[site]\nrun_as = "grace"\n')
    done = configured("render", str(request_file))
    assert done.status == 0, done
    assert "/files/" not in done.text
    assert re.search(r"bash /work/ada/launches/trainllm-[0-9a-f]+/train\.sh\n", done.text)


def test_what_is_printed_is_a_script_that_bash_reads(program: Program, request_file: Path) -> None:
    for scheduler in ("slurm", "pbs"):
        done = program(
            "render", str(request_file), "--for", scheduler, "--storage-root", "/scratch/jobs"
        )
        assert done.text.startswith("#!/bin/bash\n"), done
        assert "/scratch/jobs/trainllm-" in done.text
        assert subprocess.run(["bash", "-n"], input=done.stdout, check=False).returncode == 0


def test_without_a_folder_for_launches_a_relative_script_is_run_from_where_it_is(
    program: Program, request_file: Path
) -> None:
    done = program("render", "runs/R.toml", "--for", "pbs")
    assert str(request_file.parent / "train.sh") in done.text
    assert "which must exist on the cluster" in done.stderr


def test_a_call_says_where_its_arguments_are_and_needs_to_know_the_folder(
    program: Program, request_file: Path
) -> None:
    request_file.write_text('[call]\nfunction = "train:main"\nargs = [1]\nkwargs = { lr = 0.1 }\n')
    words = ("render", str(request_file), "--for", "slurm")
    assert (
        "the script reads its arguments from call-args.b64 and call-kwargs.b64"
        in program(*words, "--storage-root", "/j").stderr
    )
    assert "R.toml:1: call: the launch folder for its arguments" in program(*words).refused(2)


def test_a_request_may_come_from_stdin(program: Program) -> None:
    words = program.argv("render", "-", "--for", "slurm")
    done = subprocess.run(
        words,
        input=b'command = "hostname"\nslots = 0',
        env=program.environment,
        capture_output=True,
        check=True,
    )
    assert b"#SBATCH --nodes=1\n" in done.stdout
    wrong = subprocess.run(
        words, input=b'comand = "a"', env=program.environment, capture_output=True, check=False
    )
    assert wrong.returncode == 2
    assert b'hpcdash: stdin:1: comand: unknown key; did you mean "command"?' in wrong.stderr


def test_what_cannot_be_written_is_no_fault_of_the_program(
    configured: Program, request_file: Path
) -> None:
    argv = configured.argv("render", str(request_file))
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            argv, stdout=full, stderr=subprocess.PIPE, env=configured.environment, check=False
        )
    said = done.stderr.decode()
    assert done.returncode == 1
    assert "hpcdash: could not write the output: No space left on device\n" in said
    assert "hpcdash itself" not in said


def test_a_closed_stdout_takes_what_is_printed_and_stops_nothing(
    configured: Program, request_file: Path
) -> None:
    words = shlex.join(configured.argv("render", str(request_file)))
    done = subprocess.run(
        ["sh", "-c", f"{words} >&-"], capture_output=True, env=configured.environment, check=False
    )
    assert (done.returncode, b"hpcdash itself" in done.stderr) == (0, False)


def test_a_bad_request_is_to_be_fixed_and_no_word_is_of_submitting_it(
    program: Program, request_file: Path
) -> None:
    request_file.write_text("name = 3\n")
    said = program("render", str(request_file), "--for", "slurm").refused(2)
    assert "Fix the file." in said
    assert "submitted" not in said
    assert "Fix the file. Nothing was submitted." in program(
        "submit", "--local", str(request_file)
    ).refused(2)


def test_which_scheduler_it_is_for_has_to_be_known(configured: Program, request_file: Path) -> None:
    said = configured("render", str(request_file), "--cluster", "vega").refused(2)
    assert "no scheduler given, and the configuration sets none for" in said
    assert not said.splitlines()[0].endswith(" has")
    assert (
        'Use --for slurm or --for pbs, or set backend = "slurm" or "pbs" in the cluster\'s table.'
        in said
    )
    # The embedded queue reads Slurm's directives.
    assert (
        configured("render", str(request_file), "--local", "--backend", "local").text.count(
            "#SBATCH "
        )
        > 3
    )
    assert (
        configured("render", str(request_file), "--cluster", "vega", "--backend", "pbs").text.count(
            "#PBS "
        )
        > 3
    )


def test_a_script_that_is_not_there_is_told_with_file_line_and_key(
    program: Program, request_file: Path
) -> None:
    (request_file.parent / "train.sh").unlink()
    said = program("render", str(request_file), "--for", "slurm").refused(2)
    assert said.startswith(
        f"hpcdash: {request_file}:2: script: {request_file.parent}/train.sh does not exist"
    )
    assert "cannot be read: No such file or directory" in program(
        "render", "none.toml", "--for", "pbs"
    ).refused(2)
