"""On the real Slurm: where a job writes, its script as it was submitted, and what queues and
accounts it offers.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from hpcdash.backends.slurm.backend import BACKEND
from hpcdash.domain.request import Container, Request
from hpcdash.errors import AccountingUnavailable, NoSuchJob, SchedulerRefused
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.jobs.scripts import fetch_script
from hpcdash.services.logs.locate import LogPlace, locate_logs
from hpcdash.services.submit.checks import estimate_start, missing_paths
from hpcdash.services.submit.queues import fetch_offers
from tests.e2e.live_store import store_on
from tests.support.parts import changed, fixed_backend
from tests.support.program import Program
from tests.support.scripts import lint_script
from tests.support.slurm import SlurmLab
from tests.support.waiting import wait_until

TRUE = "#!/bin/sh\ntrue\n"
# What each batch of jobs is submitted with, beside its folder.
SUBMISSIONS: tuple[tuple[tuple[str, ...], str], ...] = (
    ((), TRUE),
    (("-J", "my run%n", "-o", "%x-%j.out"), TRUE),
    (("-o", "%4j_%3n_%t_%s_%J_%20A.out"), TRUE),
    (("-o", "%u_%%_%A_%a_%b_%z"), TRUE),
    (("-o", "node-%N.%j"), TRUE),
    (("--output=o%j", "--err", "e_%j"), TRUE),
    (
        (),
        "#!/bin/sh\n#SBATCH -J 'a # b' --outp=\"dir ective_%x_%j\" # -o not\ntrue\n#SBATCH -o "
        "late\n",
    ),
    (("-a", "1-2"), TRUE),
    (("-a", "7", "-J", "50%t", "-o", "%A_%3a_%x"), TRUE),
)
# A path that scontrol shows filled in, though the file is not: only the script or the command line
# tells.
ESCAPED = "#!/bin/sh\n#SBATCH -o esc\\\\%j.out\ntrue\n"


# Slurm whose controller has forgotten every job: it is asked for one it never had.
FORGETFUL = fixed_backend(
    BACKEND,
    detail=changed(BACKEND.detail, native=lambda job_id: BACKEND.detail.native("999999999")),
    scripts=changed(BACKEND.scripts, query=lambda job_id: BACKEND.scripts.query("999999999")),
)


@dataclass(frozen=True, slots=True)
class Written:
    """Jobs of alice's that ended, and the folder that holds their output and nothing else."""

    lab: SlurmLab
    folder: Path
    job_ids: tuple[str, ...]

    @property
    def files(self) -> set[str]:
        return {str(file) for file in self.folder.iterdir()}


@pytest.fixture(scope="module")
def written(slurm_lab: SlurmLab) -> Written:
    folder = slurm_lab.work_dir("alice") / "output of paths"
    slurm_lab.as_user("alice", "rm", "-rf", folder)
    slurm_lab.as_user("alice", "mkdir", "-p", folder)
    submissions = (*SUBMISSIONS, ((), ESCAPED))
    numbers = [
        slurm_lab.submit("alice", "-D", folder, *words, script=script)
        for words, script in submissions
    ]
    job_ids: list[str] = []
    for number, (words, _) in zip(numbers, submissions, strict=True):
        tasks = {"1-2": ("1", "2"), "7": ("7",)}.get(words[1] if words[:1] == ("-a",) else "", ())
        job_ids.extend([f"{number}_{task}" for task in tasks] or [number])
    for job_id in job_ids:
        slurm_lab.wait_state(job_id, "COMPLETED")

    def known() -> bool:
        listed = slurm_lab.admin(
            "sacct", "-anX", "-P", "-o", "jobid,end", "-j", ",".join(numbers)
        ).stdout.decode()
        ended = {
            line.partition("|")[0] for line in listed.splitlines() if not line.endswith("|Unknown")
        }
        return ended >= set(job_ids)

    wait_until("the accounting to know of all ends", known)
    return Written(slurm_lab, folder, tuple(job_ids))


def place_files(place: LogPlace) -> set[str]:
    """As they are on this machine: the lab's nodes all have its name."""
    node = str(place.row["node_list"])
    found = {place.files.stdout, place.files.stderr} - {None}
    return {
        str(path).replace(f"node-{node}.", f"node-{socket.gethostname().partition('.')[0]}.")
        for path in found
    }


async def located(store: ClusterStore, written: Written) -> set[str]:
    places = await asyncio.gather(*(locate_logs(store, job_id) for job_id in written.job_ids))
    return {file for place in places for file in place_files(place)}


async def test_the_controller_s_jobs_wrote_where_it_is_said(written: Written) -> None:
    async with store_on(written.lab, "alice") as store:
        await store.open()
        assert await located(store, written) == written.files


async def test_jobs_that_only_the_accounting_knows_wrote_where_it_is_said(written: Written) -> None:
    async with store_on(written.lab, "alice") as store:
        await store.open()
        store.backend = FORGETFUL
        assert await located(store, written) == written.files


