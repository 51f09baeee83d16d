"""What is found wrong with a batch script before it is submitted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hpcdash.domain.demand import LintFinding
from hpcdash.domain.offers import Offers
from tests.services.submit.test_request_lint import OFFERS
from tests.support.records import for_each
from tests.support.scripts import lint_script

HEAD = b"#!/bin/bash\n"


def slurm(*lines: str, head: bytes = HEAD, offers: Offers = OFFERS) -> tuple[LintFinding, ...]:
    return lint_script(head + "\n".join((*lines, "srun x", "")).encode(), "slurm", offers)


def pbs(*lines: str, head: bytes = HEAD) -> tuple[LintFinding, ...]:
    return lint_script(head + "\n".join((*lines, "x", "")).encode(), "pbs", OFFERS)


def places(found: tuple[LintFinding, ...]) -> list[tuple[str, str]]:
    return [(one.severity, one.field) for one in found]


@for_each(
    "lines",
    [
        ("#SBATCH -p gpu -t 1-0 --gpus=a100:8 --mem=400G", "#SBATCH -A chem"),
        ("#SBATCH --gres=gpu:2,license:4 -N 2 -p gpu",),
        ("#SBATCH --partition=main,long --time=60:00:00",),
        ("#SBATCH --time=infinite -p long", "# a – dash, and “quotes”", 'echo "Ångström – fine"'),
        ("#SBATCH --nodes=2-4 --mem=0 --output=%x-%j.out",),
    ],
)
def test_a_good_script_finds_nothing(lines: tuple[str, ...]) -> None:
    assert slurm(*lines) == ()


@for_each(
    ("script", "words"),
    [
        (b"", "empty"),
        (b" \n\n", "empty"),
        (b"srun x\n", "not #!"),
        (b"\n#!/bin/bash\nsrun x\n", "not #!"),
        (b"\xef\xbb\xbf#!/bin/bash\nsrun x\n", "byte-order mark (UTF-8)"),
        ("#!/bin/bash\nx\n".encode("utf-16"), "byte-order mark (UTF-16)"),
        (b"#!/bin/bash\nx\0\n", "NUL"),
        (b"#!/bin/bash\r\nx\r\n", "lines end in CRLF"),
        (b"#!/bin/bash\nx\r\ny\n", "1 lines end in CRLF"),
    ],
)
def test_what_sbatch_would_not_take_is_an_error(script: bytes, words: str) -> None:
    (one,) = lint_script(script, "slurm", OFFERS)
    assert one.severity == "error"
    assert words in one.text


def test_a_shebang_that_is_not_first_is_pointed_at() -> None:
    (one,) = lint_script(b"\n#!/bin/bash\nx\n", "slurm", OFFERS)
    assert one.next_step == "#! must be at the very start."


def test_qsub_runs_a_script_without_a_shebang_in_the_login_shell() -> None:
    (one,) = pbs("#PBS -q main", head=b"")
    assert (one.severity, one.field) == ("warning", "line 1")
    assert "login shell" in one.text


@for_each(
    ("line", "severity", "step"),
    [
        ("--partitoin=main", "error", "Did you mean --partition?"),
        ("--site-thing=1", "warning", "It rejects the script unless a site plugin accepts it."),
        ("--gpu=2", "error", "sbatch rejects the script."),
        ("--time", "error", "sbatch rejects the script."),
        ("-t 90m", "error", "Use minutes, hours:minutes:seconds or days-hours."),
        (
            "--output=$HOME/x",
            "warning",
            "Write the value itself, or set the option on the command line.",
        ),
        (
            "--output=~/x",
            "warning",
            "Write the value itself, or set the option on the command line.",
        ),
        ("–p main", "error", "Type it again."),
        ("--time=“1:00”", "error", "Type it again."),
        ("-p\u00a0main", "error", "Type it again."),
    ],
)
def test_an_option_that_does_not_do_what_it_seems_to_is_found_at_its_line(
    line: str, severity: str, step: str
) -> None:
    (one,) = slurm(f"#SBATCH {line}")
    assert (one.severity, one.field, one.next_step) == (severity, "line 2", step)


def test_a_dash_of_print_in_a_command_is_a_warning() -> None:
    assert places(slurm("python train.py —lr 0.1")) == [("warning", "line 2")]


@for_each(
    ("lines", "place"),
    [
        (("#SBATCH -p main", "module load x", "#SBATCH -t 1:00"), "line 4"),
        (("  #SBATCH -t 1:00",), "line 2"),
        (("#sbatch -t 1:00",), "line 2"),
    ],
)
def test_a_directive_that_is_not_read_is_told(lines: tuple[str, ...], place: str) -> None:
    (one,) = slurm(*lines)
    assert (one.severity, one.field) == ("warning", place)
    assert "ignored" in one.text


def test_of_many_directives_that_are_not_read_a_few_are_named() -> None:
    assert len(slurm("x", *["#SBATCH -n 1"] * 100)) == 5


@pytest.mark.parametrize("lint", [slurm, pbs])
def test_a_directive_with_a_blank_after_its_first_letter_is_told(
    lint: Callable[..., tuple[LintFinding, ...]],
) -> None:
    magic = "# SBATCH --hold" if lint is slurm else "# PBS -h"
    (one,) = lint(magic)
    assert (one.severity, one.field, one.text) == (
        "warning",
        "line 2",
        "ignored: there is a space after #",
    )
    assert lint(f"#{magic}", "# SBATCH and # PBS lines are for others") == ()


def test_pbs_reads_an_indented_directive() -> None:
    assert pbs("  #PBS -q main") == ()


def test_the_directives_of_the_other_scheduler_are_told() -> None:
    assert places(slurm("#PBS -l walltime=1:00:00")) == [("warning", "line 2")]
    assert places(pbs("#SBATCH -p main")) == [("error", "line 2")]
    assert places(pbs("#PBS -q main", "#SBATCH -p main")) == [("warning", "line 3")]


@for_each(
    ("line", "place_words"),
    [
        ("-p nosuch", "no queue 'nosuch'"),
        ("-t 3-0", "exceeds the limit of queue main"),
        ("-t 2881", "exceeds the limit of queue main"),
        ("-N 5", "5 nodes requested, but queue main has only 4"),
        ("-n 33", "33 CPUs requested"),
        ("-c 9", "9 CPUs per node requested"),
        ("--gpus=1", "queue main has no GPUs"),
        ("-p gpu --gres=gpu:9", "9 GPUs per node requested"),
        ("-p gpu --gpus-per-node=h100:8", "no GPU of type 'h100'"),
        ("--mem=65G", "65G of memory per node requested, more"),
        ("--mem=70000", "68.4G of memory per node requested, more"),
        ("-A biology", "account 'biology'"),
        ("-q nosuch", "no QoS 'nosuch'"),
        ("-p main,gpu -t 3-0", "exceeds the limit"),
    ],
)
def test_what_a_script_for_slurm_asks_for_is_held_against_the_offers(
    line: str, place_words: str
) -> None:
    (one,) = slurm(f"#SBATCH {line}")
    assert (one.severity, one.field) == ("error", "line 2")
    assert place_words in one.text


@for_each(
    ("line", "words"),
    [
        ("-q nosuch@server", "no queue 'nosuch'"),
        ("-l walltime=72:00:00", "exceeds the limit of queue main"),
        ("-l walltime=3h", "is not a time"),
        ("-l nodes=5:ppn=2", "5 nodes requested"),
        ("-l select=1:ngpus=1", "queue main has no GPUs"),
        ("-q gpu -l select=2:ngpus=9:mem=1gb", "9 GPUs per node requested"),
        ("-l select=1:ncpus=9", "9 CPUs per node requested"),
        ("-l select=1:mem=65gb", "65G of memory"),
        ("-l", "missing its value"),
        ("–q main", "a typographic dash"),
    ],
)
def test_what_a_script_for_pbs_asks_for_is_held_against_the_offers(line: str, words: str) -> None:
    (one,) = pbs(f"#PBS {line}")
    assert (one.severity, one.field) == ("error", "line 2")
    assert words in one.text


def test_a_time_that_is_said_over_the_script_is_the_one_that_counts() -> None:
    script = b"#!/bin/bash\n#SBATCH -p gpu\n#SBATCH --time=900-0\nx\n"
    assert [one.field for one in lint_script(script, "slurm", OFFERS)] == ["line 3"]
    assert lint_script(script, "slurm", OFFERS, ("--time=00:10:00",)) == ()
    (one,) = lint_script(script, "slurm", OFFERS, ("--time=901-0",))
    assert (one.field, one.severity) == ("time", "error")
    (one,) = lint_script(script, "slurm", OFFERS, ("--time=10", "--partition=gone"))
    assert one.field == "queue"


def test_a_walltime_that_is_said_over_the_script_is_the_one_that_counts() -> None:
    script = b"#!/bin/bash\n#PBS -q gpu -l walltime=9000:00:00\nx\n"
    assert [one.field for one in lint_script(script, "pbs", OFFERS)] == ["line 2"]
    assert lint_script(script, "pbs", OFFERS, ("-l", "walltime=0:10:00")) == ()
    assert [
        one.field for one in lint_script(script, "pbs", OFFERS, ("-lwalltime=9001:00:00",))
    ] == ["time"]
