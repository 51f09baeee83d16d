"""PBS's scripts: whole ones as files to be read, or run with stand-ins; each field of a request
where it is to be.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcdash.backends.pbs import options as qsub
from hpcdash.backends.script.body import BatchScript, Place, folder_name, secrets_file
from hpcdash.backends.script.folder import CONTAINER_UP
from hpcdash.domain.array_tasks import parse_tasks
from hpcdash.domain.request import (
    Call,
    Container,
    EarlySignal,
    Launcher,
    Request,
    Runtime,
    Site,
    SlotType,
)
from hpcdash.errors import HpcdashError, UsageError
from tests.backends.script.golden_text import PLACE, REQUESTS, assert_golden
from tests.support.process_lists import seen_command_lines
from tests.support.records import for_each
from tests.support.scripts import Scheduler, batch_script

# Field → what of it a script shows: a setting of a directive, a line of bash, or words of a warning
# (W:).
SHOWN: dict[str, tuple[Any, str]] = {
    "name": ("my run!", "N=myrun"),
    "kind": ("cmd", "N=hpcdash_cmd-1a2b"),
    "command": ("echo 'x y'", "\necho 'x y'\nEND_OF_COMMAND\n"),
    "script": ("train.py", "\npython3 ./train.py\nEND_OF_COMMAND\n"),
    "slots": (3, "l.select=3:ngpus=1"),
    "slots_per_node": (4, "l.select=2:ngpus=4"),
    "slot_type": (SlotType.CPU, "l.select=8:ncpus=1"),
    "gpu_type": ("a100", "W:gpu_type (a100) is ignored"),
    "cpus_per_gpu": (6, "l.select=8:ngpus=1:ncpus=6"),
    "queue": ("gpu long", "q=gpu long"),
    "account": ("a", "A=a"),
    "qos": ("high", "W:high is ignored"),
    "reservation": ("R12", "q=R12"),
    "limit_seconds": (93784, "l.walltime=26:03:04"),
    "memory_bytes": ((1 << 30) + 1, "l.select=8:ngpus=1:mem=1048577kb"),
    "work_dir": ("/home/ann/my work", "\ncd -- '/home/ann/my work' || exit 1\n"),
    "array": (parse_tasks("1-9:2%3"), "J=1-9:2%3"),
    "after": (("1", "2"), "W.depend=afterany:1:2"),
    "hold": (True, "h="),
    "signal": (
        EarlySignal("USR1", 600),
        "\nstart_timer USR1 6600\n",
    ),
    "requeue": (True, "r=y"),
    "kill_switch": ("/k k", "\n  'HPCDASH_KILL_SWITCH=/k k'\n"),
    "share": ("HIGH", "W:not supported on PBS"),
    "pool": ("lab", "W:not supported on PBS"),
    "checkpoints": ("c", '\nexport HPCDASH_CHECKPOINTS="$PWD"/c HPCDASH_RESUME_FROM\n'),
    "save_switch": ("/s", "\n  HPCDASH_SAVE_SWITCH=/s\n"),
    "rank_variables": (
        "nodes",
        '\nexport RANK="$NODE_RANK" WORLD_SIZE="$NUM_NODES" MASTER_PORT=2222 MASTER_IP\n',
    ),
    "rank_logs": (True, "W:rank_logs: not supported on PBS"),
    "job_library": (True, f"\nexport PYTHONPATH={PLACE.folder}/hpcdash-job.zip"),
    "plain": (True, "W:plain script: hpcdash.job is not on PYTHONPATH"),
    "exclude_nodes": (("n1",), "W:the job may still get n1"),
    "extra_args": (("-m n", " -m n", "-l place=excl"), "m=n"),
    "place": ("scatter:excl", "l.place=scatter:excl"),
    "attributes": (("group_list=lab", "sandbox=HOME"), "W.group_list=lab"),
    "slice": ("v4-8", "W:slice: not supported by PBS"),
    "num_slices": ((2,), "W:num_slices: not supported by PBS"),
    "tpus_per_worker": (1, "W:tpus_per_worker: not supported by PBS"),
    "max_requeues": (3, "W:max_requeues: not supported by PBS"),
    "retries_preemption": (3, "W:retries_preemption: not supported by PBS"),
    "retries_failure": (0, "W:retries_failure: not supported by PBS"),
    "grow_after": (60, "W:grow_after: not supported by PBS"),
    "grow_every": (60, "W:grow_every: not supported by PBS"),
    "runtime_env": ({"pip": ["a"]}, "W:runtime_env: not supported by PBS"),
    "keep_files": ("oe", "k=oe"),
    "launcher": (Launcher.TORCHRUN, "\ntorchrun \\\n"),
    "project": ("p/q", "P=p_q"),
    "workspace": ("w", "P=w"),
    "labels": (("b", "a"), "P=a_b"),
    "begin": ("2026-12-01T08:00:00", "a=202612010800.00"),
    "files": ((".",), f"\ncd -- {PLACE.folder}/code || exit 1\n"),
    "startup_hook": ("module load cuda", "\nmodule load cuda\nEND_OF_HOOK\n"),
    "environment": ({"V": "a 'b'"}, "\n  'V=a '\"'\"'b'\"'\"''\n"),
    "container": (Container(Runtime.PODMAN, "i:1"), "\npodman run "),
    "call": (Call("m", "f"), "\npython3 -m hpcdash.job.runner --module=m --function=f "),
    "site": (Site(name_prefix="lab"), "N=lab_exp-1a2b"),
}
BESIDE: dict[str, dict[str, Any]] = {
    "call": {"command": ""},
    "script": {"command": ""},
    "signal": {"limit_seconds": 7200},
    "workspace": {"site": Site(job_project_source="workspace")},
    "labels": {"site": Site(job_project_source="label")},
}
# What the request's file said besides; it is not of the job.
NOT_SHOWN = {"said"}
PRINTED = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.text(
    st.sampled_from("a \\\"'#$`%\t,-")
)


def made(place: Place = PLACE, /, **fields: Any) -> BatchScript:
    known: dict[str, Any] = {"command": "train", "slots": 8}
    return batch_script(Scheduler.PBS, Request(**(known | fields)), place)


def settings(script: BatchScript) -> dict[str, str]:
    """What the directives set as qsub reads them; no option but -l and -W is there twice."""
    read = qsub.read_directives(script.text)
    assert (read.problems, read.script) == ((), ())
    letters = [option.name for option in read.options if option.name not in ("l", "W")]
    assert len(letters) == len(set(letters)), letters
    return qsub.settings(read.options, in_script=True)


@for_each("name", REQUESTS)
def test_a_whole_script(name: str) -> None:
    assert_golden(f"pbs-{name}.sh", batch_script(Scheduler.PBS, REQUESTS[name], PLACE).text)


@for_each("field", sorted({*Request.__struct_fields__} - NOT_SHOWN))
def test_each_field_of_a_request_is_in_the_script_or_told_not_to_be(field: str) -> None:
    value, wanted = SHOWN[field]
    script = made(**{field: value}, **BESIDE.get(field, {}))
    if wanted.startswith("W:"):
        assert wanted[2:] in "\n".join(script.warnings)
    elif wanted.startswith("\n"):
        assert wanted in script.text
    else:
        assert wanted in {f"{name}={given}" for name, given in settings(script).items()}


def test_what_a_request_says_of_python_s_path_comes_after_the_library_s() -> None:
    text = made(environment={"PYTHONPATH": "/my code:/b", "V": "1"}).text
    assert f"\nexport PYTHONPATH={PLACE.folder}/hpcdash-job.zip:'/my code:/b'\n" in text
    assert text.count("PYTHONPATH=") == 2
    assert "END_TIME" not in made(job_library=False, limit_seconds=60).text


@pytest.mark.parametrize(
    "option", ["-l walltime=24:00:00", "-lselect=1:gpu_model=a100,walltime=86400"]
)
def test_a_limit_among_a_person_s_own_options_is_known_to_the_script_too(option: str) -> None:
    script = made(extra_args=(option,), signal=EarlySignal("USR1", 600))
    assert "\nexport HPCDASH_END_TIME=$(($(date +%s) + 86400)) " in script.text
    assert "\nstart_timer USR1 85800\n" in script.text
    assert made(extra_args=(option,), limit_seconds=None).text.count("walltime") == 1
    assert "\nexport HPCDASH_END_TIME= " in made(extra_args=("-l walltime=soon",)).text


def test_the_first_line_says_what_is_asked_for() -> None:
    def said(**fields: Any) -> str:
        return made(**fields).text.split("\n")[1]

    assert said() == "# 8 GPUs on any number of nodes; one command per node"
    assert said(slot_type=SlotType.CPU).startswith("# 8 CPUs on any number of nodes;")
    assert said(slots_per_node=4) == "# 2 nodes × 4 GPUs = 8; one command per node"


def test_a_very_long_name_is_cut_to_what_qsub_and_file_systems_take() -> None:
    request = Request(name="x" * 300, command="x")
    assert len(settings(made(name=request.name))["N"]) == 230
    assert folder_name(request, "1a2b") == f"{'x' * 200}-1a2b"


def test_an_array_is_left_rerunable_and_that_is_said_where_requeue_is_off() -> None:
    """qsub: cannot submit non-rerunable Array Job."""
    words = "PBS arrays must be rerunable"
    once, again = made(array=parse_tasks("1-3")), made(array=parse_tasks("1-3"), requeue=True)
    assert "r" not in settings(once)
    assert len([warning for warning in once.warnings if words in warning]) == 1
    assert settings(again)["r"] == "y"
    assert not [warning for warning in (*again.warnings, *made().warnings) if words in warning]


def test_every_script_says_that_it_is_not_run_again_and_who_may_read_its_logs() -> None:
    said = settings(made())
    assert (said["r"], said["W.umask"]) == ("n", "0022")
    assert (said["o"], said["e"]) == (f"{PLACE.folder}/job.out", f"{PLACE.folder}/job.err")
    assert settings(made(array=parse_tasks("1-3")))["o"] == f"{PLACE.folder}/job.^array_index^.out"


def test_logs_are_written_into_the_launch_s_folder_while_the_job_runs_where_nothing_else_is_asked_for() -> (
    None
):
    assert settings(made())["k"] == "oed"
    assert settings(made(keep_files="n"))["k"] == "n"
    assert "k" not in settings(made(Place("u")))
    old = batch_script(Scheduler.PBS, Request(command="x"), PLACE, has_live_logs=False)
    assert "k" not in settings(old)


@for_each(
    "asked",
    [
        {"attributes": ("umask=027", "group_list=lab,other")},
        {"extra_args": ("-W umask=027,group_list=lab,other",)},
        {"attributes": ("umask=027",), "extra_args": ("-W", "group_list=lab,other")},
        {"attributes": ("umask=022", "umask=027"), "extra_args": ('-W "group_list=lab,other"',)},
    ],
    ids=["field", "extra_args", "both", "the last counts"],
)
def test_attributes_that_are_not_the_request_s_own_are_set(asked: dict[str, Any]) -> None:
    script = made(**asked)
    said = settings(script)
    assert (said["W.umask"], said["W.group_list"]) == ("027", "lab,other")
    assert script.text.count("umask=") == 1


@for_each(
    ("attribute", "step"),
    [
        ("depend=afterok:1", "after"),
        ("Depend=afterok:1", "after"),
        ("Rerunable=y", "requeue"),
        ("Output_Path=/x", "work_dir"),
        ("max_run_subjobs=2", "array"),
        ("block=true", "cannot use it"),
        ("interactive=true", "cannot use it"),
        ("nothing", "umask=027"),
    ],
)
def test_attributes_that_are_the_request_s_own_are_refused_with_their_field(
    attribute: str, step: str
) -> None:
    for asked, field in (
        ({"attributes": (attribute,)}, "attributes"),
        ({"extra_args": (f"-W {attribute}",)}, "extra_args"),
    ):
        with pytest.raises(UsageError, match=f"{field}: -W {attribute.split('=')[0]}") as refused:
            made(**asked)
        assert step in refused.value.next_step


def test_a_private_sandbox_is_where_the_command_starts() -> None:
    """PBS makes it for the job."""
    assert '\ncd -- "$PBS_JOBDIR" || exit 1\n' in made(attributes=("sandbox=PRIVATE",)).text
    assert "\ncd -- /w || exit 1\n" in made(attributes=("sandbox=PRIVATE",), work_dir="/w").text
    assert (
        '\ncd -- "${PBS_O_WORKDIR:-$HOME}" || exit 1\n' in made(attributes=("sandbox=HOME",)).text
    )


@for_each(
    ("field", "option"),
    [
        ({"place": "excl"}, "-l place=shared"),
        ({"cpus_per_gpu": 4}, "-l select=1:ncpus=4"),
        ({"attributes": ("umask=022",)}, "-W umask=027"),
        ({"account": "a"}, "-A b"),
        ({"limit_seconds": 60}, "-l walltime=5"),
        ({"memory_bytes": 1 << 30}, "-l select=1:mem=4gb"),
        ({"name": "a"}, "-N b"),
        ({"slots": 4}, "-l ngpus=2"),
        ({"slots": 4}, "-l nodes=2"),
        ({"slots": 4}, "-l mem=2gb"),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_an_option_that_a_field_says_too_is_refused_by_the_name_of_both(
    field: dict[str, Any], option: str
) -> None:
    with pytest.raises(UsageError) as refused:
        made(**field, extra_args=(option,))
    name = next(iter(field))
    name = {"limit_seconds": "time", "memory_bytes": "memory"}.get(name, name)
    assert option.split(" ")[0] in str(refused.value)
    assert name in str(refused.value) or "-l select=1:mem=2gb" in str(refused.value)


@for_each(
    ("fields", "named"),
    [
        ({"launcher": Launcher.SRUN}, "launcher"),
        ({"signal": EarlySignal("USR1", 600)}, "signal"),
        ({"array": parse_tasks("1,3,7")}, "range"),
        (
            {"kill_switch": "/s", "save_switch": "/s"},
            "kill_switch and save_switch are the same file",
        ),
    ],
)
def test_what_pbs_cannot_do_is_refused_by_its_field(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        made(**fields)


@given(PRINTED)
def test_a_value_is_read_back_as_it_was_or_refused_by_its_field(value: str) -> None:
    for field, letter in (("queue", "q"), ("account", "A")):
        asked: dict[str, Any] = {field: value}
        try:
            script = made(**asked)
        except UsageError as refused:
            told = str(refused)
            assert told.startswith(f"{field}: ")
        else:
            assert settings(script).get(letter, "") == value


@given(PRINTED, PRINTED, PRINTED)
def test_no_name_project_nor_folder_makes_another_directive(
    name: str, project: str, folder: str
) -> None:
    try:
        script = made(name=name, project=project, work_dir=folder)
    except HpcdashError:
        return
    assert set(settings(script)) - {"P"} == set(settings(made()))
    if folder:
        assert f"cd -- {shlex.quote(folder)} || exit 1\n" in script.text


# -- whole scripts, run

_TMRSH = f"""#!{sys.executable}
import json, os, signal, sys
# A mom starts the words, in no environment and with no signals of the script's.
signal.signal(signal.SIGTERM, signal.SIG_DFL)
with open(os.environ["RECORD"], "a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
os.chdir("/")
nodes = os.environ["PBS_NODEFILE"]
given = {{"PATH": "/bin:/usr/bin", "HOME": os.environ["HOME"], "HOST": sys.argv[1]}}
# As moms do, but to the first host.
given |= {{}} if open(nodes).readline().strip() == sys.argv[1] else {{"PBS_NODEFILE": "/nodes of this host"}}
os.execvpe(sys.argv[2], sys.argv[2:], given)
"""
_TORCHRUN = f"""#!{sys.executable}
import os, subprocess, sys
options = dict(word.lstrip("-").split("=", 1) for word in sys.argv[1:] if word.startswith("--"))
command = [sys.executable, *[word for word in sys.argv[1:] if not word.startswith("--")]]
ranks = range(int(options["nproc-per-node"]))
workers = [subprocess.Popen(command, env={{**os.environ, "LOCAL_RANK": str(rank)}}) for rank in ranks]
sys.exit(max(abs(worker.wait()) for worker in workers))
"""
_TRAIN = """
import os, signal, sys, time
flags = []
signal.signal(signal.SIGUSR1, lambda *_: flags.append(1))
until = time.monotonic() + 15
while not flags and time.monotonic() < until:
    time.sleep(0.02)
# One write: lines of several workers do not mix.
sys.stdout.write("{HOST} {LOCAL_RANK} ".format(**os.environ) + ("warned\\n" if flags else "never warned\\n"))
sys.stdout.flush()
"""
_RUNTIME = """#!/bin/bash
while [ "$1" != sh ]; do shift; done
exec "$@"
"""


class Job:
    """A job of three hosts whose node file names n1 twice; `run` runs a whole script and waits for
    all of it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.work = folder / "my work"
        for path in (self.work, folder / "bin"):
            path.mkdir()
        programs = {"pbs_tmrsh": _TMRSH, "torchrun": _TORCHRUN, "apptainer": _RUNTIME}
        for name, text in programs.items():
            (folder / "bin" / name).write_text(text)
            (folder / "bin" / name).chmod(0o755)
        (self.work / "train.py").write_text(_TRAIN)
        self.job_id = f"{uuid.uuid4().int % 10**12}.server"

    def run(
        self, hosts: str = "n1\nn2\nn1\nn3\n", task: str = "", **fields: Any
    ) -> subprocess.CompletedProcess[str]:
        script = self.folder / "batch.sh"
        script.write_text(
            made(Place("u", str(self.folder)), work_dir=str(self.work), **fields).text
        )
        (self.folder / "nodes").write_text(hosts)
        environment = {
            "PATH": f"{self.folder}/bin:{os.environ['PATH']}",
            "RECORD": str(self.folder / "record"),
            "HOME": str(self.folder),
            "USER": "ann",
            "PBS_NODEFILE": str(self.folder / "nodes"),
            "PBS_JOBID": self.job_id,
            **({"PBS_ARRAY_INDEX": task, "PBS_ARRAY_ID": "12[].server"} if task else {}),
        }
        words = ["bash", str(script)]
        ended = subprocess.run(words, env=environment, cwd="/", capture_output=True, text=True)
        assert self.left() == []
        return ended

    def left(self) -> list[str]:
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if self.job_id.encode() in path.read_bytes():
                    found.append((path.parent / "cmdline").read_text())
            except OSError:
                continue
        return found


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


@pytest.mark.system
def test_a_script_runs_its_command_once_on_each_host_in_its_folder_with_its_variables(
    job: Job,
) -> None:
    command = 'echo "$HOST $NODE_RANK/$NUM_NODES $NODE_SLOTS/$NUM_SLOTS $MASTER_ADDR $V|$PWD"'
    ended = job.run(command=command, slots_per_node=2, environment={"V": "$(id) 'x'"})
    assert (ended.returncode, ended.stderr) == (0, "")
    rest = f"n1 $(id) 'x'|{job.work}"
    assert sorted(ended.stdout.splitlines()) == [
        f"n1 0/3 4/8 {rest}",
        f"n2 1/3 2/8 {rest}",
        f"n3 2/3 2/8 {rest}",
    ]


@pytest.mark.system
@pytest.mark.parametrize(
    "container", [None, Container(Runtime.APPTAINER, "img:1")], ids=["plain", "container"]
)
def test_a_secret_reaches_the_command_on_each_host_and_no_list_of_processes(
    job: Job, container: Container | None
) -> None:
    secret = "hunter2 'quoted'"
    environment = {"API_TOKEN": secret, "V": "plain"}
    (job.folder / "secrets.sh").write_bytes(
        secrets_file(Request(command="a", environment=environment))
    )
    with seen_command_lines("hunter2", "sleep 0.75") as seen:
        ended = job.run(
            command='echo "${#API_TOKEN} $V"; sleep 0.75',
            slots_per_node=2,
            environment=environment,
            container=container,
        )
    assert ended.stdout.splitlines().count(f"{len(secret)} plain") == 3, ended.stderr
    assert [line for line in seen if "sleep 0.75" in line]
    assert not [line for line in seen if "hunter2" in line]
    assert not [
        name for name in ("record", "batch.sh") if "hunter2" in (job.folder / name).read_text()
    ]


@pytest.mark.system
def test_each_task_of_an_array_knows_which_it_is(job: Job) -> None:
    command = 'echo "$PBS_ARRAY_INDEX $PBS_ARRAY_ID $PBS_JOBID"'
    ended = job.run("n1\n", task="3", command=command, array=parse_tasks("1-3"), slots=1)
    assert ended.stdout == f"3 12[].server {job.job_id}\n"
    assert job.run("n1\n", command=command, slots=1).stdout == f"  {job.job_id}\n"


@pytest.mark.system
def test_the_host_of_the_script_is_the_first_and_has_the_file_of_all_hosts(job: Job) -> None:
    ended = job.run(
        "n2\nn1\nn2\n", command='echo "$NODE_RANK $HOST $NODE_SLOTS $MASTER_ADDR $PBS_NODEFILE"'
    )
    first, second = sorted(ended.stdout.splitlines())
    assert first == f"0 n2 2 n2 {job.folder / 'nodes'}", ended.stderr
    assert second == "1 n1 1 n2 /nodes of this host"


@pytest.mark.parametrize(
    "command", ["mpirun -hostfile $PBS_NODEFILE ./a", "cd x &&  exec mpiexec.hydra ./a"]
)
def test_an_mpirun_that_each_node_would_start_is_told_of(command: str) -> None:
    assert [
        w
        for w in made(command=command, slots_per_node=4).warnings
        if "each node starts its own mpi" in w
    ]
    for fields in (
        {"slots_per_node": 8},
        {"slots_per_node": 4, "command": f'[ "$NODE_RANK" = 0 ] || exit 0\n{command}'},
    ):
        assert not [w for w in made(**{"command": command, **fields}).warnings if "each node" in w]


@pytest.mark.system
def test_the_command_has_what_its_login_shell_sets_and_the_path_of_the_script(job: Job) -> None:
    """As the script itself has it from PBS: modules, conda, a variable of one's own."""
    profile = (
        'export LOADED="by $USER"\nmodule() { echo "module $*"; }\nexport -f '
        "module\nPATH=/elsewhere:$PATH\n"
    )
    (job.folder / ".bash_profile").write_text(profile)
    ended = job.run("n1\n", command='module load cuda; echo "$LOADED"; type -P torchrun', slots=1)
    assert ended.stdout.splitlines() == [
        "module load cuda",
        "by ann",
        f"{job.folder}/bin/torchrun",
    ], ended.stderr
    assert ended.returncode == 0


@pytest.mark.system
def test_one_host_that_fails_ends_the_others_and_the_script_with_its_status(job: Job) -> None:
    ended = job.run(command='[ "$HOST" = n2 ] && exit 7\nsleep 300\necho not reached')
    assert (ended.returncode, ended.stdout) == (7, "")
    assert "a command on a host ended with 7" in ended.stderr


@pytest.mark.system
def test_the_timer_warns_the_workers_of_torchrun_on_every_host(job: Job) -> None:
    ended = job.run(
        command="python train.py",
        launcher=Launcher.TORCHRUN,
        signal=EarlySignal("USR1", 58),
        limit_seconds=60,
        slots_per_node=1,
        environment={"PYTHONUNBUFFERED": "1"},
    )
    ranks = ["n1 0", "n1 1", "n2 0", "n3 0"]
    assert sorted(ended.stdout.splitlines()) == [f"{rank} warned" for rank in ranks], ended.stderr
    assert ended.returncode == 0


@pytest.mark.system
def test_a_command_of_several_lines_goes_on_after_its_warning(job: Job) -> None:
    command = f"echo begun\nLOCAL_RANK=0 {shlex.quote(sys.executable)} train.py\necho went on"
    ended = job.run(
        "n1\n", command=command, signal=EarlySignal("USR1", 58), limit_seconds=60, slots=1
    )
    assert ended.stdout.splitlines() == ["begun", "n1 0 warned", "went on"]
    assert ended.returncode == 0


@pytest.mark.system
def test_a_container_is_started_once_on_each_host(job: Job) -> None:
    container = Container(Runtime.APPTAINER, "/i.sif")
    ended = job.run(command='echo "in $NODE_RANK"', container=container)
    assert sorted(ended.stdout.splitlines()) == ["in 0", "in 1", "in 2"], ended.stderr
    assert (ended.returncode, ended.stderr.count(CONTAINER_UP)) == (0, 3)


@pytest.mark.system
def test_a_folder_that_is_not_there_ends_the_script_before_anything_starts(job: Job) -> None:
    job.work = job.folder / "gone"
    ended = job.run(command="echo started")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert not (job.folder / "record").exists()
