"""The kill switch and the save switch as files that people make, and programs look for."""

import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from hpcdash.job.switches import Switches
from tests.support.real_files import NOBODY, as_somebody_else
from tests.support.waiting import wait_until

BURN = (
    "from hpcdash.job import TrainingGuard\n"
    "guard = TrainingGuard()\n"
    "print('training', flush=True)\n"
    "for step in range(100000):\n"
    "    guard.step(step)\n"
    "    if guard.should_stop(): break\n"
)


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    given = {**os.environ, **environment}
    return subprocess.run(
        [sys.executable, "-c", code], env=given, capture_output=True, text=True, check=False
    )


@pytest.mark.system
def test_a_queued_array_burns_through_with_clean_exits_while_the_file_is_there(
    tmp_path: Path,
) -> None:
    kill = tmp_path / "KILL"
    kill.touch()
    for _ in range(3):
        ended = run(BURN, HPCDASH_KILL_SWITCH=str(kill))
        assert (ended.returncode, ended.stdout) == (0, "")
        assert f"the kill switch {kill} is set: exiting before training" in ended.stderr
    assert kill.exists()


@pytest.mark.system
def test_the_file_of_another_person_stops_a_running_training(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can be two people")
    folder = tmp_path / "group"
    folder.mkdir()
    os.chown(folder, NOBODY, NOBODY)
    for parent in [tmp_path, *tmp_path.parents][:-1]:
        parent.chmod(parent.stat().st_mode | 0o011)
    kill = folder / "KILL"
    code = BURN.replace("TrainingGuard()", "TrainingGuard(look_every_seconds=0)").replace(
        "    guard.step", "    import time; time.sleep(0.005); guard.step"
    )
    training = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "HPCDASH_KILL_SWITCH": str(kill)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert training.stdout is not None
    assert training.stdout.readline() == "training\n"
    with as_somebody_else():
        kill.touch()
    _, said = training.communicate()
    assert training.returncode == 0
    assert f"the kill switch {kill} is set" in said
    assert kill.stat().st_uid == NOBODY


def test_a_save_switch_fires_once_each_time_it_is_made(tmp_path: Path) -> None:
    save = tmp_path / "SAVE"
    switches = Switches("", str(save), every_seconds=0)
    assert not switches.save_wanted()
    for _ in range(2):
        save.touch()
        assert switches.save_wanted()
        assert not save.exists()
        assert not switches.save_wanted()


def test_a_save_switch_that_cannot_be_deleted_fires_once_until_it_is_touched(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save = tmp_path / "SAVE"
    save.touch()
    if os.geteuid() == 0:
        for parent in [tmp_path, *tmp_path.parents][:-1]:
            parent.chmod(parent.stat().st_mode | 0o055)
    tmp_path.chmod(0o555)
    switches = Switches("", str(save), every_seconds=0)
    with as_somebody_else():
        assert [switches.save_wanted() for _ in range(3)] == [True, False, False]
    os.utime(save, (1, 1))
    with as_somebody_else():
        assert [switches.save_wanted() for _ in range(3)] == [True, False, False]
    assert caplog.text.count("cannot be deleted") == 1
    tmp_path.chmod(0o755)


@pytest.mark.system
def test_files_are_looked_for_at_most_every_few_seconds_and_with_one_call() -> None:
    code = (
        "import os\n"
        "from hpcdash.job.switches import Switches\n"
        "looked = []\n"
        "real = os.lstat\n"
        "os.lstat = lambda path: looked.append(path) or real(path)\n"
        "switches = Switches('K', 'S', every_seconds=600)\n"
        "for _ in range(10000): switches.kill_wanted(), switches.save_wanted()\n"
        "print(len(looked))\n"
    )
    assert run(code).stdout == "2\n"


def test_nothing_that_is_wrong_with_a_path_reaches_the_loop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o000)
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    (tmp_path / "file").touch()
    with as_somebody_else():
        for path in (
            f"{closed}/KILL",
            f"{loop}/KILL",
            f"{tmp_path}/file/KILL",
            "/x" * 3000,
            "nul\0byte",
        ):
            caplog.clear()
            switches = Switches(path, f"{path}2", every_seconds=0)
            assert not any(switches.kill_wanted() or switches.save_wanted() for _ in range(5))
            assert caplog.text.count("cannot be checked") == 2, path


def test_one_file_for_both_switches_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="use two paths"):
        Switches(f"{tmp_path}/S", f"{tmp_path}/../{tmp_path.name}/S")
    Switches("", "")


