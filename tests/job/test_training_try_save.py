"""A model that saves when it is to suspend: whole, each rank its part, read without trust in
whoever wrote it.
"""

import copy
import json
import os
import pickle
import random
import subprocess
import sys
import time
from collections import OrderedDict
from enum import IntEnum
from pathlib import Path
from typing import Any

import pytest

from hpcdash.job import suspend, try_save
from hpcdash.job.checkpoint import init
from tests.job.oldest_python import oldest_python

ROOT = str(Path(__file__).resolve().parent.parent.parent)
GIVEN = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join(filter(None, (ROOT, os.environ.get("PYTHONPATH")))),
}
# What a training saves at each step, and where it is killed: the file is larger than one write.
SAVES_AT_EACH_STEP = """
import sys
from hpcdash.job.checkpoint import init
class Net:
    weights = []
    def state_dict(self): return {"weights": self.weights}
    def load_state_dict(self, state): self.weights = state["weights"]
net = Net()
epoch, step, others = init(net, ckpt_path=sys.argv[1])
assert net.weights == [step] * (100_000 if step else 0), (step, net.weights[:1], len(net.weights))
assert others == (None if step == 0 else {"best": step})
print("resumed", step, flush=True)
while True:
    step += 1
    net.weights = [step] * 100_000
    net.try_save(epoch, step, {"best": step}, force=True)
    print("saved", step, flush=True)
"""
# Two steps from where it is; as many ranks as torchrun says, or one.
TORCH_STEPS = """
import os, sys, torch
from hpcdash.job import shards
from hpcdash.job.checkpoint import init
shards.SMALL_BYTES = 0
torch.manual_seed(0)
ranks = int(os.environ.get("WORLD_SIZE", "1"))
if ranks > 1: torch.distributed.init_process_group("gloo")
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
if sys.argv[2] == "ddp" and ranks > 1: net = torch.nn.parallel.DistributedDataParallel(net)
if sys.argv[2] == "sharded":
    from torch.distributed import device_mesh, fsdp
    fsdp.fully_shard(net, mesh=device_mesh.init_device_mesh("cpu", (ranks,)))
optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=100)
epoch, step, others = init(net, optimizer, schedule, ckpt_path=sys.argv[1])
for step in range(step, step + int(sys.argv[3])):
    inputs = torch.randn(6, 4, generator=torch.Generator().manual_seed(step))
    optimizer.zero_grad()
    net(inputs).pow(2).mean().backward()
    optimizer.step()
    schedule.step()
    net.try_save(epoch, step + 1, {"seen": torch.tensor([step])}, force=True)
weights = [one.full_tensor() if hasattr(one, "full_tensor") else one for one in net.parameters()]
if int(os.environ.get("RANK", "0")) == 0:
    print(step + 1, others and others["seen"].tolist(), sum(one.double().sum().item() for one in weights))
"""


class Net:
    """As PyTorch's models are, without PyTorch."""

    try_save: Any

    def __init__(self, weights: Any = None) -> None:
        self.weights = weights

    def state_dict(self) -> dict[str, Any]:
        return OrderedDict(weights=self.weights)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.weights = state["weights"]


def saved(folder: Path, *steps: int) -> None:
    net = Net()
    epoch, _, _ = init(net, Net("momentum"), ckpt_path=folder)
    for step in steps:
        net.weights = [step, 0.5]
        assert net.try_save(epoch, step, {"best": 0.25}, force=True)


def resumed(folder: Path) -> tuple[tuple[int, int, Any], Any]:
    net = Net()
    return init(net, Net(), ckpt_path=folder), net.weights


def make_file(folder: Path, step: int) -> Path:
    return folder / f"step-{step:08d}" / "rank-00000.state"


def test_what_was_saved_last_is_loaded_and_given_back(tmp_path: Path) -> None:
    assert resumed(tmp_path / "run") == ((0, 0, None), None)
    net = Net(["begin"])
    assert init(net, Net(), ckpt_path=tmp_path / "run") == (0, 0, None)
    for step in range(1, 6):
        net.weights = [step]
        assert net.try_save(2, step, ("best", step), force=step in (2, 4)) is (step in (2, 4))
    assert resumed(tmp_path / "run") == ((2, 4, ("best", 4)), [4])
    # Those who go on from it come after it, by name too.
    saved(tmp_path / "run", 7)
    assert sorted(os.listdir(tmp_path / "run")) == ["step-00000004", "step-00000005"]


