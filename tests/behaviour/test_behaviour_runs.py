"""What a job is given, does and leaves behind, on the embedded queue and on Slurm alike."""

from __future__ import annotations

import asyncio
import os

import pytest

from hpcdash.errors import NoSuchJob
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.jobs.scripts import fetch_script
from tests.behaviour.clusters import Cluster, Row, bash


async def test_how_a_job_ended_is_told_by_its_state_and_its_exit(cluster: Cluster) -> None:
    expected = {
        "true": ("completed", 0, 0),
        "exit 3": ("failed", 3, 0),
        "exit 137": ("failed", 137, 0),
        "kill -KILL $$": ("failed", 0, 9),
        "kill -SEGV $$": ("failed", 0, 11),
        "no-such-program": ("failed", 127, 0),
    }
    jobs = await asyncio.gather(*map(cluster.submit, expected))
    rows = await cluster.all_ended(*jobs)
    assert [(row["state"], row["exit_code"], row["exit_signal"]) for row in rows] == list(
        expected.values()
    )
    assert [row["reason"] for row in rows[:3]] == [None, "NonZeroExitCode", "NonZeroExitCode"]


async def test_a_job_goes_from_pending_to_running_to_completed(cluster: Cluster) -> None:
    job = await cluster.submit(
        "until [ -e go-on ]; do sleep 0.05; done; echo done", "-t", "5", "-n", "2", held=True
    )
    row = await cluster.row(job)
    assert (row["state"], row["started_at"], row["ends_at"], row["node_list"]) == (
        "held",
        None,
        None,
        None,
    )
    await cluster.do("release", job)
    row = await cluster.wait(job, "running")
    assert (row["exit_code"], row["exit_signal"], row["reason"]) == (None, None, None)
    assert (row["nodes"], row["cpus"], row["gpus"], row["limit_seconds"]) == (1, 2, 0, 300)
    assert (row["array_id"], row["array_task"], row["name"]) == (None, None, "job.sh")
    assert (row["work_dir"], row["user"]) == (str(cluster.work), cluster.store.user)
    assert row["ends_at"].timestamp() - row["started_at"].timestamp() == 300
    assert row["node_list"]
    (cluster.work / "go-on").touch()
    row = await cluster.ended(job)
    assert (row["state"], row["exit_code"], row["reason"]) == ("completed", 0, None)
    assert row["submitted_at"] <= row["started_at"] <= row["ends_at"]
    assert await cluster.log(job) == "done\n"


async def test_output_goes_where_it_is_told_to_be(cluster: Cluster) -> None:
    (cluster.work / "logs").mkdir()
    body = 'echo "out $SLURM_JOB_ID"; echo "err $SLURM_JOB_ID" >&2'
    plain, apart, array, nowhere = await asyncio.gather(
        cluster.submit(body),
        cluster.submit(body, "-J", "sim", "-o", "logs/%x-%j.out", "-e", "logs/%x-%j.err"),
        cluster.submit(body, "-o", "logs/%A_%a.out", "-e", "logs/%A_%2a.err", array="3,5"),
        cluster.submit(body, "-o", "no-such-folder/%j.out"),
    )
    await cluster.all_ended(plain, apart, f"{array}_3", f"{array}_5")
    place = await cluster.place(plain)
    assert (place.files.stdout, place.files.stderr) == (f"{cluster.work}/slurm-{plain}.out", None)
    assert (await cluster.log(plain)) == f"out {plain}\nerr {plain}\n"
    files = (await cluster.place(apart)).files
    assert (files.stdout, files.stderr) == (
        f"{cluster.work}/logs/sim-{apart}.out",
        f"{cluster.work}/logs/sim-{apart}.err",
    )
    assert (await cluster.log(apart), await cluster.log(apart, stderr=True)) == (
        f"out {apart}\n",
        f"err {apart}\n",
    )
    files = (await cluster.place(f"{array}_5")).files
    assert (files.stdout, files.stderr) == (
        f"{cluster.work}/logs/{array}_5.out",
        f"{cluster.work}/logs/{array}_05.err",
    )
    assert (await cluster.log(f"{array}_3")).startswith("out ")
    # A job that cannot write has failed, and has not run.
    assert (await cluster.ended(nowhere))["state"] == "failed"


async def test_a_log_is_cut_or_added_to_as_was_asked_for(cluster: Cluster) -> None:
    for name in ("cut.log", "added.log"):
        (cluster.work / name).write_text("before\n")
    cut, added = await asyncio.gather(
        cluster.submit("echo after", "-o", "cut.log"),
        cluster.submit("echo after", "-o", "added.log", "--open-mode=append"),
    )
    await cluster.all_ended(cut, added)
    assert await cluster.log(cut) == "after\n"
    assert await cluster.log(added) == "before\nafter\n"


