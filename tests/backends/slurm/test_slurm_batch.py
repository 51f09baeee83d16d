"""Slurm's scripts: whole ones as files to be read, and each field of a request where it is to
be.
"""

from __future__ import annotations

import subprocess
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcdash.backends.script.body import BatchScript, Place
from hpcdash.backends.slurm import options as sbatch
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
from tests.support.records import for_each
from tests.support.scripts import Scheduler, batch_script

USR1 = EarlySignal("USR1", 600)
# Field → what of it a script shows: `--option=value` of a directive, a line of bash, or words of a
# warning (W:).
SHOWN: dict[str, tuple[Any, str]] = {
    "name": ("my run!", "--job-name=myrun"),
    "kind": ("cmd", "--job-name=hpcdash_cmd-1a2b"),
    "command": ("echo 'x y'", "\necho 'x y'\nEND_OF_COMMAND\n"),
    "script": ("train.py", "\npython3 ./train.py\nEND_OF_COMMAND\n"),
    "slots": (3, "--gpus=3"),
    "slots_per_node": (4, "--gpus-per-task=4"),
    "slot_type": (SlotType.CPU, "--ntasks=8"),
    "gpu_type": ("a100", "--gpus=a100:8"),
    "cpus_per_gpu": (6, "--cpus-per-gpu=6"),
    "queue": ("gpu long", "--partition=gpu long"),
    "account": ("a", "--account=a"),
    "qos": ("high", "--qos=high"),
    "reservation": ("maint", "--reservation=maint"),
    "limit_seconds": (93784, "--time=1-02:03:04"),
    "memory_bytes": ((1 << 30) + 1, "--mem=1025M"),
    "work_dir": ("/home/ann/my work", "--chdir=/home/ann/my work"),
    "array": (parse_tasks("1-9:2%3"), "--array=1-9:2%3"),
    "after": (("1", "2_3"), "--dependency=afterany:1:2_3"),
    "hold": (True, "--hold"),
    "signal": (USR1, "--signal=USR1@600"),
    "requeue": (True, "--requeue"),
    "max_requeues": (3, "\nrequeue_preempted 3 "),
    "kill_switch": ("/k k", "\nexport HPCDASH_KILL_SWITCH='/k k'\n"),
    "share": ("HIGH", "--comment=hpcdash-share:HIGH:" + PLACE.folder),
    "pool": ("lab", "--comment=hpcdash-share:AUTO+pool=lab:" + PLACE.folder),
    "checkpoints": ("/c c/100%%", "\nexport HPCDASH_CHECKPOINTS='/c c/100'% HPCDASH_RESUME_FROM\n"),
    "save_switch": ("/s", "\nexport HPCDASH_SAVE_SWITCH=/s\n"),
    "rank_variables": (
        "nodes",
        '\nexport RANK="$SLURM_PROCID" WORLD_SIZE="$SLURM_JOB_NUM_NODES" MASTER_PORT=2222 '
        "MASTER_IP\n",
    ),
    "rank_logs": (True, f"\nlog={PLACE.folder}/$SLURM_JOB_ID.rank-$SLURM_PROCID\n"),
    "job_library": (True, f"\nexport PYTHONPATH={PLACE.folder}/hpcdash-job.zip"),
    "plain": (True, "W:plain script: hpcdash.job is not on PYTHONPATH"),
    "exclude_nodes": (("n1", "n[3-4]", "n1"), "--exclude=n1,n[3-4]"),
    "extra_args": (("--nice=3", " --nice=3", "--comment 'a b'"), "--comment=a b"),
    "place": ("excl", "W:place: not supported by Slurm"),
    "attributes": (("umask=027",), "W:attributes: not supported by Slurm"),
    "slice": ("v4-8", "W:slice: not supported by Slurm"),
    "num_slices": ((2,), "W:num_slices: not supported by Slurm"),
    "tpus_per_worker": (1, "W:tpus_per_worker: not supported by Slurm"),
    "retries_preemption": (3, "W:retries_preemption: not supported by Slurm"),
    "retries_failure": (0, "W:retries_failure: not supported by Slurm"),
    "grow_after": (60, "W:grow_after: not supported by Slurm"),
    "grow_every": (60, "W:grow_every: not supported by Slurm"),
    "runtime_env": ({"pip": ["a"]}, "W:runtime_env: not supported by Slurm"),
    "keep_files": ("oed", "W:keep_files: not supported by Slurm"),
    "launcher": (Launcher.TORCHRUN, "\ntorchrun \\\n"),
    "project": ("p q", "--wckey=p q"),
    "workspace": ("w", "--wckey=w"),
    "labels": (("b", "a"), "--wckey=a,b"),
    "begin": ("2026-12-01T08:00:00", "--begin=2026-12-01T08:00:00"),
    "files": ((".",), f"--chdir={PLACE.folder}/code"),
    "startup_hook": ("module load cuda", "\nmodule load cuda\nEND_OF_HOOK\n"),
    "environment": ({"V": "a 'b'\nc"}, "\nexport V='a '\"'\"'b'\"'\"'\nc'\n"),
    "container": (Container(Runtime.PODMAN, "i:1"), "\npodman run "),
    "call": (Call("m", "f"), "\npython3 -m hpcdash.job.runner --module=m --function=f "),
    "site": (Site(name_prefix="lab"), "--job-name=lab_exp-1a2b"),
}
# What the request's file said besides; it is not of the job.
NOT_SHOWN = {"said"}
BESIDE: dict[str, dict[str, Any]] = {
    "max_requeues": {"requeue": True, "checkpoints": "/c"},
    "call": {"command": ""},
    "script": {"command": ""},
    "workspace": {"site": Site(job_project_source="workspace")},
    "labels": {"site": Site(job_project_source="label")},
}
PRINTED = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.text(
    st.sampled_from("a \\\"'#$`%\t,-")
)


