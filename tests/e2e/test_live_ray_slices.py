"""Runs on slices of a real Ray: several workers as one job, preemptions, failures, and what is left
behind.
"""

from __future__ import annotations

import os
import pickle
import re
import secrets
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from tests.e2e.test_podman import image_of
from tests.support.program import Program, home_with
from tests.support.ray_cluster import RayCluster, why_no_ray
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(why_no_ray() is not None, reason=str(why_no_ray())),
    pytest.mark.xdist_group("ray"),
]
SECONDS = 120.0
# Of 130 MB each, and some seconds of a core to start.
MAX_DRIVERS = 8

TRAINER = """
import os, time
from hpcdash.job import Checkpoints, TrainingGuard, current_job_context

def main(failing):
    job, attempt = current_job_context(), os.environ["HPCDASH_ATTEMPT"]
    print("attempt", attempt, "from", os.environ["HPCDASH_RESUME_FROM"] or "the beginning")
    guard = TrainingGuard(memory=None)
    checkpoints = Checkpoints(os.environ["HPCDASH_CHECKPOINTS"])
    newest = checkpoints.newest()
    step = newest.step if newest else 0
    while not guard.should_stop(step):
        step += 1
        time.sleep(0.2)
        guard.step(step)
        print("step", step)
        if job.rank == failing and attempt == "1":
            # Once the other one has begun.
            while not os.path.exists("begun"):
                time.sleep(0.1)
            raise ValueError("a bad day")
        if job.rank == 0 and step == 1:
            open("begun", "w").close()
    if job.rank == 0:
        with checkpoints.saving(step) as folder:
            (folder / "weights").write_text("w")
        print("saved", step)
    return job.job_id
"""


@pytest.fixture(scope="module")
def slice_a(ray: RayCluster) -> list[int]:
    return ray.add_slice("v4-16", "slice-a")


@pytest.fixture
def program(ray: RayCluster, tmp_path: Path) -> Program:
    return Program(home_with(tmp_path / "home"), ("--ray", ray.url))


def submit(program: Program, command: str, more: str = "", kind: str = "v4-16") -> str:
    return submit_text(
        program, f"name = \"llm\"\nslice = \"{kind}\"\ncommand = '''\n{command}\n'''\n{more}\n"
    )


def submit_text(program: Program, text: str) -> str:
    file = program.home / "request.toml"
    file.write_text(text)
    done = program("submit", str(file))
    assert done.status == 0, done
    return done.text.split()[-1]


