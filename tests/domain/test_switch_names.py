"""Which file a script, an environment or a list of variables names as a training's switch."""

from __future__ import annotations

from hpcdash.domain.switches import (
    NamedSwitch,
    SwitchKind,
    absolute_path,
    format_unknown,
    path_problem,
    switch_in_environment,
    switch_in_script,
    variables_in_list,
)
from tests.support.records import for_each

KILL, SAVE = SwitchKind.KILL, SwitchKind.SAVE
MEGATRON = """#!/bin/bash
#SBATCH --array=1-10%1
WORK=/gpfs/work
REPO="$WORK/tr11/code"   # the checkout
KILL_SWITCH_PATH=$REPO/kill-switch-tr11
srun python pretrain_gpt.py \\
    --save /x \\
    --kill-switch-path ${REPO}/kill-switch \\
    --exit-duration-in-mins 5990
"""


def named(script: str, kind: SwitchKind = KILL, **known: str) -> NamedSwitch:
    found = switch_in_script(kind, script, known)
    assert found is not None
    return found


def test_a_program_s_option_is_read_with_the_script_s_own_variables() -> None:
    found = named(MEGATRON)
    assert (found.path, found.unknown) == ("/gpfs/work/tr11/code/kill-switch", ())
    assert found.source == "--kill-switch-path in line 8 of the script"


def test_hpcdash_s_own_variable_counts_before_an_option_and_others() -> None:
    script = MEGATRON + "export HPCDASH_KILL_SWITCH='/scratch/a b/KILL $x'\n"
    assert named(script).path == "/scratch/a b/KILL $x"


@for_each(
    ("line", "path"),
    [
        ("KILL_SWITCH=/a/KILL python train.py", "/a/KILL"),
        ('export KILL_SWITCH="/a/my kill"', "/a/my kill"),
        (r"KILL_SWITCH=/a/my\ kill; go", "/a/my kill"),
        ("setenv HPCDASH_KILL_SWITCH /a/KILL", "/a/KILL"),
        ("python train.py --kill_switch_path=/a/KILL --x", "/a/KILL"),
        ("python train.py --kill-switch '/a/-KILL'", "/a/-KILL"),
        ("KILL_SWITCH=${HPCDASH_KILL_SWITCH:-/a/KILL}", "/a/KILL"),
        ("#SBATCH --export=ALL,HPCDASH_KILL_SWITCH=/a/KILL,B=1", "/a/KILL"),
        ("#PBS -v HPCDASH_KILL_SWITCH=/a/KILL", "/a/KILL"),
        ("export A=1 HPCDASH_KILL_SWITCH=/a/KILL HPCDASH_SAVE_SWITCH=/a/SAVE", "/a/KILL"),
    ],
)
def test_ways_to_name_it(line: str, path: str) -> None:
    found = named(f"#!/bin/bash\n{line}\n")
    assert (found.path, found.unknown) == (path, ())


@for_each(
    "line",
    [
        "# KILL_SWITCH=/a/KILL",
        "MY_KILL_SWITCHES=/a",
        "python train.py --kill-switch --x",
        "KILL_SWITCH=",
        "",
    ],
)
def test_what_names_none(line: str) -> None:
    assert switch_in_script(KILL, f"#!/bin/bash\n{line}\n", {}) is None


def test_a_save_switch_is_no_kill_switch() -> None:
    script = "export HPCDASH_SAVE_SWITCH=/a/SAVE\n"
    assert switch_in_script(KILL, script, {}) is None
    assert named(script, SAVE).path == "/a/SAVE"


@for_each(
    ("line", "unknown"),
    [
        ("KILL_SWITCH=$SCRATCH/KILL", ("SCRATCH",)),
        ("KILL_SWITCH=$(mktemp -u)", ("a command's output",)),
        ("A=$WORK/run\nKILL_SWITCH=$A/KILL", ("WORK",)),
        ("KILL_SWITCH=~/KILL", ("HOME",)),
    ],
)
def test_what_is_not_known_of_a_path_is_said_and_never_guessed(
    line: str, unknown: tuple[str, ...]
) -> None:
    found = named(line)
    assert found.unknown == unknown
    assert unknown[0] in format_unknown(found)


def test_values_that_are_known_are_put_in() -> None:
    assert (
        named("KILL_SWITCH=~/k-$SLURM_JOB_ID", HOME="/home/alice", SLURM_JOB_ID="7").path
        == "/home/alice/k-7"
    )


@for_each(
    ("path", "said"),
    [
        ("/a/K\nILL", "newline"),
        ("/a/../KILL", ".."),
        ("/a/./KILL", ".."),
        ("KILL", "begin with /"),
        ("/a/", "folder"),
        ("", "no file"),
        ("/" + "k" * 5000, "too long"),
    ],
)
def test_paths_that_can_be_no_switch(path: str, said: str) -> None:
    assert said in path_problem(path)


@for_each("path", ["/a/KILL", "/a b/-rf", "/KILL", "/a/$(reboot)", "/ä/'\""])
def test_odd_paths_that_can_be_one(path: str) -> None:
    assert path_problem(path) == ""


def test_a_relative_path_is_of_the_job_s_working_directory() -> None:
    assert absolute_path("./KILL", "/run/a/") == "/run/a/KILL"
    assert absolute_path("//a//KILL", "/run") == "/a/KILL"
    assert absolute_path("KILL", None) == "KILL"


def test_a_list_of_variables_ends_a_value_at_a_comma_that_is_not_escaped() -> None:
    listed = r"PBS_O_HOME=/h,HPCDASH_KILL_SWITCH=/a\,b/KILL,X=HPCDASH_SAVE_SWITCH"
    told = variables_in_list(listed, ("HPCDASH_KILL_SWITCH", "HPCDASH_SAVE_SWITCH"))
    assert told == {"HPCDASH_KILL_SWITCH": "/a,b/KILL"}
    found = switch_in_environment(KILL, told, "the job's Variable_List")
    assert found == NamedSwitch("/a,b/KILL", "HPCDASH_KILL_SWITCH in the job's Variable_List")
