"""The runner in jobs of a real Slurm, its code staged as a zip: ranks on two nodes, array tasks, a
failure.
"""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from uuid import uuid4

import pytest

from hpcdash.backends.script.call import venv_text
from hpcdash.job import job_zip
from hpcdash.job.callbacks import Callback, RunsOn, shipped
from hpcdash.job.pickles import packed
from tests.job.runner_scripts import call_text, runner_script
from tests.job.tiny_wheel import tiny_wheel
from tests.support.slurm import SlurmLab

USER = "alice"
CODE = """
import dataclasses, json, os, sys

def where(name, job=None):
    seen = dict(dataclasses.asdict(job), torch=job.torch_distributed_env(), node=os.environ["SLURMD_NODENAME"])
    with open(f"{name}.{job.rank or 0}.json", "w") as file:
        json.dump(seen, file)

def each(item, *, job):
    with open(f"item.{item}.json", "w") as file:
        json.dump(job.job_id, file)

def prefix(item):
    return item, sys.prefix, os.environ["SLURMD_NODENAME"]

def fails():
    raise RuntimeError("nan")
"""


class Told(Callback):
    """Is shipped from a module that the job has not."""

    runs_on = RunsOn.RUNNER


@pytest.fixture
def folder(slurm_lab: SlurmLab) -> Path:
    """A job's folder on what the nodes share, owned by the user, with code and the zip of the
    runner.
    """
    made = slurm_lab.work_dir(USER) / f"runner-{uuid4().hex[:8]}"
    slurm_lab.as_user(USER, "mkdir", made)
    (made / "mine.py").write_text(CODE)
    (made / "job.zip").write_bytes(job_zip())
    return made


def submit(
    lab: SlurmLab,
    folder: Path,
    call: str,
    *options: str,
    wrap: tuple[str, ...] = (),
    venv: str = "",
) -> str:
    path = (str(folder / "job.zip"), str(folder))
    text = runner_script(call, "/usr/bin/python3", path, wrap=wrap, venv=venv)
    script = f"#!/bin/bash\nset -eu\nexport PIP_NO_INDEX=1\n{text}"
    log = "log.%a" if any(option.startswith("--array") for option in options) else "log"
    return lab.submit(USER, "-t1", f"-D{folder}", f"-o{folder}/{log}", *options, script=script)


def log(folder: Path) -> str:
    return "\n".join(path.read_text() for path in folder.glob("log*"))


def test_two_ranks_on_each_of_two_nodes_know_where_they_are(
    slurm_lab: SlurmLab, folder: Path
) -> None:
    (folder / "args").write_bytes(packed(("seen",)))
    (folder / "callbacks").write_bytes(shipped([Told()]))
    call = call_text(
        "mine:where",
        str(folder),
        args_file=f"{folder}/args",
        callbacks_file=f"{folder}/callbacks",
        output=f"{folder}/out.pkl",
    )
    job = submit(slurm_lab, folder, call, "-N2", "-n4", "--ntasks-per-node=2", wrap=("srun",))
    slurm_lab.wait_state(job, "COMPLETED", "FAILED")
    assert slurm_lab.job_states(job) == {"COMPLETED"}, log(folder)
    ranks = [json.loads((folder / f"seen.{rank}.json").read_text()) for rank in range(4)]
    assert [seen["rank"] for seen in ranks] == [0, 1, 2, 3]
    assert [seen["local_rank"] for seen in ranks] == [0, 1, 0, 1]
    assert [seen["node_rank"] for seen in ranks] == [0, 0, 1, 1]
    hosts = ranks[0]["hostnames"]
    assert len(set(hosts)) == 2
    for seen in ranks:
        assert seen["node"] == hosts[seen["node_rank"]]
        assert seen["hostnames"] == hosts
        assert (seen["job_id"], seen["step_id"], seen["output_dir"]) == (job, "0", str(folder))
        assert (seen["world_size"], seen["num_nodes"], seen["local_world_size"]) == (4, 2, 2)
        assert seen["torch"]["MASTER_ADDR"] == hosts[0]
        assert seen["torch"]["RANK"] == str(seen["rank"])
    assert {path.name for path in folder.glob("out.pkl*")} == {
        "out.pkl",
        "out.pkl.1",
        "out.pkl.2",
        "out.pkl.3",
    }
    # A callback whose module the job has not is left out, and said once by each rank.
    assert log(folder).count("hpcdash: ERROR: the callback Told cannot be read") == 4


def test_each_array_task_has_its_item(slurm_lab: SlurmLab, folder: Path) -> None:
    (folder / "items").write_bytes(packed(["a", "b", "c"]))
    call = call_text(
        "mine:each",
        str(folder),
        items_file=f"{folder}/items",
        output=f"{folder}/o.pkl",
        task="SLURM_ARRAY_TASK_ID",
    )
    job = submit(slurm_lab, folder, call, "--array=0-2")
    slurm_lab.wait_state(job, "COMPLETED", "FAILED")
    assert slurm_lab.job_states(job) == {"COMPLETED"}, log(folder)
    assert {path.name for path in folder.glob("item.*")} == {
        "item.a.json",
        "item.b.json",
        "item.c.json",
    }
    assert {path.name for path in folder.glob("o*.pkl")} == {"o-0.pkl", "o-1.pkl", "o-2.pkl"}


def test_array_tasks_on_several_nodes_share_one_venv_and_the_last_removes_it(
    slurm_lab: SlurmLab, folder: Path
) -> None:
    (folder / "mine.py").unlink()
    (folder / "items").write_bytes(packed(list("abcd")))
    wheel = tiny_wheel(folder, CODE)
    venv = venv_text(f"{folder}/env", "/usr/bin/python3", wheel, "", 4)
    call = call_text(
        "tiny:prefix",
        str(folder),
        items_file=f"{folder}/items",
        output=f"{folder}/o.pkl",
        task="SLURM_ARRAY_TASK_ID",
    )
    job = submit(slurm_lab, folder, call, "--array=0-3", "-c4", venv=venv)
    slurm_lab.wait_state(job, "COMPLETED", "FAILED")
    assert slurm_lab.job_states(job) == {"COMPLETED"}, log(folder)
    seen = [pickle.loads((folder / f"o-{task}.pkl").read_bytes()) for task in range(4)]
    assert [item for item, _, _ in seen] == ["a", "b", "c", "d"]
    assert len({node for _, _, node in seen}) > 1
    (prefix,) = {prefix for _, prefix, _ in seen}
    assert Path(prefix).parent == folder / "env"
    assert not (folder / "env").exists()


def test_a_function_that_raises_fails_the_job(slurm_lab: SlurmLab, folder: Path) -> None:
    job = submit(slurm_lab, folder, call_text("mine:fails", str(folder)), wrap=("srun",))
    slurm_lab.wait_state(job, "COMPLETED", "FAILED")
    assert slurm_lab.job_states(job) == {"FAILED"}
    assert "RuntimeError: nan" in log(folder)
