"""Names of jobs and projects in the letters each scheduler takes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcdash.backends.pbs.script import project_options as pbs_project
from hpcdash.backends.script.body import accounted_to, job_name
from hpcdash.backends.slurm.script import project_options as slurm_project
from hpcdash.errors import ConfigError
from tests.support.records import for_each


def test_a_name_has_its_prefix_its_kind_and_its_own_part() -> None:
    assert job_name("hpcdash", "exp-2-trial-2", "1a2b") == "hpcdash_exp-2-trial-2-1a2b"


@given(st.text(max_size=60), st.text(max_size=60), st.integers(8, 236))
def test_a_name_has_no_letter_that_a_scheduler_refuses_and_is_no_longer_than_it_may(
    prefix: str, kind: str, most: int
) -> None:
    name = job_name(prefix, kind, "1a2b", most)
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")
    assert len(name) <= most
    assert name.endswith("1a2b")


@for_each(
    ("source", "words"),
    [
        ("project", ["llm"]),
        ("workspace", ["lab"]),
        ("label", ["cost:b", "cost:a/1", "other"]),
        ("label:cost:", ["b", "a/1"]),
    ],
)
def test_a_job_is_accounted_to_what_the_site_says(source: str, words: list[str]) -> None:
    labels = ("cost:b", "other", "cost:a/1", "cost:b")
    assert accounted_to(source, project="llm", workspace="lab", labels=labels) == sorted(words)


def test_where_nothing_is_said_nothing_is_accounted_to() -> None:
    assert accounted_to("project", project="", workspace="lab", labels=()) == []
    assert slurm_project([]) == pbs_project([]) == ()


def test_another_source_is_an_error_of_the_configuration() -> None:
    with pytest.raises(ConfigError, match="job_project_source"):
        accounted_to("team", project="llm", workspace="lab", labels=())


def test_labels_are_joined_as_each_scheduler_takes_them() -> None:
    assert slurm_project(['a"\n#SBATCH -N9', "b"]) == ('--wckey="a__#SBATCH -N9,b"',)
    assert slurm_project(["a/1", "b"]) == ('--wckey="a/1,b"',)
    assert pbs_project(["a/1", 'b[]";:|<>+,?*c']) == ('-P "a_1_b____________c"',)
