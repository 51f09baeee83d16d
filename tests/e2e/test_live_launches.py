"""Launches on the real Slurm, over ssh, as another account and typed into the form: a folder that
goes in the end.
"""

from __future__ import annotations

import json
import pickle
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from hpcdash.backends.slurm.backend import BACKEND
from hpcdash.services.state.database import StateDatabase
from tests.support.api import OTHER, OWN, Api, write_tokens
from tests.support.program import Program, home_with
from tests.support.screen import dashboard
from tests.support.slurm import SlurmLab
from tests.support.sudo_rules import SudoSite, sudo_site, why_no_sudo
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slurm

REQUEST = 'name = "live"\nslots = 1\nslot_type = "cpu"\ntime = "2m"\nscript = "run.sh"\n'


@pytest.fixture
def root(slurm_lab: SlurmLab) -> Iterator[Path]:
    """A folder that all accounts of the lab enter, and alice's to write to."""
    folder = Path(tempfile.mkdtemp(prefix="hpcdash-live-"))
    folder.chmod(0o755)
    shutil.chown(folder, slurm_lab.alice)
    yield folder
    shutil.rmtree(folder)


def request(program: Program, root: Path, more: str = "") -> str:
    program.config.parent.mkdir(parents=True, exist_ok=True)
    program.config.write_text(f'[launch]\nstorage_root = "{root}"\nkeep = "failed"\n{more}')
    (program.home / "run.sh").write_text("#!/bin/sh\ntrue\n")
    (program.home / "a.toml").write_text(REQUEST)
    return str(program.home / "a.toml")


@contextmanager
def launched(program: Program, root: Path, more: str = "") -> Iterator[tuple[str, Path]]:
    """(the job, its folder), once its log is whole; the job ends with the block, and may be tidied
    from then on.
    """
    file = request(program, root, more)
    with tempfile.NamedTemporaryFile() as running:
        waits = f"while [ -e {running.name} ]; do sleep 0.1; done; exit"
        (program.home / "run.sh").write_text(
            f'#!/bin/sh\nid -un; pwd; echo "$0"; tail -c 3 "$0"; echo\n{waits}\n# \xe9!'
        )
        done = program("submit", file, "--format", "json")
        assert done.status == 0, done
        answer = json.loads(done.stdout)
        job = str(answer["job_id"])
        wait_until(f"the log of {job}", lambda: "\xe9!" in program("log", job).text)
        yield job, Path(answer["folder"])


def is_tidied(program: Program, folder: Path) -> bool:
    """Whether the folder is gone after one more look, as if a minute had passed."""
    for file in program.home.rglob("state.db"):
        StateDatabase(file.parent).write(("DELETE FROM cleanups", ()))
    program("jobs")
    return not folder.exists()


def test_over_ssh_a_job_leads_to_what_was_staged_until_it_is_tidied(
    over_ssh: Program, root: Path, slurm_lab: SlurmLab
) -> None:
    with launched(over_ssh, root) as (job, folder):
        native = over_ssh("show", job, "--format", "json").json["job"]["native"]
        assert (native["Command"], native["StdOut"]) == (
            f"{folder}/batch.sh",
            f"{folder}/{job}.out",
        )
        assert over_ssh("script", job).stdout == (folder / "batch.sh").read_bytes()
        lines = over_ssh("log", job).text.splitlines()
        assert (lines[0], lines[2:]) == (slurm_lab.alice, [f"{folder}/files/run.sh", "é!"])
        assert folder.owner() == slurm_lab.alice
    wait_until("its folder to go", lambda: is_tidied(over_ssh, folder))
    assert [one.name for one in root.iterdir() if one.name != ".library"] == []


def test_each_item_of_a_call_is_a_task_with_its_result_or_its_error(
    over_ssh: Program, root: Path
) -> None:
    (root / "sweep.py").write_text(
        "def run(base, seed, *, job):\n"
        "    if seed == 13:\n"
        "        raise ValueError(f'seed {seed}')\n"
        "    return base + seed, job.array_index, job.output_dir\n"
    )
    file = request(over_ssh, root)
    Path(file).write_text(
        'slots = 1\nslot_type = "cpu"\ntime = "2m"\n[call]\nfunction = "sweep:run"\nkwargs = { '
        "base = 0.5 }\n"
        f'items = [{{ seed = 1 }}, {{ seed = 13 }}]\nsys_path = ["{root}"]\n'
    )
    done = over_ssh("submit", file)
    job = done.text.strip()

    def states() -> set[str]:
        jobs = [
            over_ssh("show", f"{job}_{task}", "--format", "json").json["job"] for task in (0, 1)
        ]
        return {found["state"] for found in jobs}

    wait_until(f"both tasks of {job} to end", lambda: states() == {"completed", "failed"})
    (folder,) = root.glob("hpcdash_*")
    assert f"the result of sweep:run will be in {folder}/result-N.pkl of task N" in done.stderr
    assert pickle.loads((folder / "result-0.pkl").read_bytes()) == (1.5, 0, str(folder))
    told = json.loads((folder / "result-1.pkl.error").read_text())
    assert (told["type"], told["message"]) == ("ValueError", "seed 13")
    assert "sweep.py" in told["traceback"]
    assert sorted(path.name for path in folder.glob("result*")) == [
        "result-0.pkl",
        "result-1.pkl.error",
    ]


