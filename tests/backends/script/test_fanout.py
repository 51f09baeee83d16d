"""One command on each node: the generated bash run as it is, with stand-ins for the schedulers'
programs.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hpcdash.backends.pbs.script import end_time as pbs_end_time
from hpcdash.backends.pbs.script import fanout as pbs_fanout
from hpcdash.backends.script.body import START, Place, library_line
from hpcdash.backends.script.containers.words import Word
from hpcdash.backends.slurm.script import fanout as slurm_fanout
from hpcdash.backends.slurm.script import keep_status
from hpcdash.backends.slurm.script import srun_line as slurm_srun
from hpcdash.domain.request import Request, SlotType
from hpcdash.errors import UsageError
from tests.support.records import for_each
from tests.support.scripts import Scheduler, batch_script

MARK = "HPCDASH_COMMAND_OF"
pytestmark = pytest.mark.system
HOSTILE = "a b;$(touch owned) `id` 'q' \"d\" \\ * ~ {x}\nline two\t%s é"
PRINT = (sys.executable, "-c", "import os, sys; sys.stdout.buffer.write(os.environb[b'V'])")
_RECORD = f"""#!{sys.executable}
import json, os, sys
with open(os.environ["RECORD"], "a") as file:
    file.write(json.dumps([os.path.basename(sys.argv[0]), *sys.argv[1:]]) + "\\n")
"""
# As tm_spawn does: the words are started as they are, with none of the script's variables.
_PBS_TMRSH = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_DFL)
keep = {"PATH": os.environ["PATH"], "HOST": sys.argv[1], "HOME": os.environ["HOME"]}
os.execvpe(sys.argv[2], sys.argv[2:], keep)
"""
_SRUN = """
words = [word for word in sys.argv[1:] if not word.startswith("--n")]
os.execvp(words[0], words)
"""
Run = Callable[[str], subprocess.CompletedProcess[str]]


@pytest.fixture
def job(tmp_path: Path) -> Run:
    """Runs a script as a job of three hosts, one of them named twice; in `RECORD` are the words of
    each stand-in.
    """
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    for name, rest in (("pbs_tmrsh", _PBS_TMRSH), ("srun", _SRUN), ("scancel", "")):
        program = bin_folder / name
        program.write_text(_RECORD + rest)
        program.chmod(0o755)
    (tmp_path / "nodes").write_text("n1\nn2\nn1\nn3\n")
    environment = {
        "PATH": f"{bin_folder}:{os.environ['PATH']}",
        "RECORD": str(tmp_path / "record"),
        "HOME": str(tmp_path),
        "PBS_NODEFILE": str(tmp_path / "nodes"),
        "PBS_JOBID": f"{uuid.uuid4().int % 10**15}.server",
        "SLURM_JOB_ID": "12",
        "SLURM_JOB_NUM_NODES": "3",
    }

    def run(script: str) -> subprocess.CompletedProcess[str]:
        ended = subprocess.run(
            ["bash", "-c", script], env=environment, cwd=tmp_path, capture_output=True, text=True
        )
        assert of_the_job(environment["PBS_JOBID"]) == []
        return ended

    return run


