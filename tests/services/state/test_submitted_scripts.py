"""Scripts that a scheduler would not give back are kept here when they are submitted, and found by
their job.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcdash.backends.actions import Outcome
from hpcdash.backends.base import Backend, Capability
from hpcdash.backends.slurm.backend import BACKEND
from hpcdash.backends.submissions import Submission
from hpcdash.errors import CommandTimedOut, ControllerDown, SchedulerRefused
from hpcdash.services.cluster.clock import FrozenClock
from hpcdash.services.cluster.queries import CommandBudget
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.jobs.actions import Actions, Report
from hpcdash.services.jobs.scripts import fetch_script, save_scripts
from hpcdash.services.state import submitted_scripts as kept_scripts
from hpcdash.services.state.journal import Journal
from hpcdash.services.state.submitted_scripts import (
    APART_SECONDS,
    KEPT_SECONDS,
    ScriptStore,
    StoredScript,
)
from hpcdash.services.submit import recovery as lost_answers
from hpcdash.services.submit.recovery import reconcile
from hpcdash.services.submit.submission import SubmissionPlan, plan_submission
from tests.support.parts import changed, fixed_backend
from tests.support.scripted_cluster import failed_array
from tests.support.scripted_transport import RECENT, ScriptedTransport

NOW = 1_795_250_000.0
SCRIPT = b"#!/bin/bash\n#PBS -N sim\nsrun \xff train\n"


@pytest.fixture
def scripts(tmp_path: Path) -> ScriptStore:
    return ScriptStore(tmp_path / "state" / "scripts")


def files(scripts: ScriptStore) -> list[Path]:
    return sorted(path for path in scripts.folder.rglob("*") if path.is_file())


# -- the folder


def test_nobody_else_can_read_them(scripts: ScriptStore) -> None:
    before = os.umask(0)
    try:
        scripts.keep("lab", "12.pbs01", SCRIPT, NOW)
    finally:
        os.umask(before)
    [file] = files(scripts)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in (file.parent, scripts.folder)} == {
        0o700
    }
    file.parent.chmod(0o755)
    scripts.keep("lab", "13.pbs01", SCRIPT, NOW)
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    "wanted", ["12.pbs01", "12", "12.pbs01.example.org", "12[3].pbs01", "12[]"]
)
def test_a_script_is_found_by_its_job_byte_by_byte(scripts: ScriptStore, wanted: str) -> None:
    scripts.keep("lab", "12.pbs01", SCRIPT, NOW)
    assert scripts.find("lab", wanted) == StoredScript(SCRIPT, NOW)


@pytest.mark.parametrize("wanted", ["12[].pbs01", "12", "12[3].pbs01", "12[3-5,9].pbs01", "12[7]"])
def test_a_task_s_script_is_its_array_s(scripts: ScriptStore, wanted: str) -> None:
    scripts.keep("lab", "12[].pbs01", SCRIPT, NOW)
    assert scripts.find("lab", wanted) == StoredScript(SCRIPT, NOW)


@pytest.mark.parametrize(
    "wanted", ["1.pbs01", "120", "12.pbs02", "", "../12", "x", "12.pbs01/../.."]
)
def test_another_job_s_is_not(scripts: ScriptStore, wanted: str) -> None:
    scripts.keep("lab", "12.pbs01", SCRIPT, NOW)
    assert scripts.find("lab", wanted) is None


def test_clusters_have_their_own_whatever_their_names(scripts: ScriptStore) -> None:
    names = ["lab", "../lab", "..", ".", "/etc", "a b", "a_b", "é", "\udcff", "x" * 300, ""]
    for number, name in enumerate(names):
        scripts.keep(name, "12.pbs01", str(number).encode(), NOW)
    assert [scripts.find(name, "12") for name in names] == [
        StoredScript(str(number).encode(), NOW) for number in range(len(names))
    ]
    assert {path.parent.parent for path in files(scripts)} == {scripts.folder}


@given(job_id=st.text(max_size=30))
def test_no_id_leads_out_of_the_folder(
    tmp_path_factory: pytest.TempPathFactory, job_id: str
) -> None:
    root = tmp_path_factory.mktemp("kept")
    scripts = ScriptStore(root / "scripts")
    scripts.keep("lab", job_id, SCRIPT, NOW)
    assert {path.parent.parent for path in root.rglob("*") if path.is_file()} <= {root / "scripts"}
    assert scripts.find("lab", job_id) in (None, StoredScript(SCRIPT, NOW))


# -- numbers come again


def test_of_two_jobs_with_a_number_the_newest_is_meant_where_no_time_is_known(
    scripts: ScriptStore,
) -> None:
    scripts.keep("lab", "12.pbs01", b"old", NOW - 86400 * 30)
    scripts.keep("lab", "12.pbs01", b"new", NOW)
    assert scripts.find("lab", "12") == StoredScript(b"new", NOW)


def test_of_two_jobs_with_a_number_each_has_its_own_by_its_time(scripts: ScriptStore) -> None:
    scripts.keep("lab", "12.pbs01", b"old", NOW - 86400 * 30)
    scripts.keep("lab", "12.pbs01", b"new", NOW)
    assert scripts.find("lab", "12", NOW - 86400 * 30 - 60) == StoredScript(
        b"old", NOW - 86400 * 30
    )
    assert scripts.find("lab", "12", NOW + 60) == StoredScript(b"new", NOW)


def test_a_script_from_another_time_is_not_shown(scripts: ScriptStore) -> None:
    scripts.keep("lab", "12.pbs01", SCRIPT, NOW)
    assert scripts.find("lab", "12", NOW + APART_SECONDS - 1) is not None
    assert scripts.find("lab", "12", NOW + APART_SECONDS + 1) is None
    assert scripts.find("lab", "12", NOW - APART_SECONDS - 1) is None


# -- what goes


def test_what_is_old_goes_when_another_comes(scripts: ScriptStore) -> None:
    scripts.keep("lab", "1.pbs01", SCRIPT, NOW - KEPT_SECONDS - 1)
    scripts.keep("lab", "2.pbs01", SCRIPT, NOW - KEPT_SECONDS + 1)
    scripts.keep("lab", "3.pbs01", SCRIPT, NOW)
    assert [scripts.find("lab", number) is not None for number in "123"] == [False, True, True]


def test_only_the_newest_stay(scripts: ScriptStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_scripts, "MAX_KEPT", 3)
    for number in range(1, 6):
        scripts.keep("lab", f"{number}.pbs01", SCRIPT, NOW + number)
    assert [scripts.find("lab", str(number)) is not None for number in range(1, 6)] == [
        False,
        False,
        True,
        True,
        True,
    ]


def test_what_a_crash_left_unfinished_is_never_found_and_goes(scripts: ScriptStore) -> None:
    scripts.keep("lab", "1.pbs01", SCRIPT, NOW)
    [file] = files(scripts)
    old, new = file.parent / ".new-1.pbs01~1", file.parent / ".new-2"
    old.write_bytes(b"half")
    new.write_bytes(b"half")
    os.utime(old, (NOW - 90_000, NOW - 90_000))
    os.utime(new, (NOW, NOW))
    scripts.keep("lab", "2.pbs01", SCRIPT, NOW)
    assert (old.exists(), new.exists()) == (False, True)


def test_a_link_and_what_else_lies_there_is_not_read(scripts: ScriptStore, tmp_path: Path) -> None:
    scripts.keep("lab", "1.pbs01", SCRIPT, NOW)
    [file] = files(scripts)
    (tmp_path / "secret").write_bytes(b"secret")
    file.unlink()
    file.symlink_to(tmp_path / "secret")
    (file.parent / "readme").write_bytes(b"")
    (file.parent / "2.pbs01~1").mkdir()
    assert scripts.find("lab", "1") is None
    assert scripts.find("lab", "2") is None


def test_a_full_disk_leaves_nothing_half_written(
    scripts: ScriptStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripts.keep("lab", "1.pbs01", SCRIPT, NOW)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        scripts.keep("lab", "2.pbs01", SCRIPT, NOW)
    assert [file.name for file in files(scripts)] == [f"1.pbs01~{int(NOW)}"]


# -- with a scheduler that gives none back


def forgetful(file: str | None = None) -> Backend:
    """A scheduler that keeps no scripts; `file` is what a job says it was submitted from."""
    return fixed_backend(
        BACKEND,
        title="PBS",
        capabilities=BACKEND.capabilities - {Capability.KEEPS_SCRIPTS},
        scripts=changed(
            BACKEND.scripts,
            query=lambda job_id: None,
            history_query=lambda job_id: None,
            submitted_file=lambda detail: file,
        ),
    )


def store_of(
    transport: ScriptedTransport,
    scripts: ScriptStore | None,
    backend: Backend | None = None,
    now: float = NOW,
) -> ClusterStore:
    chosen = backend or forgetful()
    budget = CommandBudget(600)
    return ClusterStore(
        "lab",
        transport,
        (chosen,),
        clock=FrozenClock(now),
        budget=budget,
        scripts=scripts,
        user="alice",
    )


async def submitted(store: ClusterStore, tmp_path: Path) -> tuple[SubmissionPlan, Report]:
    again = plan_submission(store, Submission(SCRIPT, "sim.sh"))
    return again, await Actions(store, Journal(tmp_path / "journal.jsonl")).run(again.plan)


async def test_a_submitted_script_is_kept_and_shown_again(
    tmp_path: Path, scripts: ScriptStore
) -> None:
    store = store_of(failed_array(tmp_path), scripts)
    _, report = await submitted(store, tmp_path)
    assert report.outcomes == (Outcome("sim.sh", True, "job 93"),)
    shown = await fetch_script(store, "93")
    assert shown.text.encode("utf-8", "surrogateescape") == SCRIPT
    assert shown.source == "saved by hpcdash at submission, 2026-11-21T08:33:20Z"


async def test_where_the_scheduler_keeps_scripts_none_is_kept_here(
    tmp_path: Path, scripts: ScriptStore
) -> None:
    await submitted(store_of(failed_array(tmp_path), scripts, BACKEND), tmp_path)
    assert not scripts.folder.exists()


async def test_a_refused_script_is_not_kept(tmp_path: Path, scripts: ScriptStore) -> None:
    transport = failed_array(tmp_path)
    transport.answers["sbatch"] = (1, b"", b"sbatch: error: invalid partition\n")
    await submitted(store_of(transport, scripts), tmp_path)
    assert not scripts.folder.exists()


async def test_a_full_disk_fails_no_submission(
    tmp_path: Path, scripts: ScriptStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(ScriptStore, "keep", full)
    _, report = await submitted(store_of(failed_array(tmp_path), scripts), tmp_path)
    words = "job 93; the script could not be saved: No space left on device"
    assert report.outcomes == (Outcome("sim.sh", True, words),)


async def test_after_a_lost_answer_it_is_kept_when_the_job_is_found(
    tmp_path: Path, scripts: ScriptStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lost_answers, "_RETRY_SECONDS", 0.0)
    transport = failed_array(tmp_path)
    transport.answers["sbatch"] = CommandTimedOut("no answer", argv=("sbatch",))
    store = store_of(transport, scripts)
    again, report = await submitted(store, tmp_path)
    assert not scripts.folder.exists()
    [search] = again.searches.values()
    transport.recent.append({"jobarrayid": "94", "comment": search.mark})
    assert await reconcile(store, again, report) == (Outcome("sim.sh", True, "job 94"),)
    assert scripts.find("lab", "94") == StoredScript(SCRIPT, NOW)


async def test_of_a_number_that_came_again_the_older_script_is_not_shown(
    tmp_path: Path, scripts: ScriptStore
) -> None:
    transport = failed_array(tmp_path)
    store = store_of(transport, scripts)
    detail = await store.fetch_detail("88_3")
    submitted_at = detail.job["submitted_at"][0].as_py().timestamp()
    scripts.keep("lab", "88", b"#!/bin/sh\nold\n", submitted_at - 86400)
    with pytest.raises(SchedulerRefused, match="PBS does not return scripts"):
        await fetch_script(store, "88_3")
    scripts.keep("lab", "88", SCRIPT, submitted_at + 30)
    assert (await fetch_script(store, "88_3")).source.startswith("saved by hpcdash")
    assert (await fetch_script(store, "88_3", detail=detail)).source.startswith("saved by hpcdash")


async def test_a_kept_script_is_shown_while_the_cluster_does_not_answer(
    tmp_path: Path, scripts: ScriptStore
) -> None:
    transport = failed_array(tmp_path)
    store = store_of(transport, scripts)
    scripts.keep("lab", "93", SCRIPT, NOW)
    transport.connect_error = ControllerDown("it does not answer")
    transport.fails = dict.fromkeys(
        ("one", "scontrol", RECENT), ControllerDown("it does not answer")
    )
    assert (await fetch_script(store, "93")).text.startswith("#!/bin/bash")


@pytest.mark.system
async def test_without_a_kept_one_the_submitted_file_is_shown_as_it_is_now(
    tmp_path: Path, scripts: ScriptStore
) -> None:
    file = tmp_path / "train.sh"
    file.write_text("#!/bin/sh\nnow\n")
    script = await fetch_script(
        store_of(failed_array(tmp_path), scripts, forgetful(str(file))), "88_3"
    )
    assert (script.text, script.source) == (
        "#!/bin/sh\nnow\n",
        f"read from {tmp_path}/train.sh, current version",
    )


async def test_without_either_it_is_said_that_none_is_given_back(tmp_path: Path) -> None:
    with pytest.raises(
        SchedulerRefused,
        match="not even to a job's owner\nhpcdash keeps only the scripts of jobs you submit",
    ):
        await fetch_script(store_of(failed_array(tmp_path), None), "88_3")


async def test_words_behind_a_new_job_s_id_are_no_part_of_it(
    tmp_path: Path, scripts: ScriptStore
) -> None:
    store = store_of(failed_array(tmp_path), scripts)
    command = plan_submission(store, Submission(SCRIPT, "sim.sh")).plan.commands[0]
    for words in (
        "job 12.pbs01 (the only job with that name submitted since)",
        "job 13[].pbs01; and more",
    ):
        assert await save_scripts(store, command, (Outcome("sim.sh", True, words),)) == (
            Outcome("sim.sh", True, words),
        )
    assert [file.name for file in files(scripts)] == [
        f"12.pbs01~{int(NOW)}",
        f"13%5B%5D.pbs01~{int(NOW)}",
    ]