def test_the_folder_is_that_of_the_job_unless_one_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HPCDASH_CHECKPOINTS", str(tmp_path / "run"))
    net = Net([1])
    init(net)
    net.try_save(0, 1, force=True)
    assert resumed_without_optimizer(tmp_path / "run") == (0, 1, None)
    (tmp_path / "latest.pt").touch()
    with pytest.raises(RuntimeError, match=r"latest\.pt is a file"):
        init(net, ckpt_path=tmp_path / "latest.pt")


def resumed_without_optimizer(folder: Path) -> tuple[int, int, Any]:
    return init(Net(), ckpt_path=folder)


def test_outside_a_shared_pool_nothing_is_saved_but_by_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(suspend.SUSPEND_READY, raising=False)
    net = Net([1])
    init(net, ckpt_path=tmp_path / "run")
    assert net.try_save(0, 1) is False
    assert not (tmp_path / "run").exists()


def test_a_task_that_is_asked_to_suspend_saves_and_suspends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suspended: list[Any] = []
    monkeypatch.setattr(suspend, "_EVERY_SECONDS", 0.0)
    monkeypatch.setattr(
        try_save,
        "go_suspend",
        lambda: suspended.append(resumed_without_optimizer(tmp_path / "run")),
    )
    monkeypatch.setenv(suspend.SUSPEND, str(tmp_path / "suspend"))
    monkeypatch.setenv(suspend.SUSPEND_READY, str(tmp_path / "suspend.ready"))
    (tmp_path / "suspend").touch()
    net = Net([1])
    init(net, ckpt_path=tmp_path / "run")
    assert net.try_save(0, 1) is False
    (tmp_path / "suspend").write_text("suspend\n")
    assert net.try_save(0, 2) is True
    # By then the checkpoint is whole.
    assert suspended == [(0, 2, None)]


class Level(IntEnum):
    HIGH = 3


def test_plain_values_come_back_and_others_are_refused_before_the_first_save(
    tmp_path: Path,
) -> None:
    others = {
        "text": "x",
        3: (1, [2.5, None], {4}),
        "level": Level.HIGH,
        "raw": b"\0",
        "nested": OrderedDict(a=True),
    }
    net = Net([1])
    init(net, ckpt_path=tmp_path / "run")
    net.try_save(1, 2, others, force=True)
    _, _, found = resumed_without_optimizer(tmp_path / "run")
    assert found == {**others, "level": 3}
    assert type(found["level"]) is int
    fresh = Net([1])
    init(fresh, ckpt_path=tmp_path / "run")
    with pytest.raises(
        TypeError, match=r"others\.path is a pathlib\.(_local\.)?PosixPath, which cannot be saved"
    ):
        fresh.try_save(1, 3, {"path": Path("x")})


def test_a_copy_of_the_model_does_not_save(tmp_path: Path) -> None:
    net = Net([1])
    init(net, ckpt_path=tmp_path / "run")
    assert copy.deepcopy(net).try_save is None
    assert pickle.loads(pickle.dumps(net)).try_save is None


def test_what_is_torn_is_passed_over(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2)
    file = make_file(tmp_path, 2)
    file.write_bytes(file.read_bytes()[:-1])
    assert resumed(tmp_path) == ((0, 1, {"best": 0.25}), [1, 0.5])