def of_the_job(job_id: str) -> list[str]:
    """Ids of processes that have the job's id in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if job_id.encode() in path.read_bytes():
                found.append(path.parent.name)
        except OSError:
            continue
    return found


# A second of the script's own is one fiftieth.
_FAST = "sleep() { command sleep 0.02; }\n"


def recorded(folder: Path) -> list[list[str]]:
    return [json.loads(line) for line in (folder / "record").read_text().splitlines()]


def test_pbs_starts_the_command_once_on_each_unique_host(job: Run, tmp_path: Path) -> None:
    ended = job(pbs_fanout(["bash", "-c", 'echo "$HOST"'], {}) + START)
    assert (ended.returncode, sorted(ended.stdout.split())) == (0, ["n1", "n2", "n3"])
    assert sorted(words[1] for words in recorded(tmp_path)) == ["n1", "n2", "n3"]


def test_pbs_runs_the_command_in_the_folder_of_the_script(job: Run, tmp_path: Path) -> None:
    assert set(job(pbs_fanout(["pwd"], {}) + START).stdout.split()) == {str(tmp_path)}


def test_pbs_passes_a_hostile_value_unharmed(job: Run, tmp_path: Path) -> None:
    ended = job(pbs_fanout(PRINT, {"V": HOSTILE}) + START)
    assert ended.stdout == HOSTILE * 3, ended.stderr
    assert not (tmp_path / "owned").exists()


def test_pbs_passes_on_what_the_script_knows_when_it_runs(job: Run) -> None:
    script = library_line("/lib", "/my code") + pbs_end_time(3600)
    names = ("PYTHONPATH", "HPCDASH_END_TIME", "HPCDASH_END_TIME_OF")
    printed = (
        'echo "$PYTHONPATH $(($(date +%s) + 3600 - HPCDASH_END_TIME < 20)) '
        '$((${HPCDASH_END_TIME_OF%%.*} > 0))"'
    )
    ended = job(script + pbs_fanout(["bash", "-c", printed], {}, passed_on=names) + START)
    assert set(ended.stdout.splitlines()) == {"/lib/hpcdash-job.zip:/my code 1 1"}, ended.stderr


def test_one_host_that_fails_ends_the_others_and_the_job_with_its_status(
    job: Run, tmp_path: Path
) -> None:
    one_fails = '[ "$HOST" = n2 ] && exit 3; sleep 300; echo not reached'
    ended = job(pbs_fanout(["bash", "-c", one_fails], {}) + START)
    assert (ended.returncode, ended.stdout) == (3, "")
    assert "ended with 3" in ended.stderr


def test_a_command_that_does_not_end_when_asked_is_ended(job: Run) -> None:
    one_fails = '[ "$HOST" = n2 ] && exit 3; trap "" TERM; sleep 300'
    assert job(_FAST + pbs_fanout(["bash", "-c", one_fails], {}) + START).returncode == 3


@pytest.mark.journey
def test_a_command_that_saves_as_its_job_ends_is_left_to_the_scheduler(job: Run) -> None:
    """PBS has sent TERM to each process of the script's host itself: the script adds none."""
    saves = (
        "trap 'echo asked; sleep 1; echo saved; exit' TERM; : >>begun.$$; while :; do sleep "
        "0.02; done"
    )
    ends = f"""(
      until [ "$(ls begun.* 2>/dev/null | wc -l)" = 3 ]; do command sleep 0.02; done
      kill "$$" $(grep -lsz "^{MARK}=$PBS_JOBID@" /proc/[0-9]*/environ | cut -d/ -f3)
    ) &
    """
    # As many looks as there are seconds after which a host that failed has the others killed.
    ended = job(_FAST + pbs_fanout(["bash", "-c", saves], {}) + ends + START)
    said = sorted(line for line in ended.stdout.splitlines())
    assert (ended.returncode, said) == (143, ["asked"] * 3 + ["saved"] * 3), ended.stderr


_SAYS = """
trap 'echo asked; sleep 0.2; echo saved; echo why >&2; exit 5' TERM
echo "up in $PWD"
while :; do sleep 0.02; done
"""


def on_node(script: str) -> str:
    """The text that a fan-out of several hosts starts on each."""
    return script.partition("<< 'END_OF_ON_NODE'\n")[2].partition("END_OF_ON_NODE\n")[0]


