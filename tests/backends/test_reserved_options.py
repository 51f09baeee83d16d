"""What a person may not say beside a request, in every spelling."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcdash.backends.pbs.options import RESERVED as PBS_RESERVED
from hpcdash.backends.pbs.options import extra_options as pbs_extra_options
from hpcdash.backends.slurm.options import extra_options as slurm_extra_options
from hpcdash.errors import UsageError
from tests.support.records import for_each

LONG = (
    *(
        "--ntasks-per-node",
        "--tasks-per-node",
        "--gpus",
        "--nodes",
        "--ntasks",
        "--chdir",
        "--error",
        "--output",
    ),
    *("--partition", "--requeue", "--no-requeue", "--wckey"),
)
ABBREVIATED = ("--nod=4", "--part=x", "--no-req", "--outp=x", "--err x", "--gpus=1", "--wc=x")
LETTERS = ("-G", "-N", "-n", "-D", "-e", "-o", "-p")


@for_each("spelling", ["{}=4", "{} 4", "  {}=4  "])
@for_each("option", LONG)
def test_slurm_options_of_the_request_are_refused(option: str, spelling: str) -> None:
    written = option if "requeue" in option else spelling.format(option)
    with pytest.raises(UsageError, match=option):
        slurm_extra_options([written])


@for_each("spelling", ["{}4", "{} 4", " {}4"])
@for_each("letter", LETTERS)
def test_their_letters_are_refused(letter: str, spelling: str) -> None:
    with pytest.raises(UsageError, match=letter):
        slurm_extra_options([spelling.format(letter)])


@for_each("abbreviated", ABBREVIATED)
def test_their_abbreviations_are_refused(abbreviated: str) -> None:
    with pytest.raises(UsageError, match=abbreviated.split("=")[0].split(" ")[0]):
        slurm_extra_options([abbreviated])


@for_each("option", ["--test-only", "--wait", "-W", "--wrap=x", "--help", "--version"])
def test_options_with_which_sbatch_submits_no_job_that_runs_by_itself_are_refused(
    option: str,
) -> None:
    with pytest.raises(UsageError, match=option.partition("=")[0]):
        slurm_extra_options([option])


@for_each("text", ["--comment='a\ntouch /tmp/x'", "-A 'a\ntouch /tmp/x'", "-A x\r#PBS -h"])
def test_what_would_be_a_line_of_its_own_in_the_script_is_refused(text: str) -> None:
    for check in (slurm_extra_options, pbs_extra_options):
        with pytest.raises(UsageError, match="one line"):
            check([text])


def test_a_word_that_is_no_option_is_refused_as_sbatch_would_leave_out_what_follows() -> None:
    with pytest.raises(UsageError, match="'two'"):
        slurm_extra_options(["--comment=one two --nice=3"])
    assert slurm_extra_options(['--comment="one two"', "--mem 3G"]) == (
        '--comment="one two"',
        "--mem 3G",
    )


@for_each("gres", ["--gres=gpu", "--gres=gpu:4", "--gres=cpu:1,gpu:a100:2", "--gres gpu:1"])
def test_gpus_as_a_resource_of_one_s_own_are_refused(gres: str) -> None:
    with pytest.raises(UsageError, match="gpu"):
        slurm_extra_options([gres])


def test_other_slurm_options_stay_in_order_each_once() -> None:
    given_options = [
        "--gpus-per-task=2",
        "--nice=3",
        "--gres=cpu:100",
        "--gres=",
        " --nice=3 ",
        "-A lab",
    ]
    assert slurm_extra_options(given_options) == (
        "--gpus-per-task=2",
        "--nice=3",
        "--gres=cpu:100",
        "--gres=",
        "-A lab",
    )
    assert slurm_extra_options([], ["n1", "n2", "n1"]) == ("--exclude=n1,n2",)


@for_each("letter", sorted(PBS_RESERVED - {"G"}))
@for_each("spelling", ["-{}", "-A acct   -{}"])
def test_pbs_options_of_the_request_are_refused_wherever_they_stand(
    letter: str, spelling: str
) -> None:
    value = "" if letter in "hIVXz" else " x"
    with pytest.raises(UsageError, match=f"-{letter}"):
        pbs_extra_options([spelling.format(letter) + value])


@for_each("word", ["--", "--version", "-G"])
def test_words_of_other_qsubs_are_refused(word: str) -> None:
    with pytest.raises(UsageError, match=word):
        pbs_extra_options([word])


def test_all_options_that_are_the_request_s_are_told_at_once() -> None:
    with pytest.raises(UsageError) as refused:
        slurm_extra_options(["-N4", "--comment=x", "--wait", "-n 2"])
    assert [word for word in refused.value.message.split() if word.startswith("-")] == [
        "-N",
        "--wait",
        "-n",
    ]
    assert refused.value.next_step == "Use slots and slots_per_node instead. Remove it."
    with pytest.raises(
        UsageError, match=r"-q is not allowed in extra_args.*; -J is not allowed in extra_args"
    ):
        pbs_extra_options(["-q x -J 1-3"])


def test_other_pbs_options_stay_in_order_each_once_and_resources_are_left_to_the_select() -> None:
    assert pbs_extra_options(["-A acct", "-l mem=4gb", "-m abe", "-A acct", '-A "two words"']) == (
        "-A acct",
        "-m abe",
        '-A "two words"',
    )


def test_an_option_and_its_value_may_be_two_items() -> None:
    assert pbs_extra_options(["-A", "my lab", "-m", "abe"]) == ('-A "my lab"', "-m abe")
    assert slurm_extra_options(["-A", "lab", "--comment", "a b"]) == ("-A lab", '--comment "a b"')
    for check, reserved in ((pbs_extra_options, "-q"), (slurm_extra_options, "-N")):
        with pytest.raises(UsageError, match=f"{reserved} is not allowed in extra_args"):
            check([reserved, "4"])


def test_an_option_that_lacks_its_value_takes_no_other_option_for_it() -> None:
    with pytest.raises(UsageError, match="-A is missing its value"):
        pbs_extra_options(["-A", "-m abe"])


@given(st.text(alphabet="-NnGDeop=4 abcgrst\"'", max_size=20))
def test_any_text_is_kept_or_refused(text: str) -> None:
    for check in (slurm_extra_options, pbs_extra_options):
        with contextlib.suppress(UsageError):
            assert all(option.strip() for option in check([text]))
