"""Plain scripts: their text for each scheduler, and what they say and refuse."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from hpcdash.backends.script.allocation import Waiting
from hpcdash.backends.script.body import Place, has_library
from hpcdash.domain.array_tasks import parse_tasks
from hpcdash.domain.request import EarlySignal, Launcher, Request, Site, SlotType
from hpcdash.errors import UsageError
from tests.backends.script.golden_text import PLACE, assert_golden
from tests.support.scripts import Scheduler, batch_script

ONE_LINE = Request(command="python train.py", plain=True, slot_type=SlotType.CPU)
FULL = Request(
    name="sweep",
    command='module load cuda\npython sweep.py "$TASK"',
    plain=True,
    slots=4,
    slots_per_node=4,
    queue="gpu",
    account="vision",
    limit_seconds=3600,
    memory_bytes=64 << 30,
    work_dir="/home/ann/my work",
    array=parse_tasks("1-10%2"),
    after=("17",),
    hold=True,
    exclude_nodes=("n07",),
    environment={"NOTE": "it's a $HOME", "PATH": "/opt/env/bin:/usr/bin"},
)


@pytest.mark.parametrize("scheduler", Scheduler)
@pytest.mark.parametrize(("name", "request_"), [("one-line", ONE_LINE), ("full", FULL)])
def test_the_whole_script_is_as_a_person_writes_it(
    scheduler: Scheduler, name: str, request_: Request
) -> None:
    made = batch_script(scheduler, request_, PLACE)
    assert_golden(f"{scheduler}-plain-{name}.sh", made.text)
    for word in ("hpcdash.job", "trap", "<<", "PYTHONPATH", "HPCDASH", "srun"):
        assert word not in made.text
    assert not has_library(request_, PLACE)
    assert made.warnings[0].startswith("plain script: hpcdash.job is not on PYTHONPATH")


@pytest.mark.parametrize("scheduler", Scheduler)
def test_its_directives_and_name_are_those_of_the_usual_script(scheduler: Scheduler) -> None:
    usual, plain = (
        batch_script(scheduler, replace(FULL, plain=plain), PLACE) for plain in (False, True)
    )

    def directives(text: str) -> list[str]:
        return [line for line in text.split("\n") if line.startswith(("#SBATCH", "#PBS"))]

    assert directives(plain.text) == directives(usual.text)
    assert plain.job_name == usual.job_name
    assert set(usual.warnings) <= set(plain.warnings)


@pytest.mark.parametrize("scheduler", Scheduler)
def test_on_several_nodes_it_says_that_the_command_runs_on_the_first(scheduler: Scheduler) -> None:
    made = batch_script(scheduler, replace(FULL, slots=8), PLACE)
    assert any("only on the job's first node" in text for text in made.warnings)
    one = batch_script(scheduler, FULL, PLACE)
    assert not any("only on the job's first node" in text for text in one.warnings)


@pytest.mark.parametrize("scheduler", Scheduler)
def test_what_its_queue_s_settings_add_is_left_out_and_named(scheduler: Scheduler) -> None:
    added = replace(
        ONE_LINE,
        signal=EarlySignal("USR1", 60),
        launcher=Launcher.TORCHRUN,
        site=Site(node_probe="nvidia-smi"),
    )
    made = batch_script(scheduler, added, PLACE)
    assert made.text == batch_script(scheduler, ONE_LINE, PLACE).text
    assert (
        "plain script: omits signal, launcher, node_probe from the queue's settings"
        in made.warnings
    )


@pytest.mark.parametrize("scheduler", Scheduler)
@pytest.mark.parametrize(
    ("changes", "place", "message"),
    [
        ({"requeue": True, "said": frozenset({"requeue"})}, PLACE, "requeue: cannot be combined"),
        ({"environment": {"API_KEY": "x"}}, PLACE, "environment.API_KEY: cannot be combined"),
        ({}, replace(PLACE, is_run=True), "plain: allocations and their runs"),
        ({}, replace(PLACE, waiting=Waiting()), "plain: allocations and their runs"),
        (
            {"command": "", "script": "/l/x.sh"},
            replace(PLACE, copies={"files/x.sh": "0"}),
            "plain: others could replace the script",
        ),
    ],
)
def test_what_no_plain_script_can_have_is_refused(
    scheduler: Scheduler, changes: dict[str, Any], place: Place, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        batch_script(scheduler, replace(ONE_LINE, **changes), place)


@pytest.mark.parametrize(
    ("command", "is_read"),
    [
        ("#SBATCH --mem=1G\ntrue", True),
        ("# a remark\n\n#SBATCH --mem=1G\ntrue", True),
        ("true\n#SBATCH --mem=1G", False),
        ("echo '\n#SBATCH --mem=1G'", False),
    ],
)
def test_a_command_cannot_add_directives_unseen(command: str, is_read: bool) -> None:
    request = replace(ONE_LINE, command=command)
    if not is_read:
        assert batch_script(Scheduler.SLURM, request, PLACE).text.endswith(f"\n{command}\n")
        return
    with pytest.raises(UsageError, match="command: '#SBATCH --mem=1G' would be read") as caught:
        batch_script(Scheduler.SLURM, request, PLACE)
    assert "extra_args" in caught.value.next_step