async def test_a_script_has_its_arguments_and_the_name_of_its_file(cluster: Cluster) -> None:
    arguments = ("--lr=0.1", "two words", "$HOME", "", "-x")
    job = await cluster.submit(
        'echo "$#"; printf "%s\\n" "$@"', name="train.sh", arguments=arguments
    )
    row = await cluster.ended(job)
    assert row["name"] == "train.sh"
    assert (await cluster.log(job)).split("\n") == ["5", *arguments, ""]


async def test_directives_give_way_to_options(cluster: Cluster) -> None:
    body = "#SBATCH --job-name=of-script -t 7\n#SBATCH --comment='a b'\necho $SLURM_JOB_NAME"
    own, given = await asyncio.gather(
        cluster.submit(body), cluster.submit(body, "-J", "given", "-t", "1:00:00")
    )
    rows = await cluster.all_ended(own, given)
    assert [(row["name"], row["limit_seconds"], row["comment"]) for row in rows] == [
        ("of-script", 420, "a b"),
        ("given", 3600, "a b"),
    ]
    assert [await cluster.log(job) for job in (own, given)] == ["of-script\n", "given\n"]


# What the two are to say alike, besides the names of machines, people and clusters.
SAID_ALIKE = (
    *(
        "ARRAY_JOB_ID",
        "ARRAY_TASK_COUNT",
        "ARRAY_TASK_ID",
        "ARRAY_TASK_MAX",
        "ARRAY_TASK_MIN",
        "ARRAY_TASK_STEP",
    ),
    *(
        "CPUS_ON_NODE",
        "CPUS_PER_TASK",
        "JOBID",
        "JOB_CPUS_PER_NODE",
        "JOB_GID",
        "JOB_ID",
        "JOB_NAME",
        "JOB_NUM_NODES",
    ),
    *(
        "JOB_UID",
        "JOB_USER",
        "LOCALID",
        "MEM_PER_NODE",
        "NNODES",
        "NODEID",
        "NPROCS",
        "NTASKS",
        "NTASKS_PER_NODE",
    ),
    *("PROCID", "RESTART_COUNT", "SUBMIT_DIR", "TASKS_PER_NODE"),
)


async def environment(cluster: Cluster, job_id: str) -> dict[str, str]:
    """What a job that printed its environment was told, without what may differ."""
    await cluster.ended(job_id)
    told = dict(line.partition("=")[::2] for line in (await cluster.log(job_id)).splitlines())
    return {name: told[f"SLURM_{name}"] for name in SAID_ALIKE if f"SLURM_{name}" in told}


async def test_a_job_is_told_what_it_was_given_and_nothing_it_did_not_ask_for(
    cluster: Cluster,
) -> None:
    plain, many, array = await asyncio.gather(
        cluster.submit("env", "--mem=70M"),
        cluster.submit("env", "-c2", "--ntasks-per-node=2", "-J", "a b", "--mem=70M"),
        cluster.submit("env", "-n2", "--mem=70M", array="3-9:3"),
    )
    always = {
        "CPUS_ON_NODE": "1",
        "JOB_CPUS_PER_NODE": "1",
        "JOB_GID": str(os.getgid()),
        "JOB_NAME": "job.sh",
        "JOB_NUM_NODES": "1",
        "JOB_UID": str(os.getuid()),
        "JOB_USER": cluster.store.user,
        "LOCALID": "0",
        "MEM_PER_NODE": "70",
        "NNODES": "1",
        "NODEID": "0",
        "PROCID": "0",
        "SUBMIT_DIR": str(cluster.work),
        "TASKS_PER_NODE": "1",
    }
    assert await environment(cluster, plain) == {**always, "JOBID": plain, "JOB_ID": plain}
    processes = {"NPROCS": "2", "NTASKS": "2", "TASKS_PER_NODE": "2"}
    assert await environment(cluster, many) == {
        **always,
        **processes,
        "CPUS_ON_NODE": "4",
        "JOB_CPUS_PER_NODE": "4",
        "CPUS_PER_TASK": "2",
        "NTASKS_PER_NODE": "2",
        "JOB_NAME": "a b",
        "JOBID": many,
        "JOB_ID": many,
    }
    told = await environment(cluster, f"{array}_6")
    # A task has a number of its own.
    number = told.pop("JOBID")
    assert told.pop("JOB_ID") == number
    assert told == {
        **always,
        **processes,
        "CPUS_ON_NODE": "2",
        "JOB_CPUS_PER_NODE": "2",
        "ARRAY_JOB_ID": array,
        "ARRAY_TASK_COUNT": "3",
        "ARRAY_TASK_ID": "6",
        "ARRAY_TASK_MAX": "9",
        "ARRAY_TASK_MIN": "3",
        "ARRAY_TASK_STEP": "3",
    }


