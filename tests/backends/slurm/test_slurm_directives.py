"""Each #SBATCH line in a few words."""

from __future__ import annotations

from hpcdash.backends.slurm.explain import explain
from hpcdash.backends.slurm.options import OPTIONS
from tests.support.records import for_each

EXPLAINED = [
    ("-t 2:00:00", "time limit 2 h"),
    ("--time=90", "time limit 1 h 30 min"),
    ("-t 1-12", "time limit 1 d 12 h"),
    ("-t 30:15", "time limit 30 min 15 s"),
    ("-t UNLIMITED", "no time limit"),
    ("-N 4", "4 nodes"),
    ("-N1", "1 node"),
    ("--nodes=2-4", "2 to 4 nodes"),
    ("-n 1", "1 task"),
    ("--gpus-per-node=8", "8 GPUs per node"),
    ("--gpus-per-node h100:8", "8 GPUs (h100) per node"),
    ("-G 1", "1 GPU"),
    ("--gres=gpu:a100:2,shard:4", "2 GPUs (a100) per node and 4 shard per node"),
    ("--gres=gpu", "1 GPU per node"),
    ("--mem 4000", "4000M of memory per node"),
    ("--mem-per-cpu=2G", "2G of memory per CPU"),
    ("--mem=0", "all the memory of its nodes"),
    ("-o logs/%x-%j.out", "stdout to logs/%x-%j.out"),
    ("-e /dev/null", "stderr discarded"),
    ("-d afterok:41", "starts after job 41 succeeded"),
    ("-d afternotok:41:42", "starts after jobs 41, 42 failed"),
    (
        "--dependency=afterany:1?singleton",
        "starts after job 1 ended or after your earlier jobs of this name end",
    ),
    ("-d after:5+10", "starts 10 min after job 5 started"),
    ("-a 1-10%1", "array of 10 tasks, one at a time"),
    ("--array=0-15:4,20", "array of 5 tasks"),
    ("--signal=B:USR1@600", "sends USR1 to the batch shell 600 s before the limit"),
    ("--signal=SIGTERM", "sends TERM to its steps 60 s before the limit"),
    ("--signal=10@30", "sends USR1 to its steps 30 s before the limit"),
    ("--part gpu --ntasks-per-n 4", "partition gpu; 4 tasks per node"),
    ("--exclusive", "exclusive nodes"),
    ("--exclusive=user", "nodes shared only with your own jobs"),
    ("--mail-type=END,FAIL", "mail when it ends or it fails"),
    ("-J 'a # b' # a comment", "called a # b"),
    ("-HJ name -t5", "submitted held; called name; time limit 5 min"),
    ("--export=NONE", "passes no environment variables"),
    ("hetjob", "the following lines are for the next part of the job"),
    ("--foo -N2", "unknown to Slurm: --foo; 2 nodes"),
    ("-t", "-t is missing its value"),
    ("-J a b", "called a; not an option: b"),
    ("--hold=yes", "--hold is given an invalid value"),
]


@for_each(("options", "words"), EXPLAINED)
def test_a_directive_is_told_in_plain_words(options: str, words: str) -> None:
    assert explain(f"#SBATCH {options}") == words


@for_each(
    "line",
    ["", "#!/bin/sh", "#PBS -l nodes=1", " #SBATCH -N 1", "##SBATCH -N 1", "#SBATCH", "srun"],
)
def test_other_lines_say_nothing(line: str) -> None:
    assert explain(line) == ""


@for_each("name", OPTIONS)
def test_every_option_of_sbatch_has_words(name: str) -> None:
    takes = OPTIONS[name]
    words = explain(f"#SBATCH --{name}{'' if takes == 'nothing' else '=7'}")
    assert words
    assert "unknown" not in words
    if takes == "maybe":
        assert explain(f"#SBATCH --{name}")


def test_an_abbreviation_of_several_options_names_them() -> None:
    assert "ambiguous: --nodefile, --nodelist, --nodes" in explain("#SBATCH --node=3")