def test_on_another_host_the_end_of_what_takes_the_output_is_the_end_of_the_job(
    tmp_path: Path,
) -> None:
    """PBS ends its pbs_demux with the script, and tells other hosts nothing: their commands would
    write to nobody.
    """
    text = on_node(pbs_fanout(["true"], {}, logs=("/dev/null", "/dev/null")))
    (ours_out, theirs_out), (ours_err, theirs_err) = socket.socketpair(), socket.socketpair()
    command = subprocess.Popen(
        [
            "bash",
            "-c",
            text,
            "on_node",
            tmp_path,
            tmp_path / "out",
            tmp_path / "err",
            "n1",
            "bash",
            "-c",
            _SAYS,
        ],
        env={"PATH": os.environ["PATH"], MARK: f"{uuid.uuid4()}@n2"},
        stdout=theirs_out,
        stderr=theirs_err,
    )
    with command, ours_out, ours_err:
        theirs_out.close(), theirs_err.close()
        assert ours_out.recv(100) == f"up in {tmp_path}\n".encode()
        ours_out.close(), ours_err.close()
        assert command.wait() == 5
    assert (tmp_path / "out").read_text() == "asked\nsaved\n"
    assert (tmp_path / "err").read_text().splitlines()[-1] == "why"


def test_all_output_of_a_command_has_arrived_as_it_ends_and_what_it_left_is_not_waited_for(
    tmp_path: Path,
) -> None:
    text = on_node(pbs_fanout(["true"], {}, logs=("/dev/null", "/dev/null")))
    ours, theirs = socket.socketpair()
    leaves = "sleep 300 > /dev/null & seq 20000; exit 3"
    command = subprocess.Popen(
        [
            "bash",
            "-c",
            text,
            "on_node",
            tmp_path,
            tmp_path / "out",
            tmp_path / "err",
            "n1",
            "bash",
            "-c",
            leaves,
        ],
        env={"PATH": os.environ["PATH"], MARK: (mark := f"{uuid.uuid4()}@n2")},
        stdout=theirs,
        stderr=subprocess.PIPE,
    )
    with command, ours:
        theirs.close()
        received = b""
        while not received.endswith(b"\n20000\n"):
            received += ours.recv(65536)
        assert command.wait() == 3
        assert command.stderr is not None
        for pid in of_the_job(mark):
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        assert command.stderr.read() == b""
    assert received == "".join(f"{number}\n" for number in range(1, 20001)).encode()


def test_slurm_starts_one_srun_over_all_nodes_and_ends_with_its_status(
    job: Run, tmp_path: Path
) -> None:
    ended = job(slurm_fanout(["bash", "-c", "exit 5"], {}) + START)
    assert ended.returncode == 5
    assert recorded(tmp_path) == [
        ["srun", "--nodes=3", "--ntasks=3", "--ntasks-per-node=1", "bash", "-c", "exit 5"],
    ]


@pytest.mark.parametrize(
    ("command", "status"),
    [
        ("exit 7", 7),
        ("kill -s TERM $$", 1),
        ("kill -s USR1 $PPID; sleep 0.1; exit 3", 3),
        ("kill -s KILL $$", 137),
    ],
    ids=["it failed", "srun ended it", "it was warned", "it was killed"],
)
def test_a_node_that_srun_ends_has_a_lower_status_than_one_that_failed(
    job: Run, command: str, status: int
) -> None:
    text, words = keep_status((Word("bash"), Word("-c"), Word(command)), "USR1")
    assert job(text + slurm_srun(words)).returncode == status


def test_slurm_exports_a_hostile_value_unharmed(job: Run, tmp_path: Path) -> None:
    assert job(slurm_fanout(PRINT, {"V": HOSTILE}) + START).stdout == HOSTILE
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize(
    ("given_type", "got"), [("", "pmi2"), ("pmix", "pmix")], ids=["unset: pmi2", "set: kept"]
)
def test_slurm_has_a_type_of_mpi_and_ends_all_on_a_bad_exit(
    job: Run, given_type: str, got: str
) -> None:
    environment = {"SLURM_MPI_TYPE": given_type} if given_type else {}
    told = 'echo "$SLURM_MPI_TYPE $SLURM_KILL_BAD_EXIT"'
    assert job(slurm_fanout(["bash", "-c", told], environment) + START).stdout == f"{got} 1\n"


