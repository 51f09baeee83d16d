"""Checkpoints that are killed in the middle, on disks that fill up, by several ranks: whole or not
there.
"""

import errno
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from hpcdash.job.checkpoint import MARKER, Checkpoint, Checkpoints, write_whole
from hpcdash.job.warnings_once import OnceLog

SAVES_WITHOUT_END = """
import sys
from hpcdash.job import Checkpoints
checkpoints = Checkpoints(sys.argv[1], keep=2)
newest = checkpoints.newest()
step = newest.step if newest else 0
print("ready", flush=True)
while True:
    step += 1
    with checkpoints.saving(step) as folder:
        (folder / "shards").mkdir()
        for name in ("model.bin", "shards/optimizer.bin"):
            with open(folder / name, "wb", buffering=0) as file:
                for _ in range(20): file.write(b"%08d" % step * 512)
    print(step, flush=True)
"""

KILLED_BEFORE_EACH_OPERATION = """
import os, shutil, signal, sys
from hpcdash.job import Checkpoints

OPERATIONS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.listdir", "os.scandir", "shutil.rmtree"}
checkpoints = Checkpoints(sys.argv[1], keep=1)

def save(step):
    with checkpoints.saving(step) as folder:
        (folder / "shards").mkdir()
        (folder / "shards" / "model").write_text(f"weights after {step}")

save(1)
newest, last = 1, 1
for point in range(1, 1000):
    last += 1
    child = os.fork()
    if child == 0:
        left = point
        def count(event, arguments):
            global left
            if event in OPERATIONS:
                left -= 1
            # The kill is an event too.
            if event in OPERATIONS and left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        sys.addaudithook(count)
        save(last)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    found = checkpoints.newest()
    assert found is not None and found.step in (newest, last), (point, found)
    assert (found.path / "shards" / "model").read_text() == f"weights after {found.step}", point
    newest = found.step
    # Each save has the same to do.
    for path in checkpoints.folder.iterdir():
        if path != found.path:
            shutil.rmtree(path)
    if status == 0:
        break
assert newest == last
print(point)
"""


def save(checkpoints: Checkpoints, *steps: int, keep_forever: bool = False) -> None:
    for step in steps:
        with checkpoints.saving(step, keep_forever=keep_forever) as folder:
            (folder / "model").write_text(f"weights after {step}")


def steps_of(found: Sequence[Checkpoint]) -> list[int]:
    return [checkpoint.step for checkpoint in found]