def made(place: Place = PLACE, /, **fields: Any) -> BatchScript:
    known: dict[str, Any] = {"command": "train", "slots": 8}
    return batch_script(Scheduler.SLURM, Request(**(known | fields)), place)


def options(script: BatchScript) -> dict[str, str | None]:
    """The directives as sbatch reads them, by their long names; each is there once."""
    read = sbatch.read_directives(script.text)
    assert (read.problems, read.script) == ((), ())
    names = [option.name for option in read.options]
    assert len(names) == len(set(names)), names
    return {option.name: option.value for option in read.options}


@for_each("name", REQUESTS)
def test_a_whole_script(name: str) -> None:
    assert_golden(f"slurm-{name}.sh", made(**_fields(REQUESTS[name])).text)


def _fields(request: Request) -> dict[str, Any]:
    return msgspec.structs.asdict(request)


@for_each("field", sorted({*Request.__struct_fields__} - NOT_SHOWN))
def test_each_field_of_a_request_is_in_the_script(field: str) -> None:
    value, wanted = SHOWN[field]
    script = made(**{field: value}, **BESIDE.get(field, {}))
    if wanted.startswith("W:"):
        assert wanted[2:] in "\n".join(script.warnings)
    elif wanted.startswith("--"):
        assert wanted in {
            f"--{name}" if given is None else f"--{name}={given}"
            for name, given in options(script).items()
        }
    else:
        assert wanted in script.text


def test_a_task_of_a_pool_has_nodes_of_its_own_and_starts_when_its_turn_comes() -> None:
    asked = options(made(share="HIGH", hold=True))
    assert {"hold", "requeue", "exclusive"} <= asked.keys()
    # What its owner holds is not the coordinator's to release.
    assert asked["comment"] == f"hpcdash-share:HIGH+paused:{PLACE.folder}"
    assert options(made(share="HIGH", extra_args=("--exclusive=user",)))["exclusive"] == "user"
    with pytest.raises(UsageError, match="begin: "):
        made(share="HIGH", begin="+60")


def test_without_the_library_nothing_is_on_python_s_path_and_slurm_is_asked_nothing() -> None:
    without = made(job_library=False, limit_seconds=60).text
    assert not [word for word in ("PYTHONPATH", "HPCDASH_", "squeue") if word in without]
    assert "PYTHONPATH" not in made(Place("u")).text
    container = Container(Runtime.PODMAN, "i:1")
    assert "--env=HPCDASH_END_TIME " in made(container=container).text
    assert "END_TIME" not in made(container=container, job_library=False).text