async def test_tasks_write_where_it_is_said_before_and_after_they_start(
    slurm_lab: SlurmLab,
) -> None:
    array = slurm_lab.submit("alice", "-a", "1-3%1", "-o", "%A.%3a.out")
    slurm_lab.wait_state(f"{array}_1", "RUNNING")
    folder = slurm_lab.work_dir("alice")
    async with store_on(slurm_lab, "alice") as store:
        await store.open()
        for asked, file in (
            (f"{array}_1", f"{array}.001.out"),
            (f"{array}_3", f"{array}.003.out"),
            (f"{array}_[2-3%1]", f"{array}.%3a.out"),
        ):
            place = await locate_logs(store, asked)
            assert place.files.stdout == str(folder / file)
        waiting = await locate_logs(store, f"{array}_3")
        assert (waiting.row["id"], waiting.row["state"]) == (f"{array}_3", "pending")
        assert (folder / f"{array}.001.out").exists()
        slurm_lab.as_user("alice", "scontrol", "requeue", f"{array}_1")
        again = await locate_logs(store, f"{array}_1")
        assert again.files.stdout == str(folder / f"{array}.001.out")
    slurm_lab.as_user("alice", "scancel", array)


async def test_a_job_on_several_nodes_writes_on_its_first(slurm_lab: SlurmLab) -> None:
    job_id = slurm_lab.submit("alice", "-N2", "-o", "%N.%j")
    slurm_lab.wait_state(job_id, "RUNNING")
    async with store_on(slurm_lab, "alice") as store:
        await store.open()
        place = await locate_logs(store, job_id)
    slurm_lab.as_user("alice", "scancel", job_id)
    first = (
        slurm_lab.admin("scontrol", "show", "hostnames", str(place.row["node_list"]))
        .stdout.decode()
        .split()[0]
    )
    assert place.files.stdout == str(slurm_lab.work_dir("alice") / f"{first}.{job_id}")


async def test_a_script_is_what_was_submitted_byte_by_byte(slurm_lab: SlurmLab) -> None:
    sent = b"#!/bin/bash\n#SBATCH -J caf\xe9\n\techo '\xe2\x80\xae \x1b[31m'\n\n\n"
    job_id = slurm_lab.submit("alice", "--hold", "-a", "1-3", script=sent)
    async with store_on(slurm_lab, "alice") as store:
        await store.open()
        of_the_controller = await fetch_script(store, f"{job_id}_2")
        assert of_the_controller.text.encode("utf-8", "surrogateescape") == sent
        store.backend = FORGETFUL
        wait_until(
            "the accounting to keep it",
            lambda: b"echo" in slurm_lab.admin("sacct", "-B", "-j", job_id).stdout,
        )
        of_the_accounting = await fetch_script(store, f"{job_id}_2")
        # A database of UTF-8 keeps no other bytes.
        assert of_the_accounting.text.encode("utf-8", "surrogateescape") == sent.replace(
            b"\xe9", b"?"
        )
    slurm_lab.as_user("alice", "scancel", job_id)


async def test_another_s_script_is_refused_in_words_and_read_from_its_file(
    slurm_lab: SlurmLab,
) -> None:
    async with store_on(slurm_lab, "alice") as store:
        await store.open()
        job_id = slurm_lab.submit("bob", "--hold")
        with pytest.raises(SchedulerRefused, match="another user's"):
            await fetch_script(store, job_id)
        file = slurm_lab.run_dir / "jobs" / "bobs.sh"
        slurm_lab.as_user(
            "bob", "sh", "-c", 'printf "#!/bin/sh\\ntrue\\n" > "$1"; chmod 644 "$1"', "sh", file
        )
        submitted = (
            slurm_lab.as_user("bob", "sbatch", "--parsable", "--hold", file).stdout.decode().strip()
        )
        script = await fetch_script(store, submitted)
        assert (script.text, script.source) == (
            "#!/bin/sh\ntrue\n",
            f"read from {file}, current version",
        )
        slurm_lab.as_user("bob", "chmod", "600", file)
        with pytest.raises(SchedulerRefused) as refused:
            await fetch_script(store, submitted)
        assert refused.value.next_step.endswith(
            f"{file}, which cannot be read now: no permission to read this file"
        )
        slurm_lab.as_user("bob", "scancel", job_id, submitted)


async def test_no_scheduler_s_word_for_a_job_that_never_was(slurm_lab: SlurmLab) -> None:
    async with store_on(slurm_lab, "alice") as store:
        await store.open()
        for ask in (locate_logs, fetch_script):
            with pytest.raises((NoSuchJob, AccountingUnavailable)):
                await ask(store, "99999999")