def test_pbs_marks_the_command_with_its_job_and_host(job: Run) -> None:
    ended = job(pbs_fanout(["bash", "-c", f'[ "${{{MARK}#*@}}" = "$HOST" ]'], {}) + START)
    assert ended.returncode == 0


@for_each("fanout", [slurm_fanout, pbs_fanout], ids=["slurm", "pbs"])
@for_each(
    ("words", "environment"),
    [([], {}), (["a\0b"], {}), (["a"], {"A=B": "c"}), (["a"], {"X;id": "c"}), (["a"], {"A": "\0"})],
    ids=["no words", "NUL in a word", "= in a name", "; in a name", "NUL in a value"],
)
def test_what_bash_cannot_hold_is_refused(
    fanout: Callable[..., str], words: list[str], environment: dict[str, str]
) -> None:
    with pytest.raises(UsageError):
        fanout(words, environment)


_BASH_TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)


@given(st.lists(_BASH_TEXT, min_size=1, max_size=4), _BASH_TEXT)
def test_any_words_and_value_are_bash(words: list[str], value: str) -> None:
    for text in (slurm_fanout(words, {"V": value}), pbs_fanout(words, {"V": value})):
        checked = subprocess.run(["bash", "-n"], input=(text + START).encode(), capture_output=True)
        assert (checked.returncode, checked.stderr) == (0, b"")


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="shellcheck is not installed")
@pytest.mark.parametrize("fanout", [slurm_fanout, pbs_fanout], ids=["slurm", "pbs"])
def test_shellcheck_has_nothing_to_say(fanout: Callable[..., str]) -> None:
    script = "#!/bin/bash\n" + fanout(["bash", "-c", 'train "$SLURM_PROCID"'], {"V": "x y"}) + START
    checked = subprocess.run(
        ["shellcheck", "-e", "SC2317,SC2016", "-"], input=script, capture_output=True, text=True
    )
    assert checked.stdout == ""


@pytest.mark.parametrize("is_replaced", [False, True])
def test_each_host_of_pbs_runs_a_copy_of_its_own_and_none_what_was_replaced(
    job: Run, tmp_path: Path, is_replaced: bool
) -> None:
    launch = tmp_path / "launch"
    (launch / "files").mkdir(parents=True)
    contents = {
        "files/run.sh": b'echo ran "$0" "$API_TOKEN"\n',
        "secrets.sh": b"export API_TOKEN=t0ken\n",
    }
    for name, content in contents.items():
        (launch / name).write_bytes(content)
    copies = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    place = Place("u", str(launch), script=f"{launch}/files/run.sh", copies=copies)
    environment = {"API_TOKEN": "t0ken"}
    request = Request(
        script="run.sh", slots=3, slots_per_node=1, slot_type=SlotType.CPU, environment=environment
    )
    text = batch_script(
        Scheduler.PBS, replace(request, work_dir=str(tmp_path), job_library=False), place
    ).text
    if is_replaced:
        (launch / "files" / "run.sh").write_text("echo somebody else\n")
    ended = job(text)
    written = (
        ended.stdout + ended.stderr + "".join(log.read_text() for log in launch.glob("*.[oe]*"))
    )
    lines = [line for line in written.splitlines() if line.startswith("ran ")]
    assert "somebody else" not in written
    if is_replaced:
        assert (ended.returncode != 0, lines) == (True, [])
        assert f"{launch}/files/run.sh differs from the submitted file" in written
        return
    assert ended.returncode == 0, ended
    places = {line.split()[1].removesuffix("/files/run.sh") for line in lines}
    assert (len(lines), len(places), {line.split()[2] for line in lines}) == (3, 3, {"t0ken"})
    assert not any(Path(one).exists() or Path(one) == launch for one in places)
