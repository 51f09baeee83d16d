"""`hpcdash move` on a PBS: in place by qmove and qalter, and to another PBS by a held copy."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.pbs import StandIns
from tests.support.program import Program, find_row, home_with

SCRIPT = "#!/bin/bash\n#PBS -l walltime=60\nsleep 1\n"


class Mover:
    """hpcdash on two PBS servers, `here` and `there`, which act on their jobs."""

    def __init__(self, folder: Path) -> None:
        self.here = StandIns.install(folder / "here", "everyday")
        self.there = StandIns.install(folder / "there", "everyday")
        for stand_ins in (self.here, self.there):
            stand_ins.let_act()
        variables = {"PBS_CONF_FILE": "/dev/null"}
        self.program = Program(home_with(folder / "home"), (), variables)
        tables = [
            f'[clusters.{name}]\ntransport = "local"\nbackend = "pbs"\npath = "{one.path}"\n'
            for name, one in (("here", self.here), ("there", self.there))
        ]
        self.program.config.parent.mkdir(parents=True)
        self.program.config.write_text("".join(tables))
        self.script = folder / "train.sh"
        self.script.write_text(SCRIPT)

    def submit(self, *options: str) -> str:
        done = self.program("submit", str(self.script), "--", *options)
        assert done.status == 0, done
        return done.text.strip()

    def state(self, job_id: str, cluster: str = "here") -> str:
        rows = self.program.rows("jobs", "--cluster", cluster)
        return str(find_row(rows, job_id)["state"])


@pytest.fixture
def mover(tmp_path: Path) -> Mover:
    return Mover(tmp_path)


def test_queue_and_account_are_changed_in_place(mover: Mover) -> None:
    moved = mover.program("move", "4", "--queue", "workq", "--account", "physics")
    assert moved.status == 0, moved
    assert moved.text.startswith("4.pbs01  moved to queue workq, account physics")
    assert mover.here.calls("qalter", "qmove") == [
        ["qalter", "-A", "physics", "4.pbs01"],
        ["qmove", "workq", "4.pbs01"],
    ]
    row = find_row(mover.program.rows("jobs"), "4.pbs01")
    assert (row["queue"], row["account"]) == ("workq", "physics")


def test_a_queue_that_is_not_there_is_refused_in_the_words_of_pbs(mover: Mover) -> None:
    moved = mover.program("move", "4", "--queue", "nosuch")
    assert (moved.status, moved.text) == (1, "4.pbs01  Unknown queue; it has queue stopped\n")


def test_a_qos_is_refused_as_pbs_has_none(mover: Mover) -> None:
    assert "PBS jobs have no QoS" in mover.program("move", "4", "--qos", "high").refused(1)


def test_to_another_server_a_held_copy_takes_the_place(mover: Mover) -> None:
    job_id = mover.submit("-N", "train")
    moved = mover.program("--yes", "move", job_id, "--to", "there", "--queue", "workq")
    assert moved.status == 0, moved
    copy = moved.text.split()[-3]
    assert moved.text == f"{job_id}  moved: now job {copy} on there\n"
    assert [words[0] for words in mover.here.calls("qhold", "qdel", "qrls")] == ["qhold", "qdel"]
    [words] = mover.there.calls("qsub")
    assert "-h" in words
    assert f"HPCDASH_REPLACES={job_id}@here" in words[words.index("-v") + 1]
    assert mover.there.calls("qrls") == [["qrls", copy]]
    assert mover.state(copy, "there") == "pending"
    # The script is known for another move.
    assert mover.program("script", copy, "--cluster", "there").text == SCRIPT


def test_a_refusal_there_releases_the_job_here(mover: Mover) -> None:
    job_id = mover.submit("-N", "train")
    moved = mover.program("--yes", "move", job_id, "--to", "there", "--queue", "nosuch")
    assert moved.status == 1, moved
    assert "nothing was moved: there refused the copy" in moved.text
    assert mover.state(job_id) == "pending"
    assert mover.there.calls("qdel", "qrls") == []


def test_a_job_whose_script_hpcdash_does_not_have_stays(mover: Mover) -> None:
    refused = mover.program("--yes", "move", "4", "--to", "there").refused(1)
    assert "does not return scripts" in refused
    assert mover.here.calls("qhold") == []


def test_without_a_history_no_copy_is_made(mover: Mover) -> None:
    job_id = mover.submit("-N", "train")
    server = mover.here.folder / "scene" / "server.dsv"
    text = server.read_bytes()
    server.write_bytes(text.replace(b"job_history_enable=True", b"job_history_enable=False"))
    assert text != server.read_bytes()
    refused = mover.program("--yes", "move", job_id, "--to", "there").refused(1)
    assert "keeps no ended jobs on here" in refused
