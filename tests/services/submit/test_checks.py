"""Paths that are looked for before something is submitted, in a real shell; and starts, where they
are told.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from hpcdash.backends.embedded.backend import embedded_backend
from hpcdash.backends.slurm.backend import BACKEND as SLURM
from hpcdash.backends.submissions import Submission
from hpcdash.domain.request import Container, Request
from hpcdash.errors import CommandTimedOut
from hpcdash.services.cluster.clock import SystemClock
from hpcdash.services.cluster.queries import CommandBudget
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.state.folders import queue_program
from hpcdash.services.submit.checks import (
    MAX_PATHS,
    PathKind,
    RequiredPath,
    estimate_start,
    missing_log_folders,
    missing_paths,
)
from hpcdash.transport.local import LocalTransport
from tests.support.scripted_cluster import Cluster
from tests.support.scripted_transport import ScriptedTransport

pytestmark = pytest.mark.system


@pytest.fixture
async def store() -> AsyncIterator[ClusterStore]:
    made = ClusterStore(
        "here", LocalTransport(), (SLURM,), clock=SystemClock(), budget=CommandBudget(1000)
    )
    yield made
    await made.close()


async def test_a_request_whose_paths_are_there_finds_nothing(
    store: ClusterStore, tmp_path: Path
) -> None:
    (tmp_path / "run.sh").touch()
    (tmp_path / "image.sif").mkdir()
    request = Request(
        script="run.sh",
        work_dir=str(tmp_path),
        kill_switch=f"{tmp_path}/KILL",
        container=Container(image=f"{tmp_path}/image.sif", binds=(f"{tmp_path}:/data",)),
    )
    assert await missing_paths(store, request) == ()


async def test_what_is_missing_is_found_by_its_field(store: ClusterStore, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    request = Request(
        script="run.sh",
        work_dir=str(gone),
        kill_switch=f"{gone}/KILL",
        save_switch="SAVE",
        container=Container(
            image=f"{gone}/image.sif", binds=(f"{gone}:/data", "/:/host", "relative:/x")
        ),
    )
    found = await missing_paths(store, request)
    assert [(one.severity, one.field) for one in found] == [
        ("error", "script"),
        ("error", "work_dir"),
        ("warning", "kill_switch"),
        ("warning", "save_switch"),
        ("error", "container.image"),
        ("warning", "container.binds"),
    ]
    assert (found[1].text, found[1].next_step) == (f"{gone} does not exist", f"mkdir -p {gone}")


@pytest.mark.parametrize("what", ["file", "link to nowhere", "folder", "nothing"])
async def test_a_kill_switch_that_is_there_still_is_told_before_it_ends_what_starts(
    store: ClusterStore, tmp_path: Path, what: str
) -> None:
    switch = tmp_path / "KILL it"
    {
        "file": switch.touch,
        "link to nowhere": lambda: switch.symlink_to("no"),
        "folder": switch.mkdir,
    }.get(what, lambda: None)()
    by_key = Request(
        command="x", work_dir=str(tmp_path), kill_switch="KILL it", save_switch="KILL it"
    )
    by_variable = Request(
        command="x", kill_switch="/none/KILL", environment={"HPCDASH_KILL_SWITCH": str(switch)}
    )
    for request in (by_key, by_variable):
        found = [
            (one.severity, one.text)
            for one in await missing_paths(store, request)
            if "still set" in one.text
        ]
        told = [("warning", f"the kill switch {switch} is still set: the job would stop at once")]
        assert found == (told if what in ("file", "link to nowhere") else [])
    at_run = Request(command="x", kill_switch="/tmp/$USER/KILL")
    assert not [one for one in await missing_paths(store, at_run) if "still set" in one.text]


async def test_a_script_that_comes_along_is_not_looked_for(store: ClusterStore) -> None:
    request = Request(script="code/run.sh")
    assert [one.field for one in await missing_paths(store, request)] == ["script"]
    assert await missing_paths(store, request, staged=("run.sh",)) == ()


async def test_an_image_by_a_name_or_from_a_registry_is_not_looked_for(store: ClusterStore) -> None:
    for image in ("train:1.0", "docker://nvcr.io/x", "library://x/y"):
        assert (
            await missing_paths(store, Request(command="x", container=Container(image=image))) == ()
        )


async def test_a_file_where_a_folder_has_to_be_is_told(store: ClusterStore, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (one,) = await missing_paths(store, Request(command="x", work_dir=f"{tmp_path}/file"))
    assert one.text == f"{tmp_path}/file is not a folder"
    (other,) = await missing_paths(store, (RequiredPath("script", str(tmp_path), PathKind.FILE),))
    assert other.text == f"{tmp_path} is not a file"


async def test_no_path_is_read_as_anything_else(store: ClusterStore, tmp_path: Path) -> None:
    wire = tmp_path / "wire"
    hostile = [
        *(
            f"$(touch {wire})",
            f"`touch {wire}`",
            f"'; touch {wire}; '",
            f'"; touch {wire}; "',
            f"x\ntouch {wire}",
        ),
        *("-e", "!", "(", "=", "-f", "ok\nok", "\\", "*", "é\udcff", ""),
    ]
    found = await missing_paths(store, hostile)
    assert [one.field for one in found] == hostile[:-1]
    assert {one.text.removeprefix(one.field) for one in found} == {" does not exist"}
    assert not wire.exists()


async def test_odd_names_that_are_there_are_found(store: ClusterStore, tmp_path: Path) -> None:
    names = ["a b", "$x", "'", '"', "new\nline", "-n", "*"]
    for name in names:
        (tmp_path / name).touch()
    assert await missing_paths(store, [f"{tmp_path}/{name}" for name in names]) == ()


async def test_of_very_many_paths_the_rest_is_told(store: ClusterStore) -> None:
    found = await missing_paths(store, ["/"] * (MAX_PATHS + 3))
    assert [one.text for one in found] == ["3 paths were not checked"]


async def test_nothing_to_look_for_asks_nothing() -> None:
    nowhere = ClusterStore(
        "here", hung(), (SLURM,), clock=SystemClock(), budget=CommandBudget(1000)
    )
    assert await missing_paths(nowhere, Request(command="x")) == ()


def hung() -> ScriptedTransport:
    """A cluster whose file server does not answer."""
    transport = ScriptedTransport()
    transport.fails["*"] = CommandTimedOut("did not respond within 10 s")
    return transport


async def test_a_file_server_that_hangs_is_said_without_the_shell_s_text() -> None:
    store = ClusterStore("here", hung(), (SLURM,), clock=SystemClock(), budget=CommandBudget(1000))
    with pytest.raises(CommandTimedOut) as error:
        await missing_paths(store, ["/nfs"])
    assert "while" not in f"{error.value.message} {error.value.argv}"


async def test_where_no_start_is_told_it_is_said(tmp_path: Path) -> None:
    backend = embedded_backend(queue_program(tmp_path / "queue"))
    store = ClusterStore(
        "here", LocalTransport(), (backend,), clock=SystemClock(), budget=CommandBudget(10)
    )
    estimate = await estimate_start(store, b"#!/bin/sh\n")
    await store.close()
    assert not estimate.is_known
    assert estimate.hint == "no start estimate from embedded queue"
    assert replace(estimate, is_known=True, hint="") == type(estimate)()


async def test_a_folder_of_logs_that_sbatch_would_not_make_is_warned_of(
    store: ClusterStore, tmp_path: Path
) -> None:
    def wanted(*directives: str, options: tuple[str, ...] = ()) -> Submission:
        script = "".join(
            f"{line}\n"
            for line in ("#!/bin/bash", f"#SBATCH --chdir={tmp_path}", *directives, "srun x")
        )
        return Submission(script.encode(), "run.sh", options)

    (tmp_path / "there").mkdir()
    for fine in (
        "--output=%x.out",
        "--output=there/%j.out",
        "--output=%x/%j.out",
        "--error=/dev/null",
    ):
        assert await missing_log_folders(store, wanted(f"#SBATCH {fine}")) == ()
    (warning,) = await missing_log_folders(store, wanted("#SBATCH -o logs/%j.out -e logs/%j.err"))
    assert (warning.severity, warning.text) == (
        "warning",
        f"log folder {tmp_path}/logs does not exist",
    )
    assert warning.next_step == f"mkdir -p {tmp_path}/logs"
    discarded = Submission(b"#!/bin/sh\n#SBATCH -o /dev/null\n", "run.sh")
    assert SLURM.submit.log_folders(discarded) == ()
    over = wanted("#SBATCH -o logs/%j.out", options=("--output", "there/%j.out"))
    assert await missing_log_folders(store, over) == ()


def is_dry_run(words: tuple[str, ...]) -> bool:
    return "--test-only" in words


def wrapped_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """A cluster whose sbatch is a wrapper that drops --test-only."""
    monkeypatch.setenv("HPCDASH_STATE", str(tmp_path / "state"))
    cluster = Cluster(tmp_path)
    cluster.transport.answers = {is_dry_run: "Submitted batch job 4711\n", "scancel": ""}
    return cluster


async def test_a_job_that_a_wrapper_submits_for_an_estimate_is_cancelled_and_none_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = wrapped_cluster(tmp_path, monkeypatch)
    store = cluster.store
    await store.open()
    script = b"#!/bin/sh\n"
    first = await estimate_start(store, script)
    assert not first.is_known
    assert "job 4711 was submitted and cancelled" in first.hint
    assert [words[-1] for words in cluster.transport.acted if words[0] == "scancel"] == ["4711"]
    again = await estimate_start(store, script + b"true\n")
    assert not again.is_known
    assert "ignores --test-only" in again.hint
    assert cluster.transport.count(is_dry_run) == 1
    journal = (tmp_path / "state" / "journal.jsonl").read_text()
    assert "4711" in journal
    await store.close()


async def test_the_same_estimate_is_requested_once_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HPCDASH_STATE", str(tmp_path / "state"))
    cluster = Cluster(tmp_path)
    starts = (
        b"sbatch: Job 7 to start at 1800000000 using 1 processors on nodes n1 in partition gpu\n"
    )
    cluster.transport.answers = {is_dry_run: (0, b"", starts)}
    store = cluster.store
    await store.open()
    first = await estimate_start(store, b"#!/bin/sh\n")
    second = await estimate_start(store, b"#!/bin/sh\n")
    other = await estimate_start(store, b"#!/bin/sh\n", ("--nodes=2",))
    assert first == second == other
    assert first.starts_at_epoch == 1_800_000_000
    assert cluster.transport.count(is_dry_run) == 2
    await store.close()
