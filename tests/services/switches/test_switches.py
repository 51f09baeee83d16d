"""Switches of jobs that run for real in the embedded queue: found, dropped, seen, cleared."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import stat
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from msgspec.structs import replace

import hpcdash.job
from hpcdash.backends.embedded.backend import embedded_backend
from hpcdash.domain.switch_text import SwitchProgress
from hpcdash.domain.switches import SwitchKind
from hpcdash.domain.tables import Kind
from hpcdash.errors import CommandTimedOut, UsageError
from hpcdash.services.cluster.clock import SystemClock
from hpcdash.services.cluster.queries import CommandBudget
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.jobs import actions as acting
from hpcdash.services.jobs.actions import Actions
from hpcdash.services.state.journal import Journal
from hpcdash.services.submit.launch_records import LaunchRecord, LaunchRecords
from hpcdash.services.switches import scripts as switch_scripts
from hpcdash.services.switches.log import SwitchLog
from hpcdash.services.switches.switches import JobSwitches, Switch
from hpcdash.services.switches.tracker import SwitchRefused, SwitchTracker
from hpcdash.transport.local import LocalTransport
from tests.embedded.queue_lab import QueueLab
from tests.support.waiting import deadline

pytestmark = pytest.mark.system
KILL, SAVE = SwitchKind.KILL, SwitchKind.SAVE
ROOT = Path(hpcdash.job.__file__).parents[2]
POLLS = """
[ -e "$HPCDASH_KILL_SWITCH" ] && { echo burnt; exit 0; }
echo up
while :; do
  sleep 0.05
  [ -e "$HPCDASH_SAVE_SWITCH" ] && { echo saved; rm "$HPCDASH_SAVE_SWITCH"; }
  [ -e "$HPCDASH_KILL_SWITCH" ] && { echo stopped; exit 0; }
done
"""
PROGRAM = """
import time
from hpcdash.job import Switches
switches = Switches(every_seconds=0.02)
switches.exit_if_killed()
print("up", flush=True)
while not switches.kill_wanted():
    if switches.save_wanted():
        print("saved", flush=True)
    time.sleep(0.02)