async def test_an_environment_is_handed_on_as_asked(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GREETING", "hi there")
    body = 'echo "$GREETING|$COLOUR"'
    all_of_it, some, none = await asyncio.gather(
        cluster.submit(body),
        cluster.submit(body, "--export=ALL,COLOUR=dark red"),
        cluster.submit(body, "--export=COLOUR=red"),
    )
    await cluster.all_ended(all_of_it, some, none)
    assert [await cluster.log(job) for job in (all_of_it, some, none)] == [
        "hi there|\n",
        "hi there|dark red\n",
        "|red\n",
    ]


async def test_hostile_names_come_back_as_they_are(cluster: Cluster) -> None:
    names = (
        "$(rm -rf ~)",
        "two\nlines\r\tand\x1b[31m\udcff\udce9",
        "--version",
        "a|b %j %x",
        "[red]x[/red] 'q' \"",
    )
    jobs = await asyncio.gather(
        *(
            cluster.submit(
                'printf %s "$SLURM_JOB_NAME" | od -An -v -tx1 | tr -d " \\n"',
                f"--job-name={name}",
                "-o",
                "hostile-%j.out",
            )
            for name in names
        )
    )
    rows = await cluster.all_ended(*jobs)
    as_bytes = [name.encode("utf-8", "surrogateescape") for name in names]
    assert [row["name"] for row in rows] == [name.decode("utf-8", "replace") for name in as_bytes]
    assert [bytes.fromhex(await cluster.log(job)) for job in jobs] == as_bytes


async def test_a_script_is_kept_as_it_was_handed_in(cluster: Cluster) -> None:
    body = "# étude \udcff 日本\n\techo 'a\\b' \"$x\"  \n\n: <<END\n#SBATCH no option\nEND\n"
    job, array = await asyncio.gather(
        cluster.submit(body, held=True), cluster.submit(body, array="0-3", held=True)
    )
    for one in (job, array, f"{array}_2"):
        script = await fetch_script(cluster.store, one)
        assert script.text.encode("utf-8", "surrogateescape") == bash(body), one
    await cluster.do("cancel", job, array)


async def test_the_history_has_what_ended(cluster: Cluster) -> None:
    well, badly, array = await asyncio.gather(
        cluster.submit("true", "-J", "well"),
        cluster.submit("exit 3"),
        cluster.submit("exit $SLURM_ARRAY_TASK_ID", array="0-1"),
    )
    waiting = await cluster.submit("true", held=True)
    await cluster.do("cancel", waiting)
    jobs = (well, badly, f"{array}_0", f"{array}_1", waiting)
    now = {row["id"]: row for row in await cluster.all_ended(*jobs)}

    async def look() -> dict[str, Row] | None:
        rows = {row["id"]: row for row in await cluster.past(well, badly, array, waiting)}
        return (
            rows
            if rows.keys() == set(jobs) and all(row["ends_at"] for row in rows.values())
            else None
        )

    past = await cluster.until(look, lambda: f"the history to have {jobs}")
    told = {job: (row["state"], row["exit_code"]) for job, row in past.items()}
    assert told == {
        well: ("completed", 0),
        badly: ("failed", 3),
        f"{array}_0": ("completed", 0),
        f"{array}_1": ("failed", 1),
        waiting: ("cancelled", 0),
    }
    names = (
        "name",
        "array_id",
        "array_task",
        "work_dir",
        "started_at",
        "ends_at",
        "cpus",
        "exit_signal",
    )
    for job in (well, badly, f"{array}_0", f"{array}_1"):
        assert [past[job][name] for name in names] == [now[job][name] for name in names], job


async def test_a_job_that_never_was_is_told_to_be_none(cluster: Cluster) -> None:
    store: ClusterStore = cluster.store
    for asking in (
        cluster.rows("99999999"),
        store.fetch_detail("99999999"),
        fetch_script(store, "99999999"),
    ):
        with pytest.raises(NoSuchJob):
            await asking
    for verb in ("cancel", "hold", "release", "requeue"):
        ((done, words),) = (await cluster.does(verb, "99999999")).values()
        assert (done, bool(words)) == (False, True), verb
    ((done, words),) = (await cluster.does("alter", "99999999", time="5")).values()
    assert (done, bool(words)) == (False, True)
    ((done, words),) = (
        await cluster.does("signal", "99999999", signal="USR1", to="batch")
    ).values()
    assert (done, bool(words)) == (False, True)
    for verb in ("suspend", "resume"):
        # Of such a job Slurm says here what it says where the answer was lost.
        ((done, words),) = (await cluster.does(verb, "99999999")).values()
        assert (done in (False, None), bool(words)) == (True, True), verb
    assert await cluster.actions.fetch_rows(["99999999"]) == ()