@pytest.mark.system
def test_a_run_that_is_killed_while_it_saves_leaves_its_newest_whole_one(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    chance, torn, newest_step = random.Random(4711), 0, 0
    for _ in range(40):
        training = subprocess.Popen(
            [sys.executable, "-c", SAVES_WITHOUT_END, str(folder)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert training.stdout is not None
        assert training.stdout.readline() == "ready\n"
        # Any moment will do: a save here takes some 60 ms.
        time.sleep(chance.random() * 0.1)
        training.kill()
        said = training.stdout.read().split()
        training.wait()
        torn += any(folder.glob(".saving-*"))
        newest = Checkpoints(folder).newest()
        assert newest is not None or not said
        if newest is None:
            continue
        assert (
            newest.step >= max(newest_step, *map(int, said), 0)
            if said
            else newest.step >= newest_step
        )
        newest_step = newest.step
        for name in ("model.bin", "shards/optimizer.bin"):
            assert (newest.path / name).read_bytes() == b"%08d" % newest.step * 512 * 20
        assert steps_of(Checkpoints(folder).all())[0] == newest.step
        assert len(list(folder.glob("step-*"))) == len(Checkpoints(folder).all())
    assert torn >= 5
    assert newest_step >= 10


@pytest.mark.system
def test_a_save_that_is_killed_before_any_operation_on_files_leaves_a_whole_one_even_of_one(
    tmp_path: Path,
) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", KILLED_BEFORE_EACH_OPERATION, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert 20 < int(ended.stdout) < 200


@pytest.mark.system
def test_what_killed_runs_left_is_cleared_when_nobody_writes_there_any_more(tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    host = os.uname().nodename.partition(".")[0]
    names = (
        f".saving-00000005@{host}@{ended.pid}",
        f".saving-00000006@{host}@{os.getpid()}",
        ".saving-00000007",
    )
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "model").touch()
        for path in (tmp_path / name / "model", tmp_path / name):
            os.utime(path, (time.time() - 1800,) * 2)
    save(Checkpoints(tmp_path, rank=0), 8)
    assert sorted(path.name for path in tmp_path.glob(".saving-*")) == sorted(names[1:])


def test_a_save_that_fails_leaves_no_trace_and_says_why(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, rank=0)
    save(checkpoints, 1)

    def fail() -> None:
        with checkpoints.saving(2) as folder:
            (folder / "model").touch()
            raise KeyError("weights")

    with pytest.raises(KeyError, match="weights"):
        fail()
    assert os.listdir(tmp_path) == ["step-00000001"]


@pytest.mark.system
def test_a_full_disk_costs_the_checkpoint_that_did_not_fit_and_no_other(small_disk: Path) -> None:
    checkpoints = Checkpoints(small_disk, rank=0)
    save(checkpoints, 1)
    with pytest.raises(OSError, match="No space left"), checkpoints.saving(2) as folder:
        (folder / "model").write_bytes(b"x" * (1 << 20))
    assert steps_of(checkpoints.all()) == [1]
    save(checkpoints, 3)
    assert steps_of(checkpoints.all()) == [3, 1]


def test_the_newest_ones_stay_and_those_to_keep_forever(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2, rank=0)
    save(checkpoints, 5, keep_forever=True)
    save(checkpoints, 1, 2, 3, 10, 200)
    assert steps_of(checkpoints.all()) == [200, 10, 5]
    assert sorted(os.listdir(tmp_path)) == ["step-00000005", "step-00000010", "step-00000200"]
    everything = Checkpoints(tmp_path / "all", keep=None, rank=0)
    save(everything, *range(9))
    assert len(everything.all()) == 9
    with pytest.raises(ValueError, match="1 or more, or None"):
        Checkpoints(tmp_path, keep=0)


@pytest.mark.parametrize("has_checksum", [False, True])
def test_what_is_damaged_does_not_count_among_those_to_keep(
    tmp_path: Path, has_checksum: bool
) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3, rank=0, checksum=has_checksum)
    save(checkpoints, 3000, 4000, 5000)
    for step in (4000, 5000):
        (tmp_path / f"step-0000{step}" / "model").write_text(
            f"WEIGHTS AFTER {step}" if has_checksum else ""
        )
    checkpoints = Checkpoints(tmp_path, keep=2, rank=0, checksum=has_checksum)
    resumed = checkpoints.newest()
    assert resumed is not None
    assert resumed.step == 3000
    save(checkpoints, 3100)
    assert steps_of(checkpoints.all()) == [3100, 3000]
    assert (tmp_path / "step-00005000").exists()
    save(checkpoints, 3200)
    assert sorted(os.listdir(tmp_path)) == ["step-00003100", "step-00003200"]


@pytest.mark.system
def test_a_save_reads_sizes_and_no_other_checkpoint_s_bytes(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from hpcdash.job import Checkpoints\n"
        "checkpoints = Checkpoints(sys.argv[1], checksum=True, keep=2)\n"
        "read = []\n"
        "def look(event, args):\n"
        "    if event == 'open' and str(args[0]).endswith('model') and 'r' in (args[1] or ''): "
        "read.append(args[0])\n"
        "sys.addaudithook(look)\n"
        "for step in range(4):\n"
        "    with checkpoints.saving(step) as folder: (folder / 'model').write_text('x')\n"
        "print(len(read))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert ended.stdout == "4\n"


def test_a_run_that_goes_back_keeps_its_own_saves_and_goes_on_from_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = Checkpoints(tmp_path, rank=0)
    save(checkpoints, 1000, keep_forever=True)
    save(checkpoints, 4000, 5000)
    assert (
        next(found for found in checkpoints.all() if found.step == 1000).path.name
        == "step-00001000"
    )
    # The clock of another host is late.
    monkeypatch.setattr("hpcdash.job.checkpoint.time", lambda: 1.0)
    save(checkpoints, 1100)
    assert steps_of(Checkpoints(tmp_path).all()) == [1100, 5000, 1000]
    save(checkpoints, 1200)
    assert steps_of(Checkpoints(tmp_path).all()) == [1200, 1100, 1000]


@pytest.mark.system
def test_two_runs_that_save_the_same_steps_in_one_folder_lose_none(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from hpcdash.job import Checkpoints\n"
        "checkpoints = Checkpoints(sys.argv[1], keep=None)\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        "for step in range(40):\n"
        "    with checkpoints.saving(step) as folder: (folder / 'model').write_text('x')\n"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    runs = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], text=True, **pipes)
        for _ in range(2)
    ]
    for run in runs:
        assert run.stdout is not None
        assert run.stdout.readline() == "ready\n"
    # Both are let go before either is waited for.
    for run in runs:
        assert run.stdin is not None
        run.stdin.write("\n")
        run.stdin.flush()
    assert [run.communicate()[1] for run in runs] == ["", ""]
    assert steps_of(Checkpoints(tmp_path).all()).count(39) == 2
    assert len(Checkpoints(tmp_path).all()) == 80


def test_a_name_that_another_run_takes_in_the_last_moment_is_not_taken_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = Checkpoints(tmp_path, keep=None, rank=0)
    save(checkpoints, 7)
    real = Path.exists
    monkeypatch.setattr(Path, "exists", lambda path: path.name != "step-00000007" and real(path))
    save(checkpoints, 7)
    assert sorted(os.listdir(tmp_path)) == ["step-00000007", "step-00000007.1"]


def test_what_was_not_deleted_to_its_end_stands_in_no_later_one_s_way(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1, rank=0)
    save(checkpoints, 1)
    (tmp_path / ".deleting-step-00000001").mkdir()
    (tmp_path / ".deleting-step-00000001" / "model").touch()
    save(checkpoints, 2)
    assert (os.listdir(tmp_path), caplog.text) == (["step-00000002"], "")


def test_what_cannot_be_deleted_or_made_sure_of_is_said_once_and_fails_no_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(path: object) -> None:
        if os.path.isdir(str(path)):
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("hpcdash.job.on_disk._log", OnceLog())
    monkeypatch.setattr("shutil.rmtree", lambda *given, **named: None)
    monkeypatch.setattr("hpcdash.job.on_disk.sync_file", broken)
    save(Checkpoints(tmp_path, keep=1, rank=0), 1, 2, 3)
    assert steps_of(Checkpoints(tmp_path, rank=0).all()) == [3]
    assert caplog.text.count("cannot be deleted and still uses disk space") == 1
    assert caplog.text.count("may not be on disk: Input/output error") == 1


def test_all_ranks_resume_from_what_rank_0_chose(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save(Checkpoints(tmp_path, keep=None, rank=0), 100, 200, 200)
    given: list[int] = []

    def rank_0(number: int) -> int:
        given.append(number)
        return number

    def rank_1(number: int) -> int:
        assert number == 0
        return given.pop(0)

    first = Checkpoints(tmp_path, rank=0).resume_from(rank_0)
    assert first == Checkpoint(200, tmp_path / "step-00000200.1")
    # What has been saved since, rank 1 may see already.
    save(Checkpoints(tmp_path, keep=None, rank=0), 300)
    assert Checkpoints(tmp_path, rank=1).resume_from(rank_1) == first
    assert Checkpoints(tmp_path / "new", rank=0).resume_from(rank_0) is None
    assert Checkpoints(tmp_path, rank=1).resume_from(rank_1) is None
    assert caplog.text == ""


def test_a_rank_that_does_not_see_what_was_chosen_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("hpcdash.job.on_disk._SEEN_SECONDS", 0.0)
    answers = iter((201, 1))
    with pytest.raises(
        RuntimeError,
        match=r"rank 1 does not see .*step-00000200/WHOLE\.json, which rank 0 resumes from",
    ):
        Checkpoints(tmp_path, rank=1).resume_from(lambda number: next(answers))
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert Checkpoints(tmp_path, rank=1).resume_from() is None
    assert caplog.text.count("each rank searches separately for a checkpoint") == 1


def test_a_step_that_is_saved_again_replaces_nothing_while_it_is_written(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, rank=0)
    save(checkpoints, 7)
    with checkpoints.saving(7) as folder:
        (folder / "model").write_text("better")
        before = checkpoints.newest()
        assert before is not None
        assert (before.path / "model").read_text() == "weights after 7"
    newest = checkpoints.newest()
    assert newest is not None
    assert (newest.step, (newest.path / "model").read_text()) == (7, "better")


@pytest.mark.parametrize(
    "harm", ["no marker", "half a marker", "a file is shorter", "a file is gone"]
)
def test_a_torn_one_is_passed_over_and_named(
    tmp_path: Path, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints = Checkpoints(tmp_path, rank=0)
    save(checkpoints, 1, 2)
    torn = tmp_path / "step-00000002"
    if harm == "no marker":
        (torn / MARKER).unlink()
    elif harm == "half a marker":
        (torn / MARKER).write_text((torn / MARKER).read_text()[:30])
    elif harm == "a file is shorter":
        os.truncate(torn / "model", 3)
    else:
        (torn / "model").unlink()
    assert checkpoints.newest() == Checkpoint(1, tmp_path / "step-00000001")
    assert f"the checkpoint {torn} is incomplete" in caplog.text
    save(checkpoints, 3, 4, 5)
    assert torn.exists() is ("marker" in harm)


def test_wrong_bytes_of_the_right_size_are_seen_with_checksums(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, checksum=True, rank=0)
    save(checkpoints, 1, 2)
    (tmp_path / "step-00000002" / "model").write_text("WEIGHTS AFTER 2")
    assert steps_of(Checkpoints(tmp_path).all()) == [1]


def test_an_empty_or_missing_folder_has_no_checkpoint(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path).newest() is None
    assert Checkpoints(tmp_path / "gone").newest() is None
    for other in ("step-x", "step-٣", "notes", "step-1.txt"):
        (tmp_path / other).mkdir()
    assert Checkpoints(tmp_path).all() == []


def test_a_rank_that_would_save_beside_rank_0_is_told_so(tmp_path: Path) -> None:
    with (
        pytest.raises(RuntimeError, match="pass barrier="),
        Checkpoints(tmp_path, rank=1).saving(1),
    ):
        pytest.fail("saved")


@pytest.mark.parametrize("has_checksum", [False, True])
def test_links_are_kept_as_links_and_lead_to_the_same_files(
    tmp_path: Path, has_checksum: bool
) -> None:
    (tmp_path / "base").write_text("base model")
    checkpoints = Checkpoints(tmp_path / "run", checksum=has_checksum, rank=0)
    with checkpoints.saving(1) as folder:
        (folder / "shards").mkdir()
        (folder / "shards" / "last").write_text("weights after 1")
        (folder / "shards" / "newest").symlink_to(folder / "shards" / "last")
        (folder / "all").symlink_to(folder / "shards")
        (folder / "best").symlink_to("shards/last")
        (folder / "base").symlink_to(tmp_path / "base")
        (folder / "gone").symlink_to(tmp_path / "gone")
    (tmp_path / "base").write_text("a base model that has grown")
    newest = checkpoints.newest()
    assert newest is not None
    read = [(newest.path / name).read_text() for name in ("shards/newest", "all/newest", "best")]
    assert read == ["weights after 1"] * 3
    assert os.readlink(newest.path / "base") == str(tmp_path / "base")
    (newest.path / "best").unlink()
    (newest.path / "best").symlink_to("shards")
    assert checkpoints.newest() is None


def test_a_link_that_an_earlier_version_judged_by_what_it_leads_to_is_whole(tmp_path: Path) -> None:
    save(Checkpoints(tmp_path, rank=0), 1)
    path = tmp_path / "step-00000001"
    (path / "best").symlink_to("model")
    marker = json.loads((path / MARKER).read_text())
    marker["files"]["best"] = marker["files"]["model"]
    (path / MARKER).write_text(json.dumps(marker))
    assert steps_of(Checkpoints(tmp_path, rank=0).all()) == [1]


@pytest.mark.system
def test_the_parts_of_two_ranks_are_one_checkpoint(tmp_path: Path) -> None:
    code = (
        "import os, sys, time\n"
        "from hpcdash.job import Checkpoints\n"
        "rank, out, into = map(int, sys.argv[2:])\n"
        "def barrier():\n"
        "    os.write(out, b'.')\n"
        "    os.read(into, 1)\n"
        "checkpoints = Checkpoints(sys.argv[1], rank=rank, barrier=barrier)\n"
        "for step in (1, 2, 3):\n"
        "    with checkpoints.saving(step) as folder:\n"
        "        time.sleep(0.05 * rank)\n"
        "        (folder / f'part{rank}').write_text(f'{step} of {rank}')\n"
    )
    (in_0, out_1), (in_1, out_0) = os.pipe(), os.pipe()
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path), *map(str, words)], pass_fds=words[1:]
        )
        for words in ((0, out_0, in_0), (1, out_1, in_1))
    ]
    for end in (in_0, out_1, in_1, out_0):
        os.close(end)
    assert [rank.wait() for rank in ranks] == [0, 0]
    newest = Checkpoints(tmp_path).newest()
    assert newest is not None
    assert {path.name: path.read_text() for path in newest.path.glob("part*")} == {
        "part0": "3 of 0",
        "part1": "3 of 1",
    }
    assert sorted(json.loads((newest.path / MARKER).read_text())["files"]) == ["part0", "part1"]