def log(program: Program, job_id: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", program("log", job_id).text)


def until_said(ray: RayCluster, job_id: str, words: str) -> str:
    wait_until(words, lambda: words in ray.log(job_id))
    return ray.log(job_id)


def ended(ray: RayCluster, program: Program, job_id: str) -> tuple[str, int | None]:
    wait_until("the job to end", lambda: ray.has_ended(job_id))
    row = program("show", job_id, "--format", "json").json["job"]
    return row["state"], row["exit_code"]


@pytest.fixture
def marker() -> str:
    """How long a sleep lasts, by which its process is found."""
    return f"9{secrets.randbelow(10**8):08}"


def processes_with(word: str) -> list[int]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if any(word in part for part in process.info["cmdline"] or ()):
            found.append(process.pid)
    return found


def test_each_worker_runs_the_command_with_its_rank_in_a_container_while_others_wait_for_more_slices(
    ray: RayCluster, program: Program, slice_a: list[int], tmp_path: Path
) -> None:
    waiting = submit(program, "true", 'num_slices = 2\ngrow_every = "1s"')
    until_said(
        ray,
        waiting,
        "waiting for 2 slices of v4-16: 1 found so far; the cluster has 1, after 0 min",
    )
    # It does not keep the one that there is.
    job_id = submit(
        program,
        f'echo "$WORLD_SIZE $MASTER_PORT $HPCDASH_ATTEMPT" >{tmp_path}/rank-$RANK\n'
        "python3 -c 'import hpcdash.job as job; print(job.current_job_context().rank)' "
        f">>{tmp_path}/rank-$RANK\n"
        "echo secret is $TOKEN",
        '[environment]\nTOKEN = "hunter2"\n[container]\nimage = "img:1"\nbinds = ["/data:/data"]\n',
    )
    assert ended(ray, program, job_id) == ("completed", 0)
    assert program("cancel", "--yes", waiting).status == 0
    assert [(tmp_path / f"rank-{rank}").read_text().split() for rank in (0, 1)] == [
        ["2", "29500", "1", "0"],
        ["2", "29500", "1", "1"],
    ]
    said = log(program, job_id)
    assert "attempt 1: preempted 0×, failed 0×, on slice-a" in said
    assert "secret is hunter2" in said
    [row] = [row for row in program.rows("history") if row["id"] == job_id]
    assert (row["nodes"], row["queue"]) == (2, "slice-a,TPU-v4-16-head")
    assert row["comment"] == "attempt 1: preempted 0×, failed 0×"
    alive = {node["name"] for node in program.rows("nodes") if "slice-a=1" in node["features"]}
    assert {*row["node_list"].split(",")} <= alive
    words = Path(ray.variables["DOCKER_WORDS"]).read_text().splitlines()
    name = f"hpcdash-llm-127.0.0.{slice_a[0] + 1}"
    [first] = {line for line in words if line.startswith("run") and name in line}
    assert first.startswith(
        "run --rm --privileged --shm-size=32gb --net=host --init -v /tmp:/tmp -v /data:/data -e "
    )
    # Its value would stand in the list of processes.
    assert " -e TOKEN " in first
    assert "hunter2" not in "\n".join(words)
    assert words.index(f"rm -f {name}") < words.index(first)


@pytest.mark.long
def test_a_real_container_has_the_job_s_folders_and_nothing_of_it_is_left(
    ray: RayCluster, program: Program, slice_a: list[int], marker: str
) -> None:
    runtime = next(
        (
            name
            for name in ("runc", "crun")
            if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")
        ),
        "",
    )
    if (
        shutil.which("podman") is None
        or shutil.which("catatonit") is None
        or not runtime
        or os.getuid()
    ):
        pytest.skip("podman as root is not installed (apt-get install podman catatonit)")
    # Outside /tmp, which a container has anyway.
    folder = Path(tempfile.mkdtemp(prefix="hpcdash-pod-", dir="/var/tmp"))
    image = "localhost/hpcdash-ray"
    (folder / "containers.conf").write_text(
        f'[engine]\nruntime = "{runtime}"\ncgroup_manager = "cgroupfs"\n'
        f'[containers]\ninit_path = "{shutil.which("catatonit")}"\n'
        # podman's own are above what a machine may allow.
        'default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]\n'
    )
    (folder / "storage.conf").write_text(
        f'[storage]\ndriver = "vfs"\ngraphroot = "{folder}/graph"\nrunroot = "{folder}/run"\n'
    )
    settings = {
        "CONTAINERS_CONF": f"{folder}/containers.conf",
        "CONTAINERS_STORAGE_CONF": f"{folder}/storage.conf",
    }

    def podman(*words: str, stdin: bytes = b"") -> str:
        done = subprocess.run(
            ["podman", *words],
            env={**os.environ, **settings},
            input=stdin,
            capture_output=True,
            check=True,
        )
        return done.stdout.decode()

    try:
        programs = ("sh", "bash", "sleep", "mkdir", "find", "sort", "head")
        podman("import", "-c", "ENV IN_IMAGE=small", "-", image, stdin=image_of(*programs))
        stale = f"hpcdash-pod-127.0.0.{slice_a[1] + 1}"
        podman("create", "--name", stale, image, "sleep", "1")
        (folder / "work").mkdir()
        job_id = submit_text(
            program,
            'name = "pod"\nslice = "v4-16"\nretries_failure = 0\n'
            f'work_dir = "{folder}/work"\ncheckpoints = "{folder}/saved"\n'
            f'command = "echo $IN_IMAGE >$RANK; >$HPCDASH_CHECKPOINTS/$RANK; exec sleep {marker}"\n'
            f'[container]\nruntime = "podman"\nimage = "docker://{image}"\n'
            f'[environment]\nCONTAINERS_CONF = "{settings["CONTAINERS_CONF"]}"\n'
            f'CONTAINERS_STORAGE_CONF = "{settings["CONTAINERS_STORAGE_CONF"]}"\n',
        )
        wait_until(
            "both containers",
            lambda: len(list((folder / "saved").glob("?"))) == 2 or ray.has_ended(job_id),
        )
        assert not ray.has_ended(job_id), ray.log(job_id)
        assert [(folder / "work" / rank).read_text() for rank in "01"] == ["small\n"] * 2
        assert program("cancel", "--yes", job_id).status == 0
        wait_until("the containers to be removed", lambda: not podman("ps", "-aq"))
        wait_until("what started them to end", lambda: not processes_with(marker))
    finally:
        podman("rm", "-af")
        shutil.rmtree(folder, ignore_errors=True)


def test_a_failure_ends_the_other_workers_and_is_tried_as_often_as_asked(
    ray: RayCluster, program: Program, slice_a: list[int], marker: str
) -> None:
    job_id = submit(
        program, f'[ "$RANK" = 0 ] || exit 7\nexec sleep {marker}', "retries_failure = 0"
    )
    assert ended(ray, program, job_id) == ("failed", 7)
    assert "attempt 1 failed: worker 1 on slice-a, exit 7" in log(program, job_id)
    steps = program("show", job_id, "--steps", "--format", "json").json["steps"]
    assert [(step["id"], step["state"], step["exit_code"]) for step in steps] == [
        ("0", "cancelled", None),
        ("1", "failed", 7),
    ]
    wait_until("the other worker's command to end", lambda: not processes_with(marker))


def test_cancelling_leaves_no_process_that_does_not_heed_signals(
    ray: RayCluster, program: Program, slice_a: list[int], marker: str
) -> None:
    job_id = submit(program, f"trap '' TERM; sh -c 'exec sleep {marker}' & exec sleep {marker}")
    wait_until("the command to run on both workers", lambda: len(processes_with(marker)) >= 4)
    assert program("cancel", "--yes", job_id).status == 0
    assert ended(ray, program, job_id)[0] == "cancelled"
    wait_until("all of it to end", lambda: not processes_with(marker))
    wait_until("what held the slice to end", lambda: "SliceHead" not in _alive_actors(ray))


def test_a_function_goes_on_from_its_checkpoint_and_ends_at_the_kill_switch(
    ray: RayCluster, program: Program, slice_a: list[int], tmp_path: Path
) -> None:
    (tmp_path / "trainer.py").write_text(TRAINER)
    kill = tmp_path / "KILL"
    job_id = submit_text(
        program,
        f'slice = "v4-16"\nwork_dir = "{tmp_path}"\ncheckpoints = "{tmp_path}/saved"\nkill_switch '
        f'= "{kill}"\n'
        'retries_failure = 1\n[call]\nfunction = "trainer:main"\nkwargs = { failing = 1 }\n',
    )
    words = until_said(ray, job_id, "[attempt2.worker0]: step ")
    # The worker that was cancelled saved in the seconds that it had.
    [saved] = {int(found) for found in re.findall(r"attempt 2 from \S+/step-0*(\d+)", words)}
    assert f"[attempt1.worker0]: saved {saved}" in words
    assert "[attempt1.worker1]: ValueError: a bad day" in words
    kill.touch()
    assert ended(ray, program, job_id) == ("completed", 0)
    [result] = tmp_path.glob("result-*.pkl")
    assert pickle.loads(result.read_bytes()) == job_id


def test_a_run_goes_on_when_a_node_is_lost_and_grows_to_the_slices_that_come(
    ray: RayCluster, program: Program, slice_a: list[int], tmp_path: Path
) -> None:
    slice_b = ray.add_slice("v4-16", "slice-b")
    job_id = submit(
        program,
        'echo "$WORLD_SIZE $MASTER_ADDR $PWD $MEGASCALE_SLICE_ID $MEGASCALE_NUM_SLICES" '
        f">{tmp_path}/.$HPCDASH_ATTEMPT-$RANK\n"
        f"mv {tmp_path}/.$HPCDASH_ATTEMPT-$RANK {tmp_path}/$HPCDASH_ATTEMPT-$RANK\n"
        "echo step $HPCDASH_ATTEMPT loss $((100 - HPCDASH_ATTEMPT))\n"
        f"while [ ! -e {tmp_path}/over ]; do sleep 0.2; done",
        'num_slices = [1, 2]\ngrow_after = "2s"\ngrow_every = "2s"',
    )

    def begun(workers: int, after: int) -> int:
        """The number of the next attempt that all of so many workers have begun."""

        def found() -> int:
            attempts: dict[int, list[str]] = {}
            for file in tmp_path.glob("[0-9]*-*"):
                attempts.setdefault(int(file.name.partition("-")[0]), []).append(
                    file.read_text().split()[0]
                )
            return max(
                (one for one, sizes in attempts.items() if sizes == [str(workers)] * workers),
                default=0,
            )

        wait_until(
            f"an attempt of {workers} workers after attempt {after}", lambda: found() > after
        )
        return found()

    first = begun(4, after=0)
    assert sorted((tmp_path / f"{first}-{rank}").read_text().split()[3:] for rank in range(4)) == [
        ["0", "2"],
        ["0", "2"],
        ["1", "2"],
        ["1", "2"],
    ]
    down = sum(node["state"] == "down" for node in program.rows("nodes"))
    queues = {queue["name"]: queue["nodes"] for queue in program.rows("queues")}
    assert {
        name: queues[name] for name in ("TPU-v4-8-head", "TPU-v4-16-head", "slice-h", "slice-b")
    } == ({"TPU-v4-8-head": 1, "TPU-v4-16-head": 2, "slice-h": 1, "slice-b": 2})
    ray.kill_node(slice_b[1])
    assert sum(node["state"] == "down" for node in program.rows("nodes")) == down + 1
    smaller = begun(2, after=first)
    [row] = [row for row in program.rows("jobs") if row["id"] == job_id]
    assert (row["nodes"], row["queue"]) == (2, "slice-a,TPU-v4-16-head")
    assert row["reason"].startswith(f"attempt {smaller}: preempted {smaller - 1}×, failed 0×")
    ray.add_node(**{"slice-b": 1, "TPU": 4})
    last = begun(4, after=smaller)
    (tmp_path / "over").touch()
    assert ended(ray, program, job_id) == ("completed", 0)
    words = log(program, job_id)
    assert "preempted: slice-b, continues with more slices" in words
    assert f"attempt {last} succeeded; preempted {last - 1}×, failed 0×" in words
    # The first worker is where the others look for it: a node's files are in a folder of its place.
    for file in tmp_path.glob("[0-9]*-0"):
        master, folder = file.read_text().split()[1:3]
        place = Path(folder).relative_to(ray.folder).parts[0]
        assert master == f"127.0.0.{int(place) + 1}"
    # What was written on the node that was lost is still there, and each worker's lines can be read
    # alone.
    assert (
        f"step {first} loss {100 - first}\n"
        in program("log", job_id, "--of", f"attempt{first}.worker3").text
    )
    assert f"step {first} loss {100 - first}\n" in program("log", job_id, "--of", "worker0").text
    assert "step " not in program("log", job_id, "--of", f"attempt{smaller}.worker3").text
    [series] = program("metrics", job_id, "--format", "json").json["series"]
    assert {first, smaller, last} <= set(series["x"])
    assert series["y"] == [100 - step for step in series["x"]]
    steps = program("show", job_id, "--steps", "--format", "json").json["steps"]
    assert [(step["id"], step["state"]) for step in steps] == [
        (str(number), "completed") for number in range(4)
    ]


@pytest.mark.long
def test_a_slice_of_four_workers_has_a_rank_on_each_of_its_nodes(
    ray: RayCluster, program: Program, tmp_path: Path
) -> None:
    first, *_ = ray.add_slice("v4-32", "slice-four", workers=4)
    job_id = submit(program, f"echo $WORLD_SIZE $MASTER_ADDR >{tmp_path}/rank-$RANK", kind="v4-32")
    assert ended(ray, program, job_id) == ("completed", 0)
    said = [(tmp_path / f"rank-{rank}").read_text().split() for rank in range(4)]
    assert said == [["4", f"127.0.0.{first + 1}"]] * 4
    [row] = [row for row in program.rows("history") if row["id"] == job_id]
    assert (row["nodes"], len({*row["node_list"].split(",")})) == (4, 4)


@pytest.mark.long
def test_a_worker_that_ray_kills_for_memory_has_failed_and_is_counted(
    ray: RayCluster, program: Program, slice_a: list[int], marker: str
) -> None:
    ray.kill_node(slice_a[1])
    monitor = {"RAY_memory_usage_threshold": "0.001", "RAY_memory_monitor_refresh_ms": "100"}
    full = ray.add_node(monitor, **{"slice-a": 1, "TPU": 4})
    try:
        job_id = submit(program, f"exec sleep {marker}", "retries_failure = 0")
        state, code = ended(ray, program, job_id)
        assert (state, code) == ("failed", 1)
        words = log(program, job_id)
        why = r"killed by Ray: the node ran out of memory, with \S+ of \S+ in use\n"
        assert re.search(rf"attempt 1 failed: worker \d on slice-a, {why}", words)
        assert "no further attempt: preempted 0×, failed 1×" in words
        [row] = [row for row in program.rows("history") if row["id"] == job_id]
        assert "attempt 1 failed: " in row["comment"]
        wait_until("the other worker's command to end", lambda: not processes_with(marker))
    finally:
        ray.kill_node(full)
        slice_a[1] = ray.add_node(**{"slice-a": 1, "TPU": 4})


@pytest.mark.long
def test_a_node_that_is_lost_outranks_a_worker_that_fails_of_it(
    ray: RayCluster, program: Program, slice_a: list[int], tmp_path: Path
) -> None:
    job_id = submit(
        program,
        f"touch {tmp_path}/$HPCDASH_ATTEMPT-$RANK\n"
        f'[ "$HPCDASH_ATTEMPT" = 1 ] || exit 0\nuntil [ -e {tmp_path}/lost ]; do sleep 0.1; '
        "done\nexit 7",
        "retries_failure = 0",
    )
    wait_until(
        "both workers to begin", lambda: (tmp_path / "1-0").exists() and (tmp_path / "1-1").exists()
    )
    (tmp_path / "lost").touch()
    ray.kill_node(slice_a[1])
    slice_a[1] = ray.add_node(**{"slice-a": 1, "TPU": 4})
    assert ended(ray, program, job_id) == ("completed", 0)
    assert "attempt 2 succeeded; preempted 1×, failed 0×" in log(program, job_id)


@pytest.mark.long
def test_a_driver_that_is_killed_takes_its_workers_along_and_gives_the_slice_back(
    ray: RayCluster, program: Program, slice_a: list[int], marker: str
) -> None:
    job_id = submit(program, f"exec sleep {marker}")
    wait_until("the command to run on both workers", lambda: len(processes_with(marker)) >= 2)
    drivers = [
        pid
        for pid in processes_with("slice_driver")
        if job_id in _environment(pid, "RAY_JOB_CONFIG")
    ]
    assert drivers
    for pid in drivers:
        psutil.Process(pid).kill()
    assert ended(ray, program, job_id)[0] == "failed"
    wait_until("the commands to end", lambda: not processes_with(marker))
    wait_until("what held the slice to end", lambda: "SliceHead" not in _alive_actors(ray))


def _environment(pid: int, start: str) -> str:
    """The variables of a process whose names begin so."""
    found = psutil.Process(pid).environ()
    return " ".join(value for name, value in found.items() if name.startswith(start))


@pytest.mark.long
def test_thirty_runs_have_one_slice_one_after_the_other_and_leave_nothing(
    ray: RayCluster, program: Program, slice_a: list[int], tmp_path: Path, marker: str
) -> None:
    jobs: list[str] = []
    shares: list[float] = []
    for number in range(30):
        wait_until(
            "a driver to end", lambda: sum(not ray.has_ended(job) for job in jobs) < MAX_DRIVERS
        )
        # The first holds the slice until the others are seen to wait.
        holds = f"until [ -e {tmp_path}/seen ]; do sleep 0.2; done; " if number == 0 else ""
        jobs.append(
            submit(
                program, f"{holds}echo $HPCDASH_JOB_ID >>{tmp_path}/rank-$RANK; sleep 0.{marker}"
            )
        )
        if number == MAX_DRIVERS - 1:
            until_said(
                ray, jobs[-1], "hpcdash: waiting for 1 slice of v4-16: 0 found so far; 0 of 1 free"
            )
            shares = _cpu_shares("slice_driver", 10.0)
            (tmp_path / "seen").touch()
    # Those that wait do nothing but wait.
    assert len(shares) >= MAX_DRIVERS - 2
    assert sorted(shares)[len(shares) // 2] < 0.1, shares
    wait_until("all to end", lambda: all(map(ray.has_ended, jobs)))
    assert {row["state"] for row in program.rows("history") if row["id"] in jobs} == {"completed"}
    for rank in (0, 1):
        assert sorted((tmp_path / f"rank-{rank}").read_text().split()) == sorted(jobs)
    wait_until("what held the slice to end", lambda: "SliceHead" not in _alive_actors(ray))
    wait_until(
        "their processes to end",
        lambda: not processes_with(marker) + processes_with("slice_driver"),
    )
    for name in ("TPU-v4-16-head", "slice-a"):
        free = re.compile(rf"^{name} .* 0 of \d in use$", re.M)
        # Ray counts what is in use some seconds late.
        wait_until(
            f"{name} to be free",
            lambda free=free: free.search(program("queues", "--format", "table").text),
        )


def _cpu_shares(word: str, seconds: float) -> list[float]:
    """How much of a core each process with this word among its own uses."""
    found = [psutil.Process(pid) for pid in processes_with(word)]
    before = {process: sum(process.cpu_times()[:2]) for process in found}
    time.sleep(seconds)
    return [
        (sum(one.cpu_times()[:2]) - was) / seconds
        for one, was in before.items()
        if one.is_running()
    ]


def _alive_actors(ray: RayCluster) -> list[str]:
    found = ray.get("/api/v0/actors?limit=10000") or {}
    return [
        actor["class_name"]
        for actor in found["data"]["result"]["result"]
        if actor["state"] != "DEAD"
    ]
