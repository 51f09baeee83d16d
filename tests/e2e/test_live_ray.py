"""hpcdash on a real Ray: jobs, logs, nodes and resources over its dashboard's HTTP API."""

from __future__ import annotations

import importlib
import shlex
import tempfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

import hpcdash
from tests.support.api import OTHER, TOKEN, Api, write_tokens
from tests.support.forwarding import fetch, forwarding, server
from tests.support.program import Program, home_with
from tests.support.ray_cluster import RayCluster, why_no_ray
from tests.support.slurm.layout import free_port
from tests.support.sshd import Sshd, login_user, why_no_sshd
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(why_no_ray() is not None, reason=str(why_no_ray())),
    pytest.mark.xdist_group("ray"),
]
# A program with tasks: one waits for ever, one fails.
PROGRAM = """
import ray, sys, time
ray.init(logging_level="ERROR")
@ray.remote(num_cpus=0, max_retries=0)
def shard(number):
    print(f"shard {number} reads", open("rows.txt").read().strip(), flush=True)
    print(f"shard {number} warns", file=sys.stderr, flush=True)
    if number: raise ValueError("shard 1 is broken")
    time.sleep(1000)
groups = [ray.util.placement_group([{"CPU": 100}], name="never")]
[shard.options(name=f"shard-{number}").remote(number) for number in range(2)]
time.sleep(1000)
"""
TRAINING = "for i in $(seq 1 1000); do echo step $i loss $((1000 - i)); sleep 0.1; done"

FUNCTIONS = """
import time
import hpcdash
@hpcdash.task(result_format="json")
def train(steps, pause=0.0):
    for step in range(1, steps + 1):
        print(f"step {step} loss {steps - step}", flush=True)
        time.sleep(pause)
    return {"steps": steps}
"""
SECONDS = 120.0


@pytest.fixture
def program(ray: RayCluster, tmp_path: Path) -> Program:
    return Program(home_with(tmp_path / "home"), ("--ray", ray.url))


def submit(program: Program, script: str, name: str = "job.sh") -> str:
    file = program.home / name
    file.write_text(f"#!/bin/bash\n{script}\n")
    done = program("submit", str(file))
    assert done.status == 0, done
    return done.text.split()[-1]


def state(program: Program, job_id: str) -> dict[str, object]:
    found: dict[str, object] = program("show", job_id, "--format", "json").json["job"]
    return found


def ended(ray: RayCluster, program: Program, job_id: str, as_state: str) -> dict[str, object]:
    wait_until(f"{job_id} to end", lambda: ray.has_ended(job_id))
    row = state(program, job_id)
    assert row["state"] == as_state
    return row


def test_a_port_of_the_head_is_a_port_here_until_the_job_ends(
    ray: RayCluster, program: Program, tmp_path: Path
) -> None:
    port = free_port()
    job = submit(program, server(port).partition("\n")[2])
    wait_until("its address", lambda: "token=" in program("log", job).text)
    with forwarding(program, tmp_path, job) as one:
        base, _, rest = one.line().partition("/lab")
        assert rest == "?token=0123456789abcdef"
        assert base != f"http://127.0.0.1:{port}"
        assert fetch(base).startswith("hello from")
        assert program("cancel", job, "--yes").status == 0
        assert one.ended() == 0
    assert "cannot be reached" in program("forward", job, str(free_port())).refused(3)


@pytest.mark.journey
def test_a_training_is_submitted_read_charted_and_cancelled(
    ray: RayCluster, program: Program
) -> None:
    job_id = submit(program, TRAINING, "train.sh")
    wait_until("its log", lambda: "step 5 " in ray.log(job_id))
    assert "step 5 " in program("log", job_id).text
    [row] = [row for row in program.rows("jobs") if row["id"] == job_id]
    assert (row["state"], row["name"]) == ("running", "train.sh")
    [series] = program("metrics", job_id, "--format", "json").json["series"]
    assert (series["name"], series["x"][:3], series["y"][:3]) == (
        "loss",
        [1, 2, 3],
        [999, 998, 997],
    )
    cancelled = program("cancel", "--yes", job_id)
    assert (cancelled.status, cancelled.text.split()) == (0, [job_id, "cancelled"])
    assert ended(ray, program, job_id, "cancelled")["native_state"] == "STOPPED"
    assert job_id in [row["id"] for row in program.rows("history")]