def test_a_checkpoint_is_for_what_was_saved_in_it(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    with pytest.raises(RuntimeError, match="was saved with optimizer, but init received none"):
        init(Net(), ckpt_path=tmp_path)
    # Of another kind, in the same folder.
    make_file(tmp_path, 1).unlink()
    marker = tmp_path / "step-00000001" / "WHOLE.json"
    marker.write_text(json.dumps({**json.loads(marker.read_text()), "files": {}}))
    with pytest.raises(RuntimeError, match=r"rank-00000\.state cannot be read: No such file"):
        resumed(tmp_path)


def test_parts_of_two_ranks_are_for_two_ranks(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    file = make_file(tmp_path, 1)
    content = pickle.dumps(
        {**pickle.loads(file.read_bytes()), "ranks": 2, "replicated": False}, protocol=4
    )
    replace(file, content)
    with pytest.raises(
        RuntimeError, match="contains the parts of 2 ranks, but this training has 1: start 2"
    ):
        resumed(tmp_path)


def replace(file: Path, content: bytes) -> None:
    """As whoever may write there does it: the marker says what is now there."""
    marker = file.with_name("WHOLE.json")
    file.write_bytes(content)
    said = json.loads(marker.read_text())
    said["files"][file.name]["bytes"] = len(content)
    marker.write_text(json.dumps(said))


class Trap:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_no_code_of_whoever_wrote_a_checkpoint_is_run(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    replace(make_file(tmp_path, 1), pickle.dumps({"format": 1, "trap": Trap(tmp_path / "sprung")}))
    with pytest.raises(RuntimeError, match="but a checkpoint may contain only plain values"):
        resumed(tmp_path)
    assert not (tmp_path / "sprung").exists()


def test_a_link_is_not_followed_out_of_a_checkpoint(tmp_path: Path) -> None:
    saved(tmp_path / "other", 5)
    saved(tmp_path / "run", 1)
    file = make_file(tmp_path / "run", 1)
    replace(file, make_file(tmp_path / "other", 1).read_bytes())
    assert resumed(tmp_path / "run")[0][1] == 5
    file.unlink()
    file.symlink_to(make_file(tmp_path / "other", 1))
    marker = file.with_name("WHOLE.json")
    marker.write_text(json.dumps({"files": {file.name: {"link": os.readlink(file)}}}))
    with pytest.raises(
        RuntimeError, match=r"rank-00000\.state cannot be read: Too many levels of symbolic links"
    ):
        resumed(tmp_path / "run")


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone can make a file another user's")
@pytest.mark.parametrize("name", ["step-00000001", "step-00000001/rank-00000.state"])
def test_a_checkpoint_of_another_user_is_refused(tmp_path: Path, name: str) -> None:
    saved(tmp_path, 1)
    os.chown(tmp_path / name, 65534, 65534)
    with pytest.raises(RuntimeError, match=f"it belongs to another user.* cp -r {tmp_path} FOLDER"):
        resumed(tmp_path)


def kill_while_saving(folder: Path, kills: int, python: str) -> None:
    chance = random.Random(kills)
    last = 0
    for _ in range(kills):
        with subprocess.Popen(
            [python, "-c", SAVES_AT_EACH_STEP, str(folder)],
            env=GIVEN,
            stdout=subprocess.PIPE,
            text=True,
        ) as training:
            assert training.stdout is not None
            lines = [training.stdout.readline() for _ in range(chance.randint(2, 4))]
            time.sleep(chance.uniform(0.0, 0.03))
            training.kill()
            steps = [int(line.split()[1]) for line in (*lines, *training.stdout)]
        # What was being saved may have been whole when it was killed.
        assert last <= steps[0] <= last + 1, (last, steps)
        last = steps[-1]


@pytest.mark.system
@pytest.mark.parametrize("python", ["this", "oldest"])
def test_a_training_that_is_killed_while_it_saves_loses_one_save_at_most(
    tmp_path: Path, python: str
) -> None:
    kill_while_saving(tmp_path, 3, sys.executable if python == "this" else oldest_python())


@pytest.mark.system
@pytest.mark.long
def test_a_training_that_is_killed_fifty_times_while_it_saves_loses_one_save_at_most(
    tmp_path: Path,
) -> None:
    kill_while_saving(tmp_path, 50, sys.executable)


def torch_steps(folder: Path, kind: str, steps: int, ranks: int) -> list[str]:
    pytest.importorskip("torch", reason="PyTorch is not installed: its CPU build will do")
    launcher = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={ranks}",
    ]
    words = [*(launcher if ranks > 1 else [sys.executable]), "-", str(folder), kind, str(steps)]
    program = folder.with_suffix(".py")
    program.write_text(TORCH_STEPS)
    words[words.index("-")] = str(program)
    done = subprocess.run(
        words, env={**GIVEN, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False
    )
    return done.stdout.split(" ", 1) if done.returncode == 0 else ["", done.stderr]


@pytest.mark.system
def test_each_rank_of_ddp_writes_a_part_and_any_number_resumes(tmp_path: Path) -> None:
    assert torch_steps(tmp_path / "run", "ddp", 2, ranks=2)[0] == "2"
    assert {one.name for one in (tmp_path / "run" / "step-00000002").iterdir()} == {
        *["WHOLE.json", "rank-00000.state", "rank-00000.pt", "rank-00001.pt"]
    }
    after = torch_steps(tmp_path / "run", "ddp", 2, ranks=1)
    assert after[0] == "4"
    # As if it had never been interrupted, by however many ranks.
    straight = torch_steps(tmp_path / "straight", "ddp", 4, ranks=1)[1].split()
    assert (after[1].split()[0], float(after[1].split()[1])) == (
        "[1]",
        pytest.approx(float(straight[1]), abs=1e-4),
    )


@pytest.mark.system
def test_what_is_sharded_resumes_with_as_many_ranks_alone(tmp_path: Path) -> None:
    assert torch_steps(tmp_path / "run", "sharded", 2, ranks=2)[0] == "2"
    assert torch_steps(tmp_path / "run", "sharded", 2, ranks=2)[0] == "4"
    status, words = torch_steps(tmp_path / "run", "ddp", 2, ranks=1)
    assert status == ""
    assert "contains the parts of 2 ranks, but this training has 1: start 2" in words
