"""`hpcdash exec`, `top` and `stacks` on the embedded queue: the job's own processes and no
others.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.program import Program, home_with
from tests.support.records import for_each
from tests.support.waiting import wait_until

SLEEPS = "exec python3 -c 'import time; print(\"up\", flush=True); time.sleep(100)'\n"


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    """On an embedded queue of its own, whose jobs are ended after the test."""
    program = Program(
        home_with(tmp_path / "home"),
        ("--local", "--backend", "local"),
        {"HPCDASH_QUEUE": str(tmp_path / "a+b queue"), "HPCDASH_STATE": str(tmp_path / "state")},
    )
    yield program
    jobs = program("jobs", "--format", "json").json["jobs"]
    program("--yes", "cancel", *(job["id"] for job in jobs))


def running(program: Program, *options: str, begin: str = "") -> str:
    """A job, of an array its second task, whose Python has printed that it is up."""
    file = program.home / "job.sh"
    file.write_text(f"#!/bin/bash\n{begin}{SLEEPS}")
    job = program("submit", str(file), *options).text.strip()
    shown = f"{job}_2" if options else job
    for _ in range(100):
        if program("log", shown).stdout == b"up\n":
            return shown
    raise AssertionError(program("show", shown))


def test_a_job_s_python_is_dumped_and_no_other_job_s(program: Program) -> None:
    spy = program.home / ".local" / "bin" / "py-spy"
    spy.parent.mkdir(parents=True)
    spy.write_text(
        '#!/bin/sh\necho "Thread $4 (idle): MainThread"\nprintf "    odd \\033[31m (a.py:1)\\n"\n'
    )
    spy.chmod(0o755)
    running(program)
    job = running(program)
    lines = program("stacks", job).text.splitlines()
    assert len(lines) == 3
    assert len({line.partition(": ")[0] for line in lines}) == 1
    process = lines[0].partition(": process ")[2]
    assert "python3 -c import time;" in process.partition(": ")[2]
    assert f"Thread {process.partition(',')[0]} (idle)" in lines[1]
    assert "\x1b" not in lines[2]


def test_one_task_of_an_array_is_told_from_the_others(program: Program) -> None:
    task = running(program, "--array", "1-3")
    lines = program("stacks", task).text.splitlines()
    assert sum(": process " in line for line in lines) == 1
    assert "matches several jobs" in program("stacks", f"{task.partition('_')[0]}_[1-3]").refused(2)


def test_without_py_spy_what_proc_tells_is_shown_and_how_to_get_it(program: Program) -> None:
    lines = program("stacks", running(program)).text.splitlines()
    assert any("State: S (sleeping)" in line for line in lines)
    assert any(": S (sleeping), waits in " in line for line in lines)
    assert "pip install --user py-spy" in lines[-1]


def test_where_py_spy_fails_its_words_and_what_proc_tells_are_shown(program: Program) -> None:
    begin = (
        'mkdir -p bin; printf "#!/bin/sh\\necho Permission denied >&2; exit 1\\n" > bin/py-spy; '
        "chmod +x bin/py-spy\n"
        'export PATH="$PWD/bin:$PATH"\n'
    )
    lines = program("stacks", running(program, begin=begin)).text.splitlines()
    assert any("py-spy ended with 1: Permission denied; from /proc:" in line for line in lines)
    assert any("State: S (sleeping)" in line for line in lines)


def test_a_job_that_does_not_run_is_said_so(program: Program) -> None:
    file = program.home / "job.sh"
    file.write_text("#!/bin/bash\ntrue\n")
    job = program("submit", "--hold", str(file)).text.strip()
    assert f"{job} is not running yet (held)" in program("stacks", job).refused(2)


def test_a_command_runs_in_the_job_s_environment_and_folder_and_its_exit_status_is_told(
    program: Program,
) -> None:
    job = running(program, begin='export ODD="a\'b \\$(touch hit)"\nmkdir -p inner; cd inner\n')
    ran = program(
        "exec",
        job,
        "--",
        "sh",
        "-c",
        'printf "%s|" "$ODD" "$@"; exit 3',
        "sh",
        "; touch hit",
        "$HOME",
    )
    assert (ran.status, ran.stdout) == (1, b"a'b $(touch hit)|; touch hit|$HOME|\n")
    assert ran.stderr.endswith(": exit 3\n")
    assert not list(program.home.rglob("hit"))
    [node] = program("exec", job, "--format", "json", "--", "printenv", "HPCDASH_ATTEMPT").json[
        "nodes"
    ]
    assert (node["exit"], node["gpu"], node["problem"]) == (0, None, None)
    assert node["output"].startswith(f"{job}.")
    noted = program("journal", "--format", "json").json["actions"]
    assert [(one["verb"], one["state"]) for one in noted[:2]] == [
        ("exec", "done"),
        ("exec", "refused"),
    ]
    assert "touch hit" not in str(noted)
    late = program("exec", job, "--timeout", "1s", "--", "sleep", "1000")
    assert (late.status, "time limit of 1 s" in late.stderr) == (1, True)


def test_only_what_ended_jobs_of_the_same_queue_left_behind_is_ended(program: Program) -> None:
    job = running(program)
    queue = program.environment["HPCDASH_QUEUE"]
    marks = {
        "left": {"HPCDASH_ATTEMPT": f"77.1:{queue}"},
        "of a job that runs": {"HPCDASH_ATTEMPT": f"{job}.1:{queue}"},
        "of an array that runs": {"HPCDASH_ATTEMPT": f"78.1:{queue}", "SLURM_ARRAY_JOB_ID": job},
        "of another queue": {"HPCDASH_ATTEMPT": f"77.1:/other{queue}"},
        "of none": {},
        "a queue": {"HPCDASH_ATTEMPT": f"77.1:{queue}", "HPCDASH_SUPERVISOR": "1"},
    }
    processes = {name: subprocess.Popen(["sleep", "1000"], env=own) for name, own in marks.items()}
    try:
        left = processes["left"]
        shown = program("exec", job, "--leftovers").text.splitlines()
        assert [line for line in shown if line.startswith("left by")] == [
            line
            for line in shown
            if f"job 77, which has ended: {left.pid}/" in line and "sleep 1000" in line
        ]
        assert all(one.poll() is None for one in processes.values())
        assert f"ended: {left.pid}\n" in program("--yes", "exec", job, "--leftovers").text
        assert left.wait() < 0
        assert [name for name, one in processes.items() if one.poll() is not None] == ["left"]
    finally:
        for one in processes.values():
            one.kill()
            one.wait()


@for_each(
    ("words", "status", "said"),
    [
        (("--read-only", "exec", "1", "--", "true"), 2, "exec is disabled: hpcdash is read-only"),
        (("exec", "1_[1-3]", "--", "true"), 2, "matches several jobs"),
        (("exec", "1", "--timeout", "2h", "--", "true"), 2, "--timeout"),
        (("exec", "1"), 2, "no command specified"),
        (("exec", "1", "--leftovers", "--", "true"), 2, "--leftovers cannot be used with"),
        (("--read-only", "exec", "1", "--leftovers"), 2, "exec is disabled: hpcdash is read-only"),
        (("exec", "77", "--", "true"), 1, "77"),
        (("top", "77"), 1, "77"),
    ],
)
def test_what_cannot_be_run_is_said_and_not_tried(
    program: Program, words: tuple[str, ...], status: int, said: str
) -> None:
    assert said in program(*words).refused(status)


def test_what_a_job_uses_is_told_once(program: Program) -> None:
    job = running(program)
    [node] = program("top", job, "--once", "--format", "json").json["nodes"]
    assert node["memory_bytes"] > 0
    assert node["cpu_cores"] is not None
    assert any(
        "time.sleep(100)" in one["command"] and one["memory_bytes"] for one in node["processes"]
    )
    assert not any("every=$2" in one["command"] for one in node["processes"])


def test_nothing_samples_a_job_once_its_reader_was_killed(program: Program) -> None:
    job = running(program)
    follower = subprocess.Popen(
        program.argv("top", job, "--format", "json"),
        env=program.environment,
        cwd=program.home,
        stdout=subprocess.PIPE,
    )
    assert follower.stdout is not None
    assert follower.stdout.readline().startswith(b"{")
    assert samplers(program)
    follower.kill()
    follower.wait()
    follower.stdout.close()
    wait_until("the sampler's end", lambda: not samplers(program))


def samplers(program: Program) -> list[int]:
    """The processes that look at jobs of this queue."""
    found = []
    mark = f"HPCDASH_QUEUE={program.variables['HPCDASH_QUEUE']}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (
                b"every=$2" in (folder / "cmdline").read_bytes()
                and mark in (folder / "environ").read_bytes()
            ):
                found.append(int(folder.name))
    return found