def test_a_program_goes_with_its_folder_is_read_task_by_task_and_deleted_in_the_end(
    ray: RayCluster, program: Program
) -> None:
    folder = program.home / "code"
    folder.mkdir()
    for name, content in {
        "work.py": PROGRAM,
        "rows.txt": "4096 rows\n",
        "big.bin": "x" * 100_000,
        ".gitignore": "big.bin\n",
        "request.toml": 'name = "shards"\nfiles = ["."]\ncommand = "python work.py"\nslots = '
        '1\nslot_type = "cpu"\n',
    }.items():
        (folder / name).write_text(content)
    request = str(folder / "request.toml")
    done = program("submit", request)
    assert done.status == 0, done
    assert "files: 4 files" in done.stderr
    job_id = done.text.split()[-1]
    again = program("submit", "--dry-run", request)
    assert "the package is already on the cluster" in again.stderr
    assert "PUT " not in again.text

    def failures() -> list[dict[str, str]]:
        activity = program("show", job_id, "--format", "json").json.get("activity") or {}
        found: list[dict[str, str]] = activity.get("failures", [])
        return found

    task = "/api/v0/tasks?filter_keys=name&filter_predicates=%3D&filter_values=shard-1"
    wait_until("a task to fail", lambda: "FAILED" in str(ray.get(task)))
    wait_until("its failure", failures)
    assert failures() == [{"name": "shard-1", "why": "ValueError: shard 1 is broken"}]
    wait_until(
        "the log of a task",
        lambda: "shard 0 reads 4096 rows" in program("log", job_id, "--of", "shard-0").text,
    )
    assert "shard 0 warns" in program("log", job_id, "--of", "shard-0", "--err").text
    assert "gcs_server" in program("log", job_id, "--of", "gcs").text
    assert "(raylet)" in program("log", job_id, "--of", "raylet").text
    [group] = [row for row in program.rows("reservations") if row["name"].startswith("never")]
    assert (group["state"], group["flags"][0]) == ("pending", "CPU=100")
    assert "this job has no other log named shard-9" in program(
        "log", job_id, "--of", "shard-9"
    ).refused(2)
    assert "non-terminal state" in program("delete", "--yes", job_id).text
    number = ray.get(f"/api/jobs/{job_id}")["job_id"]
    assert (state(program, number)["id"], state(program, number)["cpus"]) == (job_id, 1)
    assert "shard 0 reads" in program("log", number, "--of", "shard-0").text
    assert program("cancel", "--yes", number).text.split() == [job_id, "cancelled"]
    assert ended(ray, program, job_id, "cancelled")["cpus"] == 1
    assert program("delete", "--yes", job_id).text.split() == [job_id, "deleted"]

    def is_gone() -> bool:
        if job_id not in [row["id"] for row in program.rows("history")]:
            return True
        # Ray's supervisor of the job may write how it ended once more, behind its deletion.
        program("delete", "--yes", job_id)
        return False

    wait_until("it to be gone", is_gone)