"""


class Site:
    """An embedded queue with room for all, its store and its switches; `run` is where jobs are
    submitted from.
    """

    def __init__(self, lab: QueueLab, state: Path) -> None:
        self.lab = lab
        self.run = lab.work
        self.state = state
        store = ClusterStore(
            "here",
            LocalTransport(),
            (embedded_backend(lab.program),),
            clock=SystemClock(),
            budget=CommandBudget(100_000),
        )
        self.store = store
        self.journal = Journal(state / "journal.jsonl")
        self.switches = JobSwitches(Actions(store, self.journal), state)

    def submit(
        self, body: str = POLLS, *options: str, kill: str = "KILL", save: str = "SAVE"
    ) -> str:
        exports = [
            f"export HPCDASH_{k}_SWITCH={shlex.quote(v)}"
            for k, v in (("KILL", kill), ("SAVE", save))
            if v
        ]
        return self.lab.submit("\n".join([*exports, body]), "--job-name=train", *options)

    async def drop(self, switch: Switch) -> str:
        tracker = await self.looked_at(switch)
        (outcome,), problems = await tracker.run(tracker.plan_drop())
        assert (outcome.done, problems) == (True, [])
        return outcome.text

    async def looked_at(self, switch: Switch) -> SwitchTracker:
        """The switch with its file, and nothing else, current version."""
        tracker = SwitchTracker(self.switches, switch)
        await tracker.check_file()
        return tracker

    async def is_dropped(self, switch: Switch) -> bool:
        return (await self.looked_at(switch)).is_dropped

    async def checked(self, switch: Switch) -> SwitchTracker:
        """The switch as one command finds it."""
        tracker = SwitchTracker(self.switches, switch)
        await tracker.check()
        return tracker

    async def until(self, look: Callable[[], Coroutine[Any, Any, object]], what: str) -> None:
        over = deadline()
        while not await look():
            assert time.monotonic() < over, f"it never came about: {what}"
            await asyncio.sleep(0.02)

    async def up(self, job_id: str) -> None:
        log = self.run / f"slurm-{job_id}.out"

        async def said() -> bool:
            return log.exists() and "up" in log.read_text()

        await self.until(said, f"{job_id} to be up")


@pytest_asyncio.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    lab = QueueLab(tmp_path / "queue", tmp_path / "run it", cpus=16)
    made = Site(lab, tmp_path / "state")
    yield made
    await made.store.close()
    lab.end()


async def test_a_save_switch_is_seen_and_removed_and_that_is_told_afterwards(site: Site) -> None:
    job = site.submit()
    await site.up(job)
    switch = await site.switches.find(job, SAVE)
    assert switch.path == str(site.run / "SAVE")
    assert switch.source == "HPCDASH_SAVE_SWITCH in line 3 of the script"
    assert site.switches.dropped_here_seconds_ago(switch) is None
    log = SwitchLog(site.store, switch)
    await log.mark(switch.living)
    assert (await log.read(switch.living, is_dropped=True))[0] == ""
    await site.drop(switch)

    async def gone() -> bool:
        return not await site.is_dropped(switch)

    await site.until(gone, "the program to remove it")

    async def has_said() -> bool:
        return bool((await log.read(switch.living, is_dropped=True))[0])

    await site.until(has_said, "its log to say so")
    said, grows = await log.read(switch.living, is_dropped=True)
    assert said == "saved"
    assert re.fullmatch(r"the log grew \d+ s ago", grows)
    seconds = site.switches.dropped_here_seconds_ago(switch)
    assert seconds is not None
    assert seconds >= 0
    assert site.switches.dropped_here_seconds_ago(await site.switches.find(job, KILL)) is None
    row = {**switch.rows[0], "submitted_at": datetime.now(UTC) + timedelta(minutes=1)}
    later = replace(switch, rows=(row,))
    assert site.switches.dropped_here_seconds_ago(later) is None, (
        "what was done before it was for another job"
    )


async def test_an_array_burns_through_and_is_counted_as_it_does(site: Site) -> None:
    array = site.submit(POLLS, "--array=1-5%1", kill="/" + str(site.run / "KILL me"))
    await site.up(f"{array}_1")
    switch = await site.switches.find(array, KILL)
    await site.store.fetch(Kind.MINE)
    found = await site.switches.switch_jobs(switch)
    assert (found.job_ids, len(found.rows) > 0, found.note) == ((array,), True, "")
    _, grows = await SwitchLog(site.store, switch).read(switch.living, is_dropped=False)
    assert grows in {f"the log grew {n} s ago" for n in range(60)}
    assert await site.drop(switch) == f"created {site.run / 'KILL me'}"
    told: list[SwitchProgress] = []

    async def burnt() -> bool:
        told.append((await site.checked(switch)).progress)
        return told[-1].living == 0

    await site.until(burnt, "all tasks to end")
    assert told[-1] == SwitchProgress(0, 5, 5)
    assert all(one.living + one.ended == 5 for one in told), told
    logs = sorted(
        (site.run / f"slurm-{array}_{task}.out").read_text().split()[-1] for task in range(1, 6)
    )
    assert logs == ["burnt"] * 4 + ["stopped"]


async def test_the_library_that_a_training_imports_sees_what_is_dropped(site: Site) -> None:
    (site.run / "train.py").write_text(PROGRAM)
    job = site.submit(f"export PYTHONPATH={ROOT}\nexec {sys.executable} train.py")
    await site.up(job)
    save, kill = await site.switches.find(job, SAVE), await site.switches.find(job, KILL)
    await site.drop(save)
    await site.until(lambda: _said(site.run / f"slurm-{job}.out", "saved"), "a save")
    assert not await site.is_dropped(save)
    await site.drop(kill)
    ended = site.lab.ended(job)
    assert (ended.state, ended.exit_code) == ("completed", 0)
    assert await site.is_dropped(kill), "the program never removes it"
    # A file server whose clock is 20 minutes ahead.
    os.utime(site.run / "KILL", (time.time() + 1200, time.time() + 1200))
    checked = await site.checked(kill)
    assert checked.snapshot is not None
    assert checked.snapshot.age_seconds is not None
    assert checked.snapshot.age_seconds < 1000
    assert checked.progress == SwitchProgress(0, 1, 1, "", job)


async def _said(log: Path, words: str) -> bool:
    return words in await asyncio.to_thread(log.read_text)


async def test_all_that_name_the_same_file_are_found_and_others_are_not(site: Site) -> None:
    first, second = site.submit(), site.submit()
    elsewhere = site.submit(kill=str(site.run / "OTHER"))
    plain = site.submit("sleep 60", kill="", save="")
    await site.store.fetch(Kind.MINE)
    found = await site.switches.switch_jobs(await site.switches.find(first, KILL))
    assert set(found.job_ids) == {first, second}
    assert not {elsewhere, plain} & set(found.job_ids)


async def test_what_a_person_names_is_remembered_for_the_job_and_its_name_with_mode_0600(
    site: Site,
) -> None:
    first, second = (site.submit("sleep 60", kill="", save="") for _ in range(2))
    unknown = await site.switches.find(first, KILL)
    assert unknown.path == ""
    assert unknown.problem == f"no kill switch file is known for job {first}"
    named = await site.switches.find(first, KILL, str(site.run / "KILL"))
    await site.drop(named)
    assert (await site.switches.find(first, KILL)).source == "set here earlier for this job"
    find_by_name = await site.switches.find(second, KILL)
    assert find_by_name.source == "set here earlier for a job with this name"
    assert (await site.switches.find(second, SAVE)).path == ""
    assert stat.S_IMODE(os.stat(site.state / "state.db").st_mode) == 0o600
    assert site.switches.forget(find_by_name) == f"forgotten: {site.run / 'KILL'}"
    assert site.switches.forget(find_by_name) == "no saved path"
    assert (await site.switches.find(second, KILL)).path == ""


async def test_what_a_person_named_counts_after_what_the_job_itself_says_and_that_is_told(
    site: Site,
) -> None:
    job = site.submit()
    await site.drop(await site.switches.find(job, KILL, str(site.run / "WRONG")))
    switch = await site.switches.find(job, KILL)
    assert (switch.path, switch.overridden) == (
        str(site.run / "KILL"),
        str(site.run / "WRONG"),
    )
    said = (
        f"set here earlier: {site.run / 'WRONG'}; HPCDASH_KILL_SWITCH in line 2 of the script "
        "takes precedence"
    )
    assert switch.overridden_note == said
    other = site.submit()
    await site.store.fetch(Kind.MINE)
    assert set((await site.switches.switch_jobs(switch)).job_ids) == {job, other}, (
        "its own script counts for it too"
    )
    unsure = site.submit("KILL_SWITCH=$(pwd)/KILL\nsleep 60", kill="", save="")
    assert (await site.switches.find(unsure, KILL)).path == str(site.run / "WRONG"), (
        "its script does not tell"
    )


async def test_what_the_log_says_since_a_drop_is_told_by_another_run_of_the_program(
    site: Site,
) -> None:
    job = site.submit(
        "echo saved checkpoint 1; echo up\nuntil [ -e go ]; do sleep 0.05; done; echo saved 2; "
        "sleep 60"
    )
    await site.up(job)
    switch = await site.switches.find(job, SAVE)
    log = SwitchLog(site.store, switch)
    said, grows = await log.read(switch.living, is_dropped=False)
    assert said is None, "was not created from here"
    assert grows in {f"the log grew {n} s ago" for n in range(60)}
    tracker = await site.checked(switch)
    await tracker.run(tracker.plan_drop())
    history = (await site.checked(switch)).history
    assert (history.is_log_read, history.log_line) == (True, ""), "an earlier save does not count"
    (site.run / "go").touch()
    await site.until(lambda: _said(site.run / f"slurm-{job}.out", "saved 2"), "it to save")
    assert (await site.checked(switch)).history.log_line == "saved 2"
    assert (await site.switches.find(job, SAVE)).overridden == "", (
        "a log's length is not a path that was named"
    )


async def test_a_drop_whose_answer_was_lost_is_told_with_how_to_look(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = site.submit()
    await site.up(job)
    switch = await site.switches.find(job, KILL)
    tracker = await site.looked_at(switch)
    plan = tracker.plan_drop()
    slow = tmp_path / "bin" / "chgrp"
    slow.parent.mkdir()
    slow.write_text("#!/bin/sh\nexec sleep 600\n")
    slow.chmod(0o755)
    site.store.transport = LocalTransport(path=f"{slow.parent}:{os.environ['PATH']}")
    plan = replace(plan, commands=tuple(replace(one, limit_seconds=0.5) for one in plan.commands))
    (outcome,), _ = await tracker.run(plan)
    assert outcome.done is None
    assert outcome.text.startswith(
        f"the answer was lost; check with: hpcdash kill-switch {job} --status ("
    )
    assert acting.ANSWER_LOST not in outcome.text


async def test_what_a_job_was_launched_with_counts_before_its_script(site: Site) -> None:
    job = site.submit()
    records = LaunchRecords(site.state, "here")
    request = 'command = "x"\nwork_dir = "/gpfs/run"\nkill_switch = "KILL"\n'
    records.launched(LaunchRecord("/l", "", job, "train", "never", "", 1, 1.0, request))
    switch = await site.switches.find(job, KILL)
    assert (switch.path, switch.source) == ("/gpfs/run/KILL", "kill_switch in the request")
    assert (await site.switches.find(job, SAVE)).path == str(site.run / "SAVE")


@pytest.mark.parametrize("path", ["/a/../b", "/a\n/b", "/a/"])
async def test_a_path_that_can_be_no_switch_is_refused(site: Site, path: str) -> None:
    job = site.submit("sleep 60")
    with pytest.raises(UsageError):
        await site.switches.find(job, KILL, path)


async def test_variables_of_one_s_own_login_are_put_in_and_unknown_ones_are_told(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORK", str(site.run))
    monkeypatch.delenv("NOWHERE", raising=False)
    job = site.submit(
        "KILL_SWITCH=$WORK/KILL\nSAVE_SWITCH=$NOWHERE/SAVE\nsleep 60", kill="", save=""
    )
    assert (await site.switches.find(job, KILL)).path == str(site.run / "KILL")
    assert "NOWHERE cannot be resolved here" in (await site.switches.find(job, SAVE)).problem


async def test_disks_that_do_not_answer_are_told_at_their_time_limits(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = site.submit()
    await site.up(job)
    switch = await site.switches.find(job, KILL)
    hangs = tmp_path / "bin" / "stat"
    hangs.parent.mkdir()
    hangs.write_text("#!/bin/sh\nexec sleep 600\n")
    hangs.chmod(0o755)
    site.store.transport = LocalTransport(path=str(hangs.parent))
    for name in ("LOG_SECONDS", "LOOK_SECONDS"):
        monkeypatch.setattr(switch_scripts, name, 0.5)
    _, grows = await SwitchLog(site.store, switch).read(switch.living, is_dropped=False)
    assert "does not respond" in grows
    with pytest.raises(CommandTimedOut, match=f"the disk of {switch.path} does not respond"):
        await site.looked_at(switch)


async def test_drop_and_clear_are_in_the_journal(site: Site) -> None:
    job = site.submit()
    await site.up(job)
    switch = await site.switches.find(job, SAVE)
    (site.run / "SAVE").symlink_to("nothing")
    tracker = await site.looked_at(switch)
    with pytest.raises(SwitchRefused, match="a link of"):
        tracker.plan_drop()
    (outcome,), _ = await tracker.run(tracker.plan_clear())
    assert outcome.done
    assert not (site.run / "SAVE").is_symlink()
    kill = await site.switches.find(job, KILL)
    await site.drop(kill)
    cleared = (await site.looked_at(kill)).plan_clear()
    assert (await site.switches.actions.run(cleared)).outcomes[0].done
    entries, _ = site.journal.read()
    assert [(entry.verb, entry.job_ids, entry.state) for entry in entries] == [
        ("clear-kill-switch", (job,), "done"),
        ("kill-switch", (job,), "done"),
        ("clear-save-switch", (job,), "done"),
    ]
    assert site.switches.dropped_here_seconds_ago(kill) is None
