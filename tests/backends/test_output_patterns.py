"""The patterns of output files become the paths that slurmd 22.05.8 made of them."""

from __future__ import annotations

import pytest

from hpcdash.backends.output_patterns import (
    PathFacts,
    default_pattern,
    finish_shown,
    output_path,
    paths_as_shown,
    shown_is_doubtful,
)
from tests.support.records import for_each

JOB = PathFacts("9", "/w", "alice", "we irdx", "n1")
TASK = PathFacts("8", "/w", "alice", "sweep", "n2", array_id="5", task="13", is_array=True)
WAITING_TASKS = PathFacts("", "/w", "alice", "sweep", "", array_id="5", is_array=True)
# Pattern, then the name of the file that appeared.
SEEN = [
    ("slurm-%j.out", JOB, "slurm-9.out"),
    ("slurm-%A_%a.out", TASK, "slurm-5_13.out"),
    ("%j_%J_%A_%a", TASK, "8_8_5_13"),
    ("%A_%a", JOB, "9_4294967294"),
    ("%u_%x_%N_%n_%t_%s", JOB, "alice_we irdx_n1_0_0_batch"),
    ("%5j_%3n_%3t_%4A_%4J_%0j", JOB, "00009_000_000_0009_0009_9"),
    ("%15j", JOB, "0000000009"),
    ("%12x_%9u_%3s_%4N", JOB, "we irdx_alice_batch_n1"),
    ("%4A_%3a_%10x", TASK, "0005_013_sweep"),
    ("%b_%z_%Q", TASK, "%b_%z_%Q"),
    ("%%4_%%j_%", JOB, "%4_%j_%"),
    ("%3%", JOB, "3%"),
    ("k%%%j", JOB, "k%9"),
    (r"a\%j.out", JOB, "a%j.out"),
    (r"b\\/%j.out", JOB, r"b\/%j.out"),
    (r"%\%j", JOB, "%%j"),
]


@for_each(("pattern", "facts", "file"), SEEN)
def test_a_pattern_becomes_the_file_that_slurmd_makes(
    pattern: str, facts: PathFacts, file: str
) -> None:
    assert output_path(pattern, facts) == f"/w/{file}"


@for_each(
    ("pattern", "facts", "file"), [one for one in SEEN if "\\" not in one[0] and "%%" not in one[0]]
)
def test_what_scontrol_shows_is_finished_to_the_same_file(
    pattern: str, facts: PathFacts, file: str
) -> None:
    assert finish_shown(paths_as_shown(pattern, facts)[0], facts) == f"/w/{file}"


@pytest.mark.parametrize("pattern", [r"a\%j.out", "%%j"])
def test_a_path_that_may_stand_for_two_patterns_is_doubtful(pattern: str) -> None:
    for shown in paths_as_shown(pattern, JOB):
        assert shown_is_doubtful(shown, JOB)


@for_each(
    ("pattern", "facts", "up_to_22_05", "from_23_02", "from_25_05"),
    [
        ("slurm-%j.out", JOB, "slurm-9.out", "slurm-9.out", "slurm-9.out"),
        ("%4A_%3a_%10x", TASK, "%4A_%3a_%10x", "0005_013_sweep", "0005_013_sweep"),
        ("%%4_%%j_%N", JOB, "%%4_%9_%N", "%4_%j_%N", "%4_%j_%N"),
        ("%A.%b", TASK, "5.%b", "5.%b", "5.3"),
    ],
)
def test_releases_of_scontrol_fill_in_more_and_more(
    pattern: str, facts: PathFacts, up_to_22_05: str, from_23_02: str, from_25_05: str
) -> None:
    assert paths_as_shown(pattern, facts) == tuple(
        f"/w/{name}" for name in (up_to_22_05, from_23_02, from_25_05)
    )


def test_a_name_with_a_sign_of_its_own_makes_no_doubt() -> None:
    named = PathFacts("9", "/w", "alice", "100%job", "n1")
    assert not shown_is_doubtful("/w/100%job-9.out", named)
    assert shown_is_doubtful("/w/100%job-%4j.out", named)


def test_an_ordinary_path_is_not_doubtful() -> None:
    assert not shown_is_doubtful("/w/logs/9.out", JOB)


def test_an_absolute_pattern_leaves_the_folder_of_the_job() -> None:
    assert output_path("/scratch/%j", JOB) == "/scratch/9"


def test_none_is_the_null_device() -> None:
    assert output_path("none", JOB) == "/dev/null"


def test_the_default_name_has_the_task_of_an_array() -> None:
    assert (default_pattern(JOB), default_pattern(TASK)) == ("slurm-%j.out", "slurm-%A_%a.out")


def test_what_is_not_known_yet_stays_as_it_is() -> None:
    assert output_path("%A_%4a_%j_%N", WAITING_TASKS) == "/w/5_%4a_%j_%N"


def test_the_number_that_stands_for_no_task_is_the_task_s_field_again() -> None:
    assert finish_shown("/w/slurm-5_4294967294.out", WAITING_TASKS) == "/w/slurm-5_%a.out"


@for_each("name", ["a%nb", "50%t%", "%j"])
def test_a_job_s_name_is_no_pattern(name: str) -> None:
    facts = PathFacts("9", "/w", "alice", name, "n1")
    assert output_path("%x_%n", facts) == f"/w/{name}_0"
    assert finish_shown(f"/w/{name}_%n", facts) == f"/w/{name}_0"


def test_a_job_s_folder_is_no_pattern() -> None:
    facts = PathFacts("9", "/w/50%n", "alice", "train", "n1")
    assert finish_shown("/w/50%n/%n.out", facts) == "/w/50%n/0.out"


def test_releases_that_know_it_fill_in_the_task_modulo_ten() -> None:
    assert output_path("%b.out", TASK, with_modulo=True) == "/w/3.out"