def test_how_a_job_ended_is_told_with_its_exit_status_and_its_last_words(
    ray: RayCluster, program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed, done = (
        submit(program, "echo about to fail; exit 7"),
        submit(program, "echo '$(touch x)'"),
    )
    functions_from_python(ray, program, tmp_path, monkeypatch)
    row = ended(ray, program, failed, "failed")
    assert (row["exit_code"], row["reason"]) == (7, "JOB_ENTRYPOINT_COMMAND_ERROR")
    assert "about to fail" in program("log", failed).text
    assert ended(ray, program, done, "completed")["exit_code"] == 0
    assert "$(touch x)" in program("log", done).text


def test_a_launch_over_http_belongs_to_its_token_and_jobs_to_everyone(
    ray: RayCluster, program: Program
) -> None:
    pytest.importorskip("aiohttp", reason="the extra [api] is not installed")
    write_tokens(program, "ci", "somebody-else")
    api = Api(program)
    api.start()
    try:
        asked = {
            "name": "served",
            "command": "echo from $WHO; sleep 1000",
            "environment": {"WHO": "http"},
        }
        launch = api.launch("one", **asked)
        assert launch["account"] == "ci"
        assert api.launch("one", **asked)["id"] == launch["id"]
        path, job_id = f"/launches/{launch['id']}", launch["job_id"]
        wait_until("its log", lambda: "from http" in ray.log(job_id))
        wait_until(
            "its log over HTTP", lambda: "from http\n" in api("GET", f"{path}/logs").json["text"]
        )
        for hidden in (path, f"{path}/logs"):
            assert api("GET", hidden, token=OTHER).status == 404
        for token in (TOKEN, OTHER):
            assert job_id in [job["id"] for job in api("GET", "/jobs", token=token).json["jobs"]]
        refused = api("POST", "/launches", {"command": "true", "site": {"run_as": "ci"}})
        assert (refused.status, refused.message) == (422, "run_as: Ray jobs have no owner")
        assert api("POST", f"{path}/terminate", {}).json["done"] is True
    finally:
        api.end()


def functions_from_python(
    ray: RayCluster, program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a function returns comes back from the log; another program finds its job and ends
    it.
    """
    folder = tmp_path / "functions"
    folder.mkdir()
    (folder / "ray_functions.py").write_text(FUNCTIONS)
    monkeypatch.syspath_prepend(str(folder))
    for name, value in program.environment.items():
        monkeypatch.setenv(name, value)
    train = importlib.import_module("ray_functions").train
    with hpcdash.connect(ray.url) as cluster:
        long, short = train.submit(1000, pause=0.1), train.submit(3)
        assert (
            next(line for line in long.logs(follow=True) if line.startswith("step"))
            == "step 1 loss 999"
        )
        cluster.attach(long.id).cancel()
        assert short.result(SECONDS) == {"steps": 3}
        assert (short.wait(), "step 3 loss 0\n" in short.logs()) == ("completed", True)
        assert list(short.metrics()["loss"]) == [2, 1, 0]
        assert long.wait() == "cancelled"
        with pytest.raises(hpcdash.JobFailed, match="has no result: cancelled"):
            long.result(SECONDS)
        assert cluster.attach(short.id).result(SECONDS) == {"steps": 3}


def test_a_node_shows_the_memory_and_the_load_of_its_machine(
    ray: RayCluster, program: Program
) -> None:
    head = next(row for row in program.rows("nodes") if "head" in row["flags"])
    assert 0 < head["memory_used_bytes"] < head["memory_bytes"]
    assert head["load"] is not None


def test_what_ray_cannot_do_and_what_it_does_not_know_is_said(program: Program) -> None:
    for words in (
        ("hold", "--yes", "x"),
        ("chain", "x"),
        ("stacks", "x"),
        ("exec", "x", "--", "true"),
        ("shares",),
    ):
        assert "hpcdash: Ray cannot " in program(*words).refused(2)
    assert "raysubmit_x was not found" in program("show", "raysubmit_x").refused(1)


def test_a_url_that_is_no_dashboard_is_refused_with_the_next_step(
    ray: RayCluster, program: Program
) -> None:
    nowhere = Program(program.home, ("--ray", f"http://127.0.0.1:{ray.gcs_port}"))
    assert nowhere("jobs").refused(3)
    page = Program(program.home, ("--ray", f"{ray.url}/nothing"))
    assert "no Ray dashboard" in page("jobs").refused(1)


def test_a_ray_that_is_too_old_is_refused_before_anything_else_is_asked(tmp_path: Path) -> None:
    asked = []

    class Old(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"version": "4", "ray_version": "2.8.1"}')

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Old) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        old = Program(
            home_with(tmp_path / "home"), ("--ray", f"http://127.0.0.1:{server.server_port}")
        )
        (old.home / "a.sh").write_text("true\n")
        for words in (
            ("jobs",),
            ("nodes",),
            ("show", "raysubmit_x"),
            ("submit", "a.sh"),
            ("cancel", "--yes", "x"),
        ):
            assert (
                "Ray 2.8.1 is too old\n  command: GET /api/version\n  hpcdash needs Ray 2.9"
                in old(*words).refused(1)
            )
        server.shutdown()
    assert {*asked} == {"/api/version"}


def test_a_dashboard_that_only_the_head_reaches_is_asked_through_ssh(
    ray: RayCluster, tmp_path: Path
) -> None:
    user = login_user("bash")
    if user is None or (reason := why_no_sshd()):
        pytest.skip(reason if user else "no user with bash as login shell")
    # pytest's own folders are closed to the users who log in.
    with tempfile.TemporaryDirectory(prefix="hpcdash-sshd-") as folder:
        sshd = Sshd(Path(folder))
        sshd.start()
        try:
            config = (
                f"Host head\n HostName 127.0.0.1\n Port {sshd.port}\n User {user}\n "
                f"IdentityFile {sshd.key}\n"
            )
            home = home_with(tmp_path / "home", config)
            (home / ".ssh" / "known_hosts").write_text(
                f"[127.0.0.1]:{sshd.port} {sshd.host_key_line}\n"
            )
            remote = Program(home, ("--ssh", "head", "--ray", ray.url))
            assert "ALIVE" in {node["native_state"] for node in remote.rows("nodes")}
            remote.config.parent.mkdir(parents=True)
            remote.config.write_text(f'[clusters.tpu]\nray = "{ray.url}"\nssh = "head"\n')
            assert (
                Program(home, ("--cluster", "tpu"))("jobs", "--format", "json").json["backend"]
                == "ray"
            )
        finally:
            sshd.stop()


def test_a_token_is_sent_and_only_from_a_file_that_nobody_else_reads(
    ray: RayCluster, program: Program
) -> None:
    token = program.home / "token"
    token.write_text("t0ken\n")
    token.chmod(0o644)
    program.config.parent.mkdir(parents=True)
    program.config.write_text(f'[clusters.tpu]\nray = "{ray.url}"\ntoken_file = "~/token"\n')
    tpu = Program(program.home, ("--cluster", "tpu"))
    assert "other users can read this secret" in tpu("jobs").refused(2)
    token.chmod(0o600)
    assert tpu("jobs").status == 0
    headers = program.home / "headers"
    headers.write_text("X-Proxy: s3cret\n\nHost: elsewhere\n")
    headers.chmod(0o600)
    program.config.write_text(f'[clusters.tpu]\nray = "{ray.url}"\nheaders_file = "~/headers"\n')
    assert "line 3: expected a header" in tpu("jobs").refused(2)
    headers.write_text("X-Proxy: s3cret\n")
    assert tpu("jobs").status == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--ray", "head:8265"), "is not a server URL such as http://127.0.0.1:8265"),
        (("--ray", "http://h", "--backend", "slurm"), "cannot be used together"),
        (("--ray", "http://h", "--local"), "cannot be used with a URL"),
    ],
)
def test_options_that_contradict_a_url_are_refused(
    tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    assert said in Program(home_with(tmp_path / "home"), words)("jobs").refused(2)


def test_the_command_that_is_shown_is_the_request_that_is_sent(program: Program) -> None:
    file = program.home / "a.sh"
    file.write_text("true\n")
    shown = program("submit", "--dry-run", str(file)).text
    assert "POST /api/jobs/ submission_id=raysubmit_" in shown, shlex.quote(shown)
