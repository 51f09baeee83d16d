"""Commands for jobs of another cluster of the site."""

from __future__ import annotations

import pytest

from hpcdash.backends.actions import ActionRequest, Verb
from hpcdash.backends.base import Probe
from hpcdash.backends.queries import JobScope
from hpcdash.backends.shell import ShellRequest
from hpcdash.backends.slurm.backend import slurm_backend
from hpcdash.backends.submissions import Submission
from hpcdash.domain.job_ids import holds_many, parse_array_id, parse_job_id, parse_task_part
from hpcdash.errors import UsageError, without_env
from tests.support.records import for_each

BY_DEFAULT = slurm_backend(Probe("alice", "slurm 22.05.8", cluster="lab"))
ON_LAB2 = slurm_backend(Probe("alice", "slurm 22.05.8", cluster="lab2", clusters=("lab2",)))
ON_BOTH = slurm_backend(Probe("alice", "slurm 22.05.8", cluster="lab", clusters=("lab", "lab2")))


def test_an_id_names_its_cluster() -> None:
    job = parse_job_id("12_[3-5]@lab2")
    assert (str(job), job.cluster) == ("12_[3-5]@lab2", "lab2")
    assert (
        parse_array_id("12_3@lab2"),
        parse_task_part("12_3@lab2"),
        holds_many("12_[3-4]@lab2"),
    ) == (
        "12@lab2",
        "3",
        True,
    )


@for_each("job_id", ["15@lab2", "15_3@lab2", "15_[3-5]@lab2"])
def test_every_question_about_a_job_goes_to_its_cluster(job_id: str) -> None:
    plain = job_id.partition("@")[0]
    for query in (
        BY_DEFAULT.queue.jobs(JobScope(job_ids=(job_id,))),
        BY_DEFAULT.history.jobs(None, 0, (job_id,)),
        BY_DEFAULT.history.native(job_id),
        BY_DEFAULT.detail.native(job_id),
        BY_DEFAULT.scripts.query(job_id),
    ):
        assert query is not None
        program, option, cluster, *rest = without_env(query.argv)
        assert (option, cluster) == ("-M", "lab2"), program
        assert not any("@" in word for word in rest)
        assert any(plain.partition("_")[0] in word for word in rest)


def test_a_configured_cluster_is_named_before_its_probe() -> None:
    before = slurm_backend(cluster="lab2")
    assert without_env(before.queue.jobs(JobScope("alice")).argv)[1:3] == ("-M", "lab2")
    assert without_env(before.detail.native("15").argv)[1:3] == ("-M", "lab2")


def test_a_shell_in_a_job_runs_on_the_cluster_of_the_job() -> None:
    row = {"id": "15@lab2", "work_dir": "/w", "gpus": 0}
    command = BY_DEFAULT.detail.shell(row, ShellRequest("n1"))
    assert command is not None
    script, _, job_id, node = command.argv[2:6]
    assert "exec srun -M lab2 --quiet" in script
    assert (job_id, node) == ("15", "n1")


def test_actions_are_sent_cluster_by_cluster_and_answered_for_the_ids_that_were_named() -> None:
    commands = BY_DEFAULT.actions.commands(
        ActionRequest(Verb.HOLD, ("15", "15@lab2", "16@lab", "17_3@lab2"))
    )
    assert [(without_env(command.argv), command.job_ids) for command in commands] == [
        (("scontrol", "hold", "15,16"), ("15", "16@lab")),
        (("scontrol", "-M", "lab2", "hold", "15,17_3"), ("15@lab2", "17_3@lab2")),
    ]


def test_one_cluster_of_the_environment_is_named_in_every_command() -> None:
    (command,) = ON_LAB2.actions.commands(ActionRequest(Verb.CANCEL, ("15",)))
    assert without_env(command.argv) == ("scancel", "-M", "lab2", "-v", "15")
    for query in (
        ON_LAB2.queue.jobs(JobScope("")),
        ON_LAB2.queue.nodes(),
        ON_LAB2.history.jobs("", 60),
    ):
        assert without_env(query.argv)[1:3] == ("-M", "lab2")
    assert "sinfo -M lab2 -a" in ON_LAB2.queue.queues().argv[-4]
    assert (
        "--clusters=lab2"
        in ON_LAB2.submit.submission(Submission(b"#!/bin/sh\n", "a.sh")).command.argv
    )


def test_what_is_chosen_on_the_command_line_goes_before_the_environment() -> None:
    wanted = Submission(b"#!/bin/sh\n", "a.sh", options=("-M", "lab3"))
    assert "--clusters=lab2" not in ON_LAB2.submit.submission(wanted).command.argv
    assert ON_BOTH.submit.submission(wanted).command.argv


def test_with_several_clusters_an_action_and_a_submission_have_to_name_one() -> None:
    with pytest.raises(UsageError, match="SLURM_CLUSTERS contains several clusters: lab,lab2"):
        ON_BOTH.actions.commands(ActionRequest(Verb.CANCEL, ("15",)))
    with pytest.raises(UsageError, match="SLURM_CLUSTERS contains several clusters: lab,lab2"):
        ON_BOTH.submit.submission(Submission(b"#!/bin/sh\n", "a.sh"))
    assert without_env(ON_BOTH.queue.jobs(JobScope("")).argv)[1:3] == ("-M", "lab,lab2")


def test_a_job_cannot_wait_for_one_of_another_cluster() -> None:
    with pytest.raises(UsageError, match="another cluster"):
        BY_DEFAULT.submit.submission(Submission(b"#!/bin/sh\n", "a.sh", after=("afterok:15@lab2",)))
    there = Submission(b"#!/bin/sh\n#SBATCH --clusters=lab2\n", "a.sh", after=("afterok:15@lab2",))
    assert "--dependency=afterok:15" in BY_DEFAULT.submit.submission(there).command.argv


def test_a_submission_to_another_cluster_is_not_taken_for_lost_by_its_name() -> None:
    there = Submission(b"#!/bin/sh\n#SBATCH --clusters=lab2\n", "a.sh", mark="hpcdash:0123456789")
    assert BY_DEFAULT.submit.submission(there).job_name == ""
    assert ON_LAB2.submit.submission(there).job_name == "a.sh"
    several = Submission(b"#!/bin/sh\n", "a.sh", options=("--clusters=lab,lab2",))
    assert BY_DEFAULT.submit.submission(several).job_name == ""


@for_each("name", ["-lab", "lab2;true", "$(true)", "lab2\n"])
def test_what_is_no_name_of_a_cluster_comes_into_no_command(name: str) -> None:
    with pytest.raises(UsageError, match="SLURM_CLUSTERS"):
        slurm_backend(Probe("alice", "slurm 22.05.8", clusters=(name,)))
    for job_id in (f"15@{name}", f"15_3@{name}"):
        with pytest.raises(UsageError):
            BY_DEFAULT.queue.jobs(JobScope(job_ids=(job_id,)))


def test_a_running_job_of_another_cluster_is_not_sampled_by_the_number_it_has_there() -> None:
    row = {"id": "15@lab2", "state": "running", "started_at": 1, "_tasks": 1}
    assert BY_DEFAULT.detail.usage(row) is None
