"""When a script requeues its own job: its lines run in bash, with a scontrol that answers as
Slurm's does.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from hpcdash.backends.script.body import Place
from hpcdash.backends.slurm.script import preemption_watch, requeue_line
from hpcdash.domain.request import Request

pytestmark = pytest.mark.system

PREEMPTED = """JobId=7 JobName=x
   JobState=RUNNING Reason=None Dependency=(null)
   PreemptEligibleTime=2026-11-28T10:51:19 PreemptTime=2026-11-28T10:51:21
   Comment=x
"""
NOT_PREEMPTED = PREEMPTED.replace("PreemptTime=2026-11-28T10:51:21", "PreemptTime=None")
CANCELLED = PREEMPTED.replace("RUNNING", "CANCELLED")
DOWN = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"


class Ended(NamedTuple):
    status: int
    requeued: str
    said: str
    asked: int


def ended(
    folder: Path,
    *answers: str,
    marker: str = "SIGTERM 7\n",
    newest: str = "200.5 step-2/WHOLE.json",
    first: str = "100.5 step-1/WHOLE.json",
    max_requeues: int | None = None,
    kill_switch: str = "",
    **variables: str,
) -> Ended:
    """The end of a script whose command ended with 3; the last of the answers of scontrol is given
    to the end.
    """
    (folder / "bin").mkdir()
    for number, answer in enumerate(answers):
        (folder / f"answer{number}").write_text(answer)
    (folder / f"answer{len(answers)}").symlink_to(f"answer{len(answers) - 1}")
    scontrol = folder / "bin/scontrol"
    scontrol.write_text(
        f"""#!/bin/bash
cd '{folder}'
echo "$*" >> asked
[ "$1" = show ] || exit 0
number=$(($(grep -c show asked) - 1))
[ "$number" -le {len(answers) - 1} ] || number={len(answers) - 1}
cat "answer$number"
! grep -q error "answer$number"
"""
    )
    scontrol.chmod(0o755)
    request = Request(
        command="train",
        requeue=True,
        checkpoints="/c",
        max_requeues=max_requeues,
        kill_switch=kill_switch,
    )
    script = (
        f"newest_checkpoint() {{ echo '{newest}'; }}\nhpcdash_first_checkpoint='{first}'\n"
        "sleep() { SECONDS=$((SECONDS + $1)); }\n"
        + preemption_watch(request, Place("u", str(folder)))
        + f"printf '{marker}' > '{folder}/7.stopped'\nstatus=3\n{requeue_line(request)}\n"
        + 'exit "$status"\n'
    )
    run = subprocess.run(
        ["bash", "-c", script],
        env={"PATH": f"{folder}/bin:{os.environ['PATH']}", "SLURM_JOB_ID": "7", **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    asked = (folder / "asked").read_text().splitlines() if (folder / "asked").exists() else []
    requeued = [words for words in asked if not words.startswith("show job")]
    assert len(requeued) <= 1
    return Ended(run.returncode, "".join(requeued), run.stderr, len(asked) - len(requeued))


def test_a_training_that_was_warned_and_saved_is_requeued_once(tmp_path: Path) -> None:
    assert ended(tmp_path, PREEMPTED) == (
        75,
        "requeue 7",
        "hpcdash: preempted: requeues job 7, restart 1 (max_requeues is 20)\n",
        1,
    )


@pytest.mark.parametrize("marker", ["", "SIGTERM 6\\n", "SIGTERM \\n"])
def test_a_training_that_has_not_stopped_for_a_warning_ends_at_once(
    tmp_path: Path, marker: str
) -> None:
    assert ended(tmp_path, PREEMPTED, marker=marker) == (3, "", "", 0)


@pytest.mark.parametrize("newest", ["", "100.5 step-1/WHOLE.json", "99.75 step-9/WHOLE.json"])
def test_a_training_without_a_checkpoint_of_this_start_ends_at_once(
    tmp_path: Path, newest: str
) -> None:
    assert ended(tmp_path, PREEMPTED, newest=newest) == (3, "", "", 0)


def test_the_first_checkpoint_there_is_counts(tmp_path: Path) -> None:
    assert ended(tmp_path, PREEMPTED, first="").requeued == "requeue 7"


@pytest.mark.parametrize(
    "answer",
    [
        NOT_PREEMPTED,
        CANCELLED,
        "slurm_load_jobs error: Invalid job id specified\n",
        NOT_PREEMPTED[:60],
    ],
)
def test_a_job_that_slurm_does_not_preempt_ends_at_once(tmp_path: Path, answer: str) -> None:
    assert ended(tmp_path, answer) == (3, "", "", 1)


def test_a_task_of_an_array_is_named_by_its_own_number(tmp_path: Path) -> None:
    found = ended(tmp_path, PREEMPTED, SLURM_ARRAY_JOB_ID="7", SLURM_ARRAY_TASK_ID="3")
    assert (found.requeued, found.status) == ("requeue 7_3", 75)
    assert (tmp_path / "asked").read_text() == "show job 7_3\nrequeue 7_3\n"


def test_after_sigterm_a_controller_that_does_not_answer_is_asked_again(tmp_path: Path) -> None:
    found = ended(tmp_path, DOWN, DOWN, PREEMPTED)
    assert (found.requeued, found.asked) == ("requeue 7", 3)
    assert found.said.count("retrying in 5 s") == 2


def test_after_ten_minutes_without_an_answer_nothing_calls_it_completed(tmp_path: Path) -> None:
    found = ended(tmp_path, DOWN)
    assert (found.status, found.requeued) == (75, "")
    assert 110 <= found.asked <= 121
    assert found.said.endswith("requeue not confirmed after 10 minutes: exiting with 75\n")


def test_without_sigterm_nothing_waits_for_the_controller(tmp_path: Path) -> None:
    assert ended(tmp_path, DOWN, marker="SIGUSR1 7\\n") == (3, "", "", 1)


def test_a_heterogeneous_job_waits_and_is_never_requeued(tmp_path: Path) -> None:
    found = ended(tmp_path, PREEMPTED, SLURM_HET_SIZE="2")
    assert (found.status, found.requeued) == (75, "")
    assert 110 <= found.asked <= 121


@pytest.mark.parametrize(
    ("most", "restarts", "is_requeued"), [(None, 19, True), (None, 20, False), (0, 0, False)]
)
def test_it_is_requeued_so_often_and_no_more(
    tmp_path: Path, most: int | None, restarts: int, is_requeued: bool
) -> None:
    found = ended(tmp_path, PREEMPTED, max_requeues=most, SLURM_RESTART_COUNT=str(restarts))
    assert (bool(found.requeued), found.status) == (is_requeued, 75)
    assert f"max_requeues is {20 if most is None else most}" in found.said


def test_a_kill_switch_that_is_set_ends_it(tmp_path: Path) -> None:
    (tmp_path / "kill 1").touch()
    assert ended(tmp_path, PREEMPTED, kill_switch=f"{tmp_path}/kill 1") == (3, "", "", 0)


def test_the_embedded_queue_preempts_nothing(tmp_path: Path) -> None:
    assert ended(tmp_path, PREEMPTED, HPCDASH_ATTEMPT="7.1") == (3, "", "", 0)