def test_script_prints_the_bytes_alone_and_its_difference(
    slurm_lab: SlurmLab, over_ssh: Program
) -> None:
    sent = b"#!/bin/sh\n#SBATCH -t 90\necho caf\xe9\n"
    job_id = slurm_lab.submit("alice", "--hold", script=sent)
    other = slurm_lab.submit("alice", "--hold", script=sent.replace(b"90", b"60"))
    plain = over_ssh("script", job_id)
    assert (plain.status, plain.stdout, plain.stderr) == (0, sent, "")
    explained = over_ssh("script", job_id, "--explain")
    assert b"time limit 1 h 30 min" in explained.stdout
    difference = over_ssh("script", other, "--diff", job_id)
    assert (difference.status, difference.stderr) == (0, "")
    assert b"\n-#SBATCH -t 90\n+#SBATCH -t 60\n echo caf\xe9\n" in difference.stdout
    bobs = slurm_lab.submit("bob", "--hold")
    assert "another user's" in over_ssh("script", bobs).refused(1)
    slurm_lab.admin("scancel", job_id, other, bobs)


@pytest.fixture
async def store(slurm_lab: SlurmLab) -> AsyncIterator[ClusterStore]:
    async with store_on(slurm_lab, "alice") as one:
        await one.open()
        yield one


@pytest.mark.parametrize(
    ("user", "accounts"), [("alice", ["physics", "chem"]), ("bob", ["physics"])]
)
async def test_a_person_is_offered_the_accounts_of_hers_alone(
    slurm_lab: SlurmLab, user: str, accounts: list[str]
) -> None:
    async with store_on(slurm_lab, user) as store:
        offers = await fetch_offers(store)
    assert [account.name for account in offers.accounts] == accounts
    assert offers.accounts[0].is_default
    assert offers.accounts[0].qos[0] == "normal"
    assert {qos.name: qos.limit_seconds for qos in offers.qos}["tiny"] == 600
    assert {qos.name: (qos.most_jobs, qos.most_cpus) for qos in offers.qos}["limited"] == (2, 6)
    assert offers.gpu_types == ("a100",)
    gpu, default = offers.queue("gpu"), offers.queue("")
    assert gpu is not None
    assert default is not None
    assert (gpu.gpus, gpu.gpus_per_node, gpu.limit_seconds) == (8, 4, 172_800)
    assert default.name == "main"
    assert offers.notes == ()


@pytest.mark.parametrize(
    "line",
    [
        "-p nosuch",
        "-A nosuch",
        "-q nosuch",
        "-N 40",
        "-p gpu --gres=gpu:5",
        "-p gpu --gpus-per-node=h100:1",
        "--mem=900G",
        "--bogus",
        "--gpu=1",
        "-t 90m",
        "--time=“1:00”",
        "–p gpu",
    ],
)
async def test_what_slurm_refuses_is_found_before(store: ClusterStore, line: str) -> None:
    script = f"#!/bin/sh\n#SBATCH {line}\ntrue\n".encode()
    estimate = await estimate_start(store, script)
    assert estimate.refusal
    (one, *_) = lint_script(script, "slurm", await fetch_offers(store))
    assert one.field == "line 2"


@pytest.mark.parametrize(
    "script",
    [b"", b"true\n", b"\xef\xbb\xbf#!/bin/sh\n", b"#!/bin/sh\r\ntrue\r\n", b"#!/bin/sh\nx\0\n"],
)
async def test_a_script_that_slurm_refuses_by_its_bytes_is_found_before(
    store: ClusterStore, script: bytes
) -> None:
    assert (await estimate_start(store, script)).refusal
    assert lint_script(script, "slurm", await fetch_offers(store))[0].severity == "error"


async def test_what_slurm_takes_has_a_start_and_finds_nothing(store: ClusterStore) -> None:
    script = b"#!/bin/sh\n#SBATCH -p gpu -t 10 --gpus=a100:1 -A chem\n  #SBATCH -p nosuch\ntrue\n"
    before = await store.transport.run(("squeue", "-h", "--me", "-o", "%i"), limit_seconds=20)
    estimate = await estimate_start(store, script)
    after = await store.transport.run(("squeue", "-h", "--me", "-o", "%i"), limit_seconds=20)
    assert estimate.refusal == ""
    assert estimate.queue == "gpu"
    assert estimate.starts_at_epoch is not None
    assert estimate.starts_at_epoch > time.time() - 60
    # Nothing was submitted.
    assert set(after.stdout.split()) <= set(before.stdout.split())
    assert [one.severity for one in lint_script(script, "slurm", await fetch_offers(store))] == [
        "warning"
    ]


async def test_options_take_the_place_of_a_script_s_lines(store: ClusterStore) -> None:
    estimate = await estimate_start(store, b"#!/bin/sh\n#SBATCH -p nosuch\n", ("-p", "debug"))
    assert (estimate.queue, estimate.refusal) == ("debug", "")


async def test_paths_are_looked_for_as_who_one_is_there(store: ClusterStore) -> None:
    request = Request(
        command="x", work_dir="/root", container=Container(image="/nosuch.sif", binds=("/etc",))
    )
    found = await missing_paths(store, request)
    assert [(one.field, one.text) for one in found] == [
        ("work_dir", "/root cannot be entered: no permission"),
        ("container.image", "/nosuch.sif does not exist"),
    ]