def test_ranks_count_nodes_only_where_no_launcher_numbers_processes_and_the_port_may_be_another() -> (
    None
):
    script = made(rank_variables="nodes", environment={"MASTER_PORT": "2300"}).text
    assert 'WORLD_SIZE="$SLURM_JOB_NUM_NODES" MASTER_PORT=2300 MASTER_IP\n' in script
    assert "\nexport MASTER_ADDR MASTER_PORT\n" in script
    with pytest.raises(UsageError, match="rank_variables: torchrun numbers the processes itself"):
        made(rank_variables="nodes", launcher=Launcher.TORCHRUN)


def test_what_may_be_requeued_keeps_the_log_of_what_it_did_before() -> None:
    assert options(made(requeue=True))["open-mode"] == "append"
    assert (
        options(made(requeue=True, extra_args=("--open-mode=truncate",)))["open-mode"] == "truncate"
    )
    assert "open-mode" not in options(made())


def test_logs_are_in_the_folder_of_the_launch_and_of_an_array_one_a_task() -> None:
    assert options(made())["output"] == f"{PLACE.folder}/%j.out"
    tasks = options(made(array=parse_tasks("1-3")))
    assert (tasks["output"], tasks["error"]) == (
        f"{PLACE.folder}/%A_%a.out",
        f"{PLACE.folder}/%A_%a.err",
    )
    assert options(made(Place("u")))["error"] == "%j.err"


def test_what_is_not_asked_for_is_left_to_the_scheduler() -> None:
    assert set(options(made())) == {
        "job-name",
        "output",
        "error",
        "gpus",
        "nodes",
        "ntasks-per-node",
        "no-requeue",
    }


def test_the_first_line_says_what_was_asked() -> None:
    def said(**fields: Any) -> str:
        return made(**fields).text.splitlines()[1]

    assert said(slots_per_node=4) == "# 2 nodes × 4 GPUs = 8; one command per node"
    assert said() == "# 8 GPUs on any number of nodes; one command per node"
    assert said(slots=0) == "# 1 node, 1 CPU; one command per node"
    assert (
        said(slots_per_node=8, launcher=Launcher.SRUN)
        == "# 1 node × 8 GPUs = 8; one srun task per slot"
    )


def test_a_variable_of_the_environment_goes_before_a_switch_of_that_name() -> None:
    text = made(kill_switch="/k", environment={"HPCDASH_KILL_SWITCH": "/mine"}).text
    assert "export HPCDASH_KILL_SWITCH=/mine\n" in text
    assert "=/k\n" not in text