@pytest.mark.parametrize("name", ["", 'name = "chained"\n'])
def test_a_chain_s_train_is_whole_after_its_first_link_has_ended(
    over_ssh: Program, root: Path, slurm_lab: SlurmLab, name: str
) -> None:
    file = request(over_ssh, root)
    Path(file).write_text(f'{name}slots = 1\nslot_type = "cpu"\ntime = "2m"\ncommand = "sleep 1"\n')
    links = first, second, third = over_ssh("submit", file, "--chain", "3").text.split()
    try:
        wait_until(
            "the first link to end",
            lambda: over_ssh("show", first, "--format", "json").json["job"]["state"] == "completed",
        )
        whole = [
            {"job_id": first, "after": [], "by_name": False},
            {"job_id": second, "after": [first], "by_name": False},
            {"job_id": third, "after": [second], "by_name": False},
        ]
        # The accounting hears of a job a moment after it begins.
        wait_until(
            "its train",
            lambda: all(
                over_ssh("chain", job, "--format", "json").json["order"] == whole for job in links
            ),
        )
    finally:
        slurm_lab.admin("scancel", "--quiet", *links, check=False)


@dataclass(frozen=True, slots=True)
class Submitting:
    """hpcdash of an account that submits as `member`, as the printed rules allow; `config` is what
    it needs.
    """

    program: Program
    site: SudoSite
    member: str

    @property
    def config(self) -> str:
        return f'run_as = "{self.member}"\nlaunch_program = "{self.site.program}"\n'


@pytest.fixture
def as_launcher(slurm_lab: SlurmLab, tmp_path: Path) -> Iterator[Submitting]:
    """Over ssh, on a lab whose slurm.conf only root's file of variables names."""
    if reason := why_no_sudo():
        pytest.skip(reason)
    member = slurm_lab.users[0]
    with sudo_site() as site:
        slurm_lab.admin("usermod", "-a", "-G", site.group, member)
        variables = site.top / "slurm.env"
        variables.write_text(f"SLURM_CONF={slurm_lab.conf}\n")
        site.install(commands=BACKEND.probe.delegated_commands, env_file=str(variables))
        ssh_config = (
            f"Host lab-launcher\n  User {site.launcher}\n{slurm_lab.ssh_config.read_text()}"
        )
        yield Submitting(
            Program(home_with(tmp_path / "launcher", ssh_config), ("--ssh", "lab-launcher")),
            site,
            member,
        )


def test_as_another_account_it_is_that_account_s_job_folder_and_log(
    as_launcher: Submitting,
) -> None:
    program, site, member = as_launcher.program, as_launcher.site, as_launcher.member
    with launched(program, site.root, as_launcher.config) as (job, folder):
        assert folder.parent == site.root
        assert program("show", job, "--format", "json").json["job"]["user"] == member
        assert {path.owner() for path in (folder, *folder.iterdir())} == {member}
        lines = program("log", job).text.splitlines()
        assert lines == [member, str(folder), f"{folder}/run.sh", "é!"]
        # The launcher itself may not even look.
        assert site.run_as(site.launcher, "ls", str(folder)).returncode != 0
    wait_until("its folder to go", lambda: is_tidied(program, folder))
    assert list(site.root.iterdir()) == []


def test_as_another_account_a_job_that_failed_keeps_its_folder(as_launcher: Submitting) -> None:
    program, site = as_launcher.program, as_launcher.site
    file = request(program, site.root, as_launcher.config)
    Path(file).write_text(
        'slots = 1\nslot_type = "cpu"\ntime = "2m"\ncommand = "echo step=1 loss=0.5; exit 3"\n'
    )
    answer = program("submit", file, "--format", "json")
    assert answer.status == 0, answer
    job, folder = (
        str(json.loads(answer.stdout)["job_id"]),
        Path(json.loads(answer.stdout)["folder"]),
    )
    wait_until(
        "the job to end",
        lambda: program("show", job, "--format", "json").json["job"]["state"] == "failed",
    )
    assert not is_tidied(program, folder)
    assert program("log", job).text == "step=1 loss=0.5\n"
    assert "loss" in program("metrics", job).text


def test_as_another_account_what_slurm_refuses_leaves_nothing(as_launcher: Submitting) -> None:
    program, site = as_launcher.program, as_launcher.site
    done = program(
        "submit", request(program, site.root, as_launcher.config), "--", "--qos=none-such"
    )
    assert done.status == 1
    assert "Invalid qos" in done.stderr
    assert list(site.root.iterdir()) == []


