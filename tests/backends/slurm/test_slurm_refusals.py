"""Refusals whose words mislead."""

from __future__ import annotations

import pytest

from hpcdash.backends.slurm.lint import refusal_hint
from tests.support.records import for_each

WORDS = "sbatch: error: Batch job submission failed: Requested node configuration is not available"
OPTIONS = ("--gpus=8", "--nodes=1-8", "--tasks-per-node=1")


@pytest.mark.parametrize("version", ["slurm-wlm 22.05.5", "slurm 22.05.8"])
def test_the_versions_that_refuse_what_they_could_give_are_known(version: str) -> None:
    hint = refusal_hint(WORDS, version, "", OPTIONS)
    assert "15857" in hint
    assert "slots_per_node" in hint


@for_each(
    ("words", "version", "options"),
    [
        (WORDS, "slurm 22.05.4", OPTIONS),
        (WORDS, "slurm 22.05.9", OPTIONS),
        (WORDS, "slurm 23.02.1", OPTIONS),
        (WORDS, "", OPTIONS),
        (WORDS, "slurm 22.05.8", ("--nodes=2", "--ntasks=2", "--gres=gpu:4")),
        ("sbatch: error: invalid partition specified: x", "slurm 22.05.8", OPTIONS),
    ],
)
def test_other_refusals_are_left_to_their_own_words(
    words: str, version: str, options: tuple[str, ...]
) -> None:
    assert refusal_hint(words, version, "", options) == ""


@pytest.mark.parametrize("option", ["--gpus=h100:8", "--gpus-per-node=h100:8", "--gres=gpu:h100:8"])
def test_a_gpu_type_that_no_node_has_is_the_reason_and_no_bug(option: str) -> None:
    options = (option, "--nodes=1-8")
    hint = refusal_hint(WORDS, "slurm 22.05.8", "", options, ("a100", "v100"))
    assert hint == "no node has a GPU of type h100; available: a100, v100"
    assert "15857" in refusal_hint(
        WORDS, "slurm 22.05.8", "", ("--gpus=a100:8", "--nodes=1-8"), ("A100",)
    )
    assert refusal_hint(WORDS, "slurm 24.05.1", "", ("--gpus=8", "--nodes=1-8"), ("a100",)) == ""


def test_the_options_of_the_script_count_as_those_beside_it_do() -> None:
    script = "#!/bin/bash\n#SBATCH --gpus=8\n#SBATCH --tasks-per-node=1\nsrun train\n"
    assert refusal_hint(WORDS, "slurm 22.05.8", script) == ""
    assert "15857" in refusal_hint(WORDS, "slurm 22.05.8", script, ["--nodes=1-8"])
    whole = script.replace("--gpus=8", "--gpus=8\n#SBATCH --nodes=1-8")
    assert "15857" in refusal_hint(WORDS, "slurm 22.05.8", whole)