@for_each(
    ("field", "option"),
    [
        ({"qos": "a"}, "--qos=b"),
        ({"account": "a"}, "-A b"),
        ({"limit_seconds": 60}, "-t 5"),
        ({"memory_bytes": 1 << 30}, "--mem=4G"),
        ({"memory_bytes": 1 << 30}, "--mem-per-cpu=4G"),
        ({"array": parse_tasks("1-3")}, "--array 1-4"),
        ({"after": ("1",)}, "-d singleton"),
        ({"hold": True}, "-H"),
        ({"signal": USR1}, "--signal=B:USR2@5"),
        ({"exclude_nodes": ("n1",)}, "-x n2"),
        ({"project": "a"}, "--wckey=b"),
        ({"name": "a"}, "-J b"),
        ({"slots_per_node": 4}, "--gpus-per-task=2"),
        ({"slots_per_node": 4, "slot_type": SlotType.CPU}, "-c 2"),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_an_option_that_a_field_says_too_is_refused_by_the_name_of_both(
    field: dict[str, Any], option: str
) -> None:
    with pytest.raises(UsageError) as refused:
        made(**field, extra_args=(option,))
    assert option.split("=")[0].split(" ")[0] in str(refused.value)
    name = next(iter(field))
    assert {"limit_seconds": "time", "memory_bytes": "memory"}.get(name, name) in str(refused.value)


@given(PRINTED)
def test_a_value_is_read_back_as_it_was_or_refused_by_its_field(value: str) -> None:
    for field, option in (
        ("queue", "partition"),
        ("account", "account"),
        ("qos", "qos"),
        ("work_dir", "chdir"),
    ):
        try:
            asked: dict[str, Any] = {field: value}
            script = made(**asked)
        except UsageError as refused:
            told = str(refused)
            assert told.startswith(f"{field}: ")
        else:
            assert options(script).get(option, "") == value


@given(PRINTED, PRINTED)
def test_no_name_nor_project_makes_another_directive(name: str, project: str) -> None:
    try:
        given_options = options(made(name=name, project=project))
    except HpcdashError:
        return
    assert set(given_options) - {"wckey"} == set(options(made()))


@pytest.mark.system
@given(
    st.dictionaries(
        st.sampled_from(["V", "W_1"]),
        st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
    )
)
def test_a_variable_is_in_the_step_as_it_was(environment: dict[str, str]) -> None:
    try:
        text = made(environment=environment).text
    except UsageError:
        assert any("\0" in value for value in environment.values())
        return
    stand_in = "srun() { env -0; }\n"
    ran = subprocess.run(
        ["bash", "-c", stand_in + text], capture_output=True, env={"PATH": "/usr/bin:/bin"}
    )
    seen = dict(entry.split("=", 1) for entry in ran.stdout.decode().split("\0") if "=" in entry)
    for name, value in environment.items():
        assert seen.get(name, "") == value


@for_each("nodes", [(8, 4), (8, 8), (8, None)], ids=["2 nodes", "1 node", "spread"])
def test_only_where_slurm_may_give_other_nodes_is_their_number_looked_at(
    nodes: tuple[int, int | None],
) -> None:
    text = made(slots=nodes[0], slots_per_node=nodes[1]).text
    assert ("Not started." in text) == (nodes[1] is not None)
    assert "Not started." not in made(slots_per_node=4, site=Site(tres_supported=False)).text


def test_a_script_of_one_task_has_nothing_that_only_several_need() -> None:
    assert "on_node" not in made(slots=2, slots_per_node=2).text
    assert "on_node" in made(slots=4, slots_per_node=2).text
    assert "on_node" in made(slots=2, slots_per_node=2, launcher=Launcher.SRUN).text


def test_a_staged_script_is_run_from_where_it_is() -> None:
    place = Place("u", "/l", script="/l/files/a b.sh")
    assert "\nbash '/l/files/a b.sh'\n" in made(place, command="", script="a b.sh").text
    assert (
        "\n/l/files/run\n"
        in made(Place("u", "/l", script="/l/files/run"), command="", script="run").text
    )
    text = made(
        Place("u", "/l", script="/l/t.py"), command="", script="t.py", launcher=Launcher.TORCHRUN
    ).text
    assert '--master-port="$MASTER_PORT" \\\n  /l/t.py\n' in text


def test_a_login_is_sourced_from_its_file_and_not_written() -> None:
    text = made(
        Place("u", "/l", login="/l/login"), container=Container(Runtime.APPTAINER, "r.io/i:1")
    ).text
    assert "\nsource /l/login\n" in text
    assert "PASSWORD" not in text


def test_a_container_sees_the_folders_that_the_request_names() -> None:
    container = Container(Runtime.APPTAINER, "/i.sif", ("/w:/w:ro",))
    text = made(container=container, work_dir="/w", kill_switch="/s/KILL").text
    assert f"--bind {PLACE.folder} --bind /s " in text
    assert text.count("--bind /w") == 1


def test_other_things_that_slurm_counts_are_asked_for_beside_the_gpus() -> None:
    gres = made(
        slots_per_node=4, site=Site(tres_supported=False), extra_args=("--gres=tmp:10", "--gres=")
    )
    assert options(gres)["gres"] == "gpu:4,tmp:10"
    assert options(made(extra_args=("--gres=tmp:10",)))["gres"] == "tmp:10"
    none = made(
        slots_per_node=2,
        site=Site(tres_supported=False),
        extra_args=("--gres=none", "--gres=tmp:10"),
    )
    assert options(none)["gres"] == "gpu:2,tmp:10"


def test_what_a_person_should_know_is_told_with_the_script() -> None:
    warnings = made(
        name="a b", slots=6, slots_per_node=4, command="python x.py", launcher=Launcher.TORCHRUN
    ).warnings
    told = "\n".join(warnings)
    for words in (
        "named ab",
        "cannot split 6 GPUs into tasks of 4",
        "2 more than the 6",
        "python is removed",
    ):
        assert words in told


def test_an_option_that_the_script_should_know_of_is_told_to_be_a_field() -> None:
    told = "\n".join(made(extra_args=("--signal=B:USR1@60", "-a 1-3")).warnings)
    assert "--signal in extra_args" in told
    assert "-a in extra_args" in told


def test_a_folder_that_no_directive_can_hold_is_refused() -> None:
    with pytest.raises(UsageError, match="storage_root"):
        Place("u", "/with space")


@for_each("scheduler", list(Scheduler))
@for_each(
    ("name", "is_secret"),
    [
        ("WANDB_API_KEY", True),
        ("HF_TOKEN", True),
        ("db_password", True),
        ("TOKENIZER", False),
        ("SORT_KEY", False),
    ],
)
def test_a_secret_among_the_variables_is_in_a_file_of_the_launch_or_warned_of(
    scheduler: Scheduler, name: str, is_secret: bool
) -> None:
    request = Request(command="true", environment={name: "x"}, startup_hook="true")
    without = batch_script(scheduler, request, Place("u"))
    assert (
        f"environment: {name} would be in the script" in "\n".join(without.warnings)
    ) is is_secret
    there = batch_script(scheduler, request, PLACE)
    assert "would be in" not in "\n".join(there.warnings)
    assert (f"{name}=x" not in there.text, there.text.count(f". {PLACE.folder}/secrets.sh")) == (
        is_secret,
        2 * is_secret,
    )
    assert ("process list" in "\n".join(without.warnings)) is (
        is_secret and scheduler is Scheduler.PBS
    )


def test_pyxis_s_container_is_options_of_srun() -> None:
    container = Container(
        Runtime.PYXIS, "nvcr.io/nvidia/pytorch:24.01", ("/data:/d:ro,nosuid",), force_pull=True
    )
    script = made(
        container=container,
        environment={"A": "1"},
        work_dir="/w",
        slots_per_node=4,
        startup_hook="true",
    )
    lines = [line.strip(" \\") for line in script.text.splitlines() if "--container-" in line]
    assert lines == [
        "'--container-image=nvcr.io#nvidia/pytorch:24.01'",
        "--container-mount-home",
        f"--container-mounts=/data:/d:ro+nosuid,/w:/w,{PLACE.folder}:{PLACE.folder}",
        "--container-workdir=/w",
        "--container-env=A",
    ]
    assert "hpcdash: the container is up on" in script.text
    assert script.warnings == ("force_pull: pyxis already imports the image again for each job",)
    for fields in (
        {"container": Container(Runtime.PYXIS, "x", ("/a,b:/c",))},
        {"container": container, "launcher": Launcher.MPIRUN, "slots": 1},
        {"container": Container(Runtime.PODMAN, "x"), "launcher": Launcher.MPIRUN},
    ):
        with pytest.raises(UsageError, match=r"^(?:container|launcher)"):
            made(**fields)
    with pytest.raises(UsageError, match="pyxis works only with srun, not with PBS"):
        batch_script(Scheduler.PBS, Request(command="a", container=container), PLACE)
    with pytest.raises(UsageError, match=r"^container\.runtime: docker would run as root"):
        made(container=Container(Runtime.DOCKER, "x"))


@for_each("runtime", [one for one in Runtime if one not in (Runtime.NONE, Runtime.DOCKER)])
def test_in_a_container_too_the_command_starts_in_the_folder_of_its_files(runtime: Runtime) -> None:
    text = made(container=Container(runtime, "lab/net:1"), files=(".",), work_dir="src").text
    assert text.count(f"cd -- {PLACE.folder}/code/src || exit\n") == 1
    assert "packages.txt" not in text


def test_a_begin_after_the_submission_is_slurm_s_alone() -> None:
    assert options(made(begin="+2h"))["begin"] == "now+7200"
    with pytest.raises(UsageError, match=r"begin: PBS expects a time"):
        batch_script(Scheduler.PBS, Request(command="a", begin="+2h"), PLACE)