def test_a_dead_mount_stops_nothing_and_is_heard_of_when_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, answers, asked = os.lstat, threading.Event(), []
    kill, save = tmp_path / "KILL", tmp_path / "SAVE"
    kill.touch()
    save.touch()

    def lstat(path: str) -> os.stat_result:
        # Whoever prints a failure looks at files, too.
        if path in (str(kill), str(save)):
            asked.append(path)
            assert answers.wait()
        return real(path)

    monkeypatch.setattr("hpcdash.job.switches._WAIT_SECONDS", 0.02)
    monkeypatch.setattr("hpcdash.job.switches._WAIT_AT_START_SECONDS", 0.02)
    monkeypatch.setattr(os, "lstat", lstat)
    switches = Switches(str(kill), str(save), every_seconds=0)
    switches.exit_if_killed()
    assert not any(switches.kill_wanted() or switches.save_wanted() for _ in range(1000))
    # The thread that looks may begin later than it is no longer waited for.
    wait_until("both to be requested", lambda: {str(kill), str(save)} <= {*asked})
    # One look a file hangs; the others do not wait for it.
    assert sorted(asked) == [str(kill), str(save)]
    assert caplog.text.count("does not respond") == 2
    answers.set()
    wait_until("both to be seen", lambda: switches.kill_wanted() and switches.save_wanted())
    assert not save.exists()
    assert not switches.save_wanted()


@pytest.mark.system
def test_a_process_that_is_forked_looks_for_itself(tmp_path: Path) -> None:
    ended = run(
        "import os, sys\n"
        "from hpcdash.job import Switches\n"
        f"switches = Switches({str(tmp_path / 'KILL')!r}, '', every_seconds=0)\n"
        "assert not switches.kill_wanted()\n"
        "child = os.fork()\n"
        f"if not child: open({str(tmp_path / 'KILL')!r}, 'w').close(); os._exit(40 + "
        "switches.kill_wanted())\n"
        "print(os.waitpid(child, 0)[1] >> 8)\n"
    )
    assert ended.stdout == "41\n", ended.stderr


def test_a_folder_is_no_kill_switch(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    switches = Switches(str(tmp_path), "", every_seconds=0)
    switches.exit_if_killed()
    assert not switches.kill_wanted()
    assert caplog.text.count("is a folder and has no effect") == 1


def test_without_paths_there_is_nothing_to_look_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HPCDASH_KILL_SWITCH", raising=False)
    monkeypatch.delenv("HPCDASH_SAVE_SWITCH", raising=False)
    switches = Switches(every_seconds=0)
    switches.exit_if_killed()
    assert not switches.kill_wanted()
    assert not switches.save_wanted()


def test_a_path_stays_where_it_was_when_the_program_changes_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    switches = Switches("KILL", "", every_seconds=0)
    (tmp_path / "KILL").touch()
    monkeypatch.chdir("/")
    assert switches.kill_wanted()


def test_rank_0_looks_and_the_others_are_told(tmp_path: Path) -> None:
    (tmp_path / "KILL").touch()
    path = str(tmp_path / "KILL")
    said: list[int] = []

    def spread(number: int) -> int:
        said.append(number)
        return max(said)

    ranks = [
        Switches(path, "", rank=rank, all_reduce_max=spread, every_seconds=0) for rank in range(3)
    ]
    assert [switches.kill_wanted() for switches in ranks] == [True, True, True]
    assert said == [1, 0, 0]


def test_a_switch_that_a_quiet_logger_hides_is_still_a_switch(tmp_path: Path) -> None:
    logging.getLogger("hpcdash.job").setLevel(logging.CRITICAL)
    try:
        (tmp_path / "KILL").touch()
        with pytest.raises(SystemExit) as ended:
            Switches(str(tmp_path / "KILL"), "").exit_if_killed()
        assert ended.value.code == 0
    finally:
        logging.getLogger("hpcdash.job").setLevel(logging.NOTSET)
