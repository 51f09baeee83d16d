"""What an older hpcdash kept in files of their own is read the same once it is in state.db, and stays beside it.

`old_state` was written by that version at 2026-11-21T08:33:20Z.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcdash.domain.switches import SwitchKind
from hpcdash.services.state.drafts import Drafts, KeptDraft
from hpcdash.services.state.recents import Recents
from hpcdash.services.submit.launched_job import launched_job, record_of_job
from hpcdash.services.switches.names import LogMark, SwitchMemory
from tests.embedded.queue_lab import QueueLab
from tests.support.job_rows import job_row
from tests.support.program import Program, home_with

pytestmark = pytest.mark.system


OLD = Path(__file__).parent / "old_state"


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return Path(shutil.copytree(OLD, tmp_path / "state"))


@pytest.fixture
def person(tmp_path: Path, state: Path) -> Iterator[Program]:
    """hpcdash with that state, on an embedded queue of its own."""
    queue = QueueLab(tmp_path / "queue", tmp_path / "work")
    variables = {"HPCDASH_QUEUE": str(queue.folder), "HPCDASH_STATE": str(state)}
    yield Program(home_with(tmp_path / "home"), ("--local", "--backend", "local"), variables)
    queue.end()


async def test_launches_are_known_with_their_switches_and_checkpoints(state: Path) -> None:
    async def known(job_id: str, cluster: str = "local", name: str = "train") -> str:
        found = await launched_job(state, cluster, {**job_row(job_id, "running", work_dir="/home/maya"), "name": name})
        return "" if found is None else f"{found.folder} {found.kill_switch}"

    for job_id in ("1", "2", "3", "7"):
        assert await known(job_id) == f"/home/maya/hpcdash/launches/train-0000000{job_id} /scratch/run/KILL"
    assert await known("6_2.pbs01") == "/home/maya/hpcdash/launches/train-00000006 /scratch/run/KILL"
    assert await known("4", "juno", "é") == "/juno/4 /scratch/run/KILL"
    assert [await known("5"), await known("8"), await known("1", name="other"), await known("1", "juno")] == [""] * 4
    record = record_of_job(state, "local", {"id": "4", "name": "train"})
    assert record is not None
    assert (record.run_as, record.keep, record.tasks, record.at) == ("svc", "always", 1, 1795250004.0)


def test_recent_submissions_are_listed(state: Path) -> None:
    recents = Recents(state)
    found = [(one.name, one.kind, one.text, one.at) for one in recents.recent("local")]
    assert found == [
        ("run.sh", "script", "#!/bin/sh\n#SBATCH --hold\n", 1795250002.0),
        ("train", "request", 'command = "python train.py"\nslots = 1\n', 1795250001.0),
    ]
    assert [one.text for one in recents.recent("juno")] == ['command = "false"\n']


def test_named_switches_and_log_marks_are_remembered(state: Path) -> None:
    memory = SwitchMemory(state, "local")
    assert memory.of_job(SwitchKind.KILL, "1", "train") == "/scratch/run/OLD"
    assert memory.of_name(SwitchKind.KILL, "train", "maya") == "/scratch/run/STOP"
    assert memory.of_name(SwitchKind.SAVE, "train", "maya") == ""
    assert memory.of_job(SwitchKind.SAVE, "9", "eval") == "/scratch/eval/SAVE"
    assert memory.mark_of(SwitchKind.SAVE, "/scratch/eval/SAVE") == LogMark("9", {"/scratch/eval/9.out": 4096})
    assert SwitchMemory(state, "juno").of_name(SwitchKind.KILL, "train", "maya") == ""


def test_a_draft_is_there_once(state: Path) -> None:
    assert Drafts(state).take("local") == KeptDraft({"name": "half-done"}, {"call": {"args": [1]}})
    assert Drafts(state).take("local") is None


def test_an_announced_alert_and_a_snoozed_one_are_not_announced_again(person: Program) -> None:
    announced = person.home / "announced"
    rules = "".join(f'[[watch.running]]\nname = "{name}"\nusers = ["maya"]\n' for name in ("train", "eval"))
    person.config.parent.mkdir(parents=True)
    person.config.write_text(
        f'[watch]\nremind_seconds = "never"\n{rules}[[watch.command]]\nargv = ["sh", "-c", "cat >> {announced}"]\n'
    )
    for _ in range(2):
        run = person("watch", "--once")
        assert (run.status, run.stderr) == (0, ""), run
        assert "2 wrong, 0 to tell" in run.text
    assert not announced.exists()