def test_as_another_account_over_http_the_log_and_the_result_come_from_its_own_folder(
    as_launcher: Submitting, slurm_lab: SlurmLab
) -> None:
    pytest.importorskip("aiohttp", reason="the extra [api] is not installed")
    program, site, member = as_launcher.program, as_launcher.site, as_launcher.member
    request(program, site.root, f'launch_program = "{site.program}"\n')
    write_tokens(program, member, slurm_lab.account("bob"))
    api = Api(program)
    api.start()
    try:
        call = {"function": "getpass:getuser", "result_format": "json"}
        launch = api.launch(call=call, time="2m")
        path = f"/launches/{launch['id']}"
        assert api.ended(launch["id"])["status"] == "COMPLETED"
        assert api("GET", f"{path}/result").json["value"] == member
        assert api("GET", f"{path}/result", token=OTHER).status == 404
        assert api("GET", f"{path}/logs").json["text"] == ""
        # What its account puts in place of the result is read as that account, and only where it is
        # a file of its own.
        result = Path(launch["folder"]) / "result.json"
        assert result.owner() == member
        result.unlink()
        assert api("GET", f"{path}/result").status == 404
        for target in (program.config.parent / "api-tokens.toml", slurm_lab.conf):
            result.unlink(missing_ok=True)
            result.symlink_to(target)
            refused = api("GET", f"{path}/result")
            assert (refused.status, "not a regular file" in refused.message) == (404, True), refused
        result.unlink()
        assert api("DELETE", path).status == 204
        bob = api("POST", "/launches", {**OWN, "command": "id", "time": "2m"}, token=OTHER)
        assert (bob.status, bob.text.count("not submitted")) == (409, 2), bob
        assert "sudo rules do not let" in bob.message
    finally:
        api.end()


def test_as_somebody_outside_the_group_nothing_is_submitted(
    as_launcher: Submitting, slurm_lab: SlurmLab
) -> None:
    program, site = as_launcher.program, as_launcher.site
    other = slurm_lab.users[1]
    more = as_launcher.config.replace(as_launcher.member, other)
    done = program("submit", request(program, site.root, more))
    assert done.status == 1
    assert f"the sudo rules do not let this account run {site.program} as {other}" in done.stderr
    assert list(site.root.iterdir()) == []


def test_without_root_s_program_nothing_is_submitted_as_another(as_launcher: Submitting) -> None:
    program, site = as_launcher.program, as_launcher.site
    file = request(program, site.root, as_launcher.config)
    site.program.unlink()
    said = program("submit", file).refused(2)
    assert f"run_as: {site.program} does not exist" in said
    assert f"install -o root -m 0755 -D /dev/stdin {site.program}" in said
    assert f"install -d -m 1777 {site.root}" in said


def test_a_refusal_that_is_a_bug_of_this_slurm_is_told_as_one(
    over_ssh: Program, root: Path
) -> None:
    wanted = request(over_ssh, root)
    Path(wanted).write_text('command = "true"\nslots = 8\nslot_type = "cuda"\ntime = "2m"\n')
    done = over_ssh("submit", wanted)
    assert done.status == 1
    assert "Requested node configuration is not available" in done.stderr
    assert "15857" in done.stderr
    assert [one.name for one in root.iterdir() if one.name != ".library"] == []


def test_a_gpu_type_that_no_node_has_is_said_and_what_sbatch_refused_is_no_job_of_the_history(
    over_ssh: Program, root: Path
) -> None:
    wanted = request(over_ssh, root)
    Path(wanted).write_text(
        'name = "wrongtype"\ncommand = "true"\nslots = 2\nslot_type = "cuda"\ngpu_type = "h100"\n'
    )
    done = over_ssh("submit", wanted)
    assert done.status == 1
    assert "no node has a GPU of type h100; available: a100" in done.stderr
    assert "15857" not in done.stderr
    # The accounting has a record of a later job once it has one of this.
    with launched(over_ssh, root) as (later, _):
        pass

    def is_in_history() -> bool:
        return later in {row["id"] for row in over_ssh.rows("history")}

    wait_until("a later job to be in the history", is_in_history)
    assert "wrongtype" not in {row["name"] for row in over_ssh.rows("history")}


@pytest.mark.journey
async def test_a_person_types_a_job_sees_when_it_would_start_and_submits_it(
    over_ssh: Program, slurm_lab: SlurmLab
) -> None:
    async with dashboard(over_ssh) as screen:
        await screen.until(lambda text: f"{slurm_lab.alice}@lab-alice" in text and "● live" in text)
        screen.type("n")
        await screen.until("▾ Resources")
        screen.type("hostname\ttyped in a form\t\t\t\t\tmain\t1\t\tcpu\t\t\t\t30")
        await screen.until("has no unit")
        screen.type("m")
        await screen.until("1 CPU for 30 min")
        await screen.until("Slurm's estimate")
        screen.type("\x0a")
        await screen.until("Commands to run (2)")
        screen.type("y")
        await screen.until(
            f"logs will be in /home/{slurm_lab.alice}/hpcdash/launches/typedinaform-"
        )
        await screen.until(
            lambda text: any(
                "typedinaform" in line and "completed" in line for line in text.splitlines()
            )
        )
        screen.type("\x11")
        assert b"Traceback" not in screen.raw