def test_without_a_folder_it_is_that_of_the_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HPCDASH_CHECKPOINTS", raising=False)
    with pytest.raises(ValueError, match="set HPCDASH_CHECKPOINTS"):
        Checkpoints()
    monkeypatch.setenv("HPCDASH_CHECKPOINTS", str(tmp_path))
    assert (Checkpoints().folder, Checkpoints("x").folder) == (tmp_path, Path.cwd() / "x")


def test_one_file_is_the_old_one_or_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    with write_whole(path) as beside:
        beside.write_text("old")

    def fail() -> None:
        with write_whole(path) as beside:
            beside.write_text("new")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert path.read_text() == "old"
    with write_whole(path) as beside:
        beside.write_text("new")
        assert path.read_text() == "old"
    assert (path.read_text(), os.listdir(tmp_path)) == ("new", ["model.pt"])


def test_a_file_that_is_written_anew_keeps_its_mode_and_the_link_to_it(tmp_path: Path) -> None:
    path, link = tmp_path / "run7" / "model.pt", tmp_path / "model.pt"
    path.parent.mkdir()
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to("run7/model.pt")
    with write_whole(link) as beside:
        beside.write_text("new")
    assert (os.readlink(link), path.read_text(), path.stat().st_mode & 0o777) == (
        "run7/model.pt",
        "new",
        0o640,
    )
    assert sorted(found.name for found in tmp_path.iterdir()) == ["model.pt", "run7"]
