"""What an older hpcdash kept in files of their own is read the same once it is in state.db, and
stays beside it.

`old_state` was written by that version at 2026-11-21T08:33:20Z.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
import tomllib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from hpcdash.domain.switches import SwitchKind
from hpcdash.services.state.database import StateDatabase
from hpcdash.services.state.drafts import Drafts, StoredDraft
from hpcdash.services.state.recents import Recents
from hpcdash.services.state.records import (
    LaunchRecord,
    Recent,
    launched_statement,
    recent_statement,
)
from hpcdash.services.submit.launch_records import LaunchRecords
from hpcdash.services.submit.launched_job import find_launch_record, launched_job
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
        found = await launched_job(
            state, cluster, {**job_row(job_id, "running", work_dir="/home/maya"), "name": name}
        )
        return "" if found is None else f"{found.folder} {found.kill_switch}"

    for job_id in ("1", "2", "3", "7"):
        assert (
            await known(job_id)
            == f"/home/maya/hpcdash/launches/train-0000000{job_id} /scratch/run/KILL"
        )
    assert (
        await known("6_2.pbs01") == "/home/maya/hpcdash/launches/train-00000006 /scratch/run/KILL"
    )
    assert await known("4", "juno", "é") == "/juno/4 /scratch/run/KILL"
    assert [
        await known("5"),
        await known("8"),
        await known("1", name="other"),
        await known("1", "juno"),
    ] == [""] * 4
    record = find_launch_record(state, "local", {"id": "4", "name": "train"})
    assert record is not None
    assert (record.run_as, record.keep, record.tasks, record.at) == (
        "svc",
        "always",
        1,
        1795250004.0,
    )


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
    assert memory.find_by_job(SwitchKind.KILL, "1", "train") == "/scratch/run/OLD"
    assert memory.find_by_name(SwitchKind.KILL, "train", "maya") == "/scratch/run/STOP"
    assert memory.find_by_name(SwitchKind.SAVE, "train", "maya") == ""
    assert memory.find_by_job(SwitchKind.SAVE, "9", "eval") == "/scratch/eval/SAVE"
    assert memory.stored_mark(SwitchKind.SAVE, "/scratch/eval/SAVE") == LogMark(
        "9", {"/scratch/eval/9.out": 4096}
    )
    assert SwitchMemory(state, "juno").find_by_name(SwitchKind.KILL, "train", "maya") == ""


def test_a_draft_is_there_once(state: Path) -> None:
    assert Drafts(state).take("local") == StoredDraft(
        {"name": "half-done"}, {"call": {"args": [1]}}
    )
    assert Drafts(state).take("local") is None


SECRET = "hunter2"
WITH_SECRET = f'command = "true"\n[environment]\nAPI_TOKEN = "{SECRET}"\nSEED = "1"\n'


def test_secrets_that_an_earlier_version_kept_leave_the_file(tmp_path: Path) -> None:
    database = StateDatabase(tmp_path)
    record = LaunchRecord("/jobs/1", "", "1", "train", "always", "", 1, 1.0, WITH_SECRET)
    draft = {
        "texts": {"name": "a", "environment": f"export TOKEN={SECRET}\nSEED=1"},
        "rest": {},
        "as_it_is": False,
    }
    served = ("a", "c", "client", None, "ada", 1.0, "submitted", "{}", WITH_SECRET)
    database.write(
        launched_statement("c", record),
        recent_statement(Recent("c", "train", WITH_SECRET, "request", 1.0)),
        recent_statement(Recent("c", "x.sh", "#!/bin/sh\n[environment]\n", "script", 2.0)),
        ("INSERT INTO drafts VALUES (?, ?)", ("c", json.dumps(draft))),
        ("INSERT INTO served_launches VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", served),
    )
    with contextlib.closing(sqlite3.connect(database.path, isolation_level=None)) as connection:
        connection.execute("PRAGMA secure_delete = OFF")
        connection.execute("DROP TABLE scrubbed")
        # What was forgotten is in pages that are free.
        connection.executemany(
            "INSERT INTO drafts VALUES (?, ?)", [(f"d{at}", SECRET * 900) for at in range(9)]
        )
        connection.execute("DELETE FROM drafts WHERE cluster != 'c'")
    assert SECRET.encode() in database.path.read_bytes()

    kept = {one.name: one.text for one in Recents(tmp_path).recent("c")}
    assert SECRET.encode() not in database.path.read_bytes()
    assert kept["x.sh"] == "#!/bin/sh\n[environment]\n"
    environment = {"API_TOKEN": "(not kept)", "SEED": "1"}
    launched = LaunchRecords(tmp_path, "c").find_by_job("1", "train")
    assert launched is not None
    assert (
        tomllib.loads(kept["train"])["environment"]
        == tomllib.loads(launched.request)["environment"]
        == environment
    )
    assert launched == replace(record, request=launched.request)
    assert Drafts(tmp_path).take("c") == StoredDraft(
        {"name": "a", "environment": "export TOKEN=(not kept)\nSEED=1"}
    )


def test_secrets_in_files_of_an_older_version_do_not_come_along(state: Path) -> None:
    StateDatabase(state).write()
    (state / "submitted").mkdir()
    written = msgspec.json.encode(Recent("local", "late", WITH_SECRET, "request", 1795260000.0))
    (state / "submitted" / "1795260000.json").write_bytes(written)
    assert "late" in [one.name for one in Recents(state).recent("local")]
    assert SECRET.encode() not in (state / "state.db").read_bytes()


def test_an_announced_alert_and_a_snoozed_one_are_not_announced_again(person: Program) -> None:
    announced = person.home / "announced"
    rules = "".join(
        f'[[watch.running]]\nname = "{name}"\nusers = ["maya"]\n' for name in ("train", "eval")
    )
    person.config.parent.mkdir(parents=True)
    person.config.write_text(
        f'[watch]\nremind_seconds = "never"\n{rules}[[watch.command]]\nargv = ["sh", "-c", "cat >> '
        f'{announced}"]\n'
    )
    for _ in range(2):
        run = person("watch", "--once")
        assert (run.status, run.stderr) == (0, ""), run
        assert "2 alerts, 0 to send" in run.text
    assert not announced.exists()
