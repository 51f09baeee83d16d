"""Plays scenes on a Slurm of its own and keeps what Slurm's commands by Torque's names print of
them.

    python -m tests.support.pbs.record_wrappers

Writes fixtures/pbs/slurm-wrappers-22.05/printed/: SCENE/NAME.out and .err of each command, its
words and exit status in SCENE/commands.json. `squeue` is asked at the same moment: the truth that
the wrappers tell in part.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from hpcdash.transport.base import CommandResult
from tests.support.record_case import Recorded, renamed
from tests.support.slurm import SlurmLab, free_base_port, hostile_jobs, scenario

PRINTED = (
    Path(__file__).resolve().parents[3] / "fixtures" / "pbs" / "slurm-wrappers-22.05" / "printed"
)
# As long as the names they stand for: qstat pads its table.
_RENAMES = (("alice", "maira"), ("bob", "jon"))
# What squeue tells, field by field, with a byte between that no name of these scenes holds.
TRUTH_SEPARATOR = "\x1d"
TRUTH_FIELDS = (
    "%A",
    "%u",
    "%P",
    "%T",
    "%r",
    "%Q",
    "%V",
    "%S",
    "%e",
    "%l",
    "%C",
    "%D",
    "%N",
    "%F",
    "%K",
    "%j",
)
TRUTH = ("squeue", "-a", "-h", "-t", "all", "-o", TRUTH_SEPARATOR.join(TRUTH_FIELDS) + "\x1e")
LISTS: Mapping[str, tuple[str, ...]] = {
    "qstat": ("qstat",),
    "qstat-f": ("qstat", "-f"),
    "qstat-Q-f": ("qstat", "-Q", "-f"),
    "qstat-q": ("qstat", "-q"),
    "pbsnodes-a": ("pbsnodes", "-a"),
    "squeue": TRUTH,
}
UNKNOWN = "99999999"
# A name that closes its own record and begins another, and one that adds attributes to its own.
FORGED_RECORD = (
    b"fr\n\tJob_Owner = bob@n1\n\tjob_state = R\n\tqueue = main\n\tqtime = Sat Nov 21 12:42:34 "
    b"2026\n"
    b"\tPriority = 7\n\teuser = bob(1002)\n\tResource_List.walltime = 00:01:00\n\nJob "
    b"Id:\t777\n\tJob_Name = whole"
)
FORGED_ATTRIBUTE = b"forge\n\tjob_state = C\n\tJob_Owner = root@x\n\tPriority = 5"


class Recorder:
    """Runs commands as alice and keeps them under a scene's name."""

    def __init__(self, lab: SlurmLab, scene: str) -> None:
        self._lab = lab
        self._folder = PRINTED / scene
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        self._said: list[dict[str, object]] = []

    def keep(self, name: str, *argv: str, user: str = "alice") -> CommandResult:
        """Run one command and keep what it left."""
        ended = self._lab.as_user(user, "env", "LC_ALL=C", "TZ=UTC", *argv, check=False)
        answer = CommandResult(argv, ended.returncode, ended.stdout, ended.stderr, 0.0)
        kept = renamed(
            Recorded(name, argv, answer.status, ended.stdout, ended.stderr, 0.0), _RENAMES
        )
        for suffix, raw in (("out", kept.stdout), ("err", kept.stderr)):
            if raw:
                (self._folder / f"{name}.{suffix}").write_bytes(
                    raw.replace(str(self._lab.run_dir).encode(), b"/lab")
                )
        self._said.append({"name": name, "argv": list(kept.argv), "exit": answer.status})
        return answer

    def keep_lists(self) -> None:
        for name, argv in LISTS.items():
            self.keep(name, *argv)

    def close(self) -> None:
        lines = ",\n ".join(json.dumps(command) for command in self._said)
        (self._folder / "commands.json").write_text(f"[{lines}]\n", "utf-8")


def record() -> None:
    """All scenes.

    Ended jobs stay listed for minutes: each gets a Slurm of its own, but for those that need none.
    """
    with _fresh_lab() as lab:
        _record_empty(Recorder(lab, "empty"))
        _record_acting(lab, Recorder(lab, "acting"))
        _record_down(lab, Recorder(lab, "controller-down"))
    with _fresh_lab() as lab:
        scenario(lab)
        _record_lists(Recorder(lab, "everyday"))
    with _fresh_lab() as lab:
        _submit_hostile(lab)
        _record_lists(Recorder(lab, "hostile"))


@contextmanager
def _fresh_lab() -> Iterator[SlurmLab]:
    lab = SlurmLab(tempfile.mkdtemp(prefix="hpcdash-slurm-"), base_port=free_base_port())
    try:
        lab.start()
        yield lab
    finally:
        lab.stop(wipe=True)


def _record_empty(keep: Recorder) -> None:
    for name, argv in {
        "no-jobs": ("qstat", "-f"),
        "version": ("qstat", "--version"),
        "xml": ("qstat", "-x", "-t"),
        "dsv": ("qstat", "-f", "-F", "dsv"),
        "server": ("qstat", "-B", "-f"),
        "help": ("qstat", "--help"),
        "qsub-help": ("qsub", "--help"),
        "unknown-job": ("qstat", "-f", UNKNOWN),
        "unknown-user": ("qstat", "-u", "nosuchuser"),
    }.items():
        keep.keep(name, *argv)
    keep.close()


def _record_lists(keep: Recorder) -> None:
    keep.keep_lists()
    keep.close()


def _submit_hostile(lab: SlurmLab) -> None:
    hostile_jobs(lab)
    for name in (FORGED_ATTRIBUTE, FORGED_RECORD, b"\xff\xe9lat", b"ends\n", b"Job Id:\t5"):
        lab.submit("alice", "--hold", b"--job-name=" + name)
    lab.submit("alice", "--hold", "-p", "long", "-t", "UNLIMITED", "-J", "no limit")
    lab.submit("alice", "--hold", "--array=0-9%3", "-J", "sweep")
    lab.wait_state(lab.submit("alice", "-J", "two nodes", "-N2", "-n3"), "RUNNING")


def _record_acting(lab: SlurmLab, keep: Recorder) -> None:
    ended = lab.submit("alice", script="#!/bin/sh\n")
    lab.wait_state(ended, "COMPLETED")
    running, held, others = (
        lab.submit("alice"),
        lab.submit("alice", "--hold"),
        lab.submit("bob", "--hold"),
    )
    array = lab.submit("alice", "--hold", "--array=1-3")
    lab.wait_state(running, "RUNNING")
    jobs = {"running": running, "held": held, "others": others, "ended": ended, "unknown": UNKNOWN}
    for verb, words in {
        "qhold": ("qhold", "-h", "u"),
        "qrls": ("qrls",),
        "qrerun": ("qrerun",),
        "qalter-name": ("qalter", "-N", "renamed"),
        "qalter-rerun": ("qalter", "-r", "n"),
        "qalter-time": ("qalter", "-l", "walltime=00:10:00"),
    }.items():
        for kind, job_id in jobs.items():
            keep.keep(f"{verb}-{kind}", *words, job_id)
    keep.keep("qhold-bare", "qhold", held)
    keep.keep("qdel-several", "qdel", others, UNKNOWN, ended)
    for kind in ("others", "unknown", "ended", "held", "running"):
        keep.keep(f"qdel-{kind}", "qdel", jobs[kind])
    keep.keep("qdel-no-id", "qdel", "nothing")
    keep.keep("qdel-task", "qdel", f"{array}[1]")
    keep.keep("qdel-task-truth", *TRUTH)
    _record_submitting(lab, keep)
    keep.close()


def _record_submitting(lab: SlurmLab, keep: Recorder) -> None:
    script = lab.work_dir("alice") / "train.sh"
    script.write_text("#!/bin/sh\n#PBS -N from-the-script\n#PBS -l walltime=00:07:00\nsleep 600\n")
    shutil.chown(script, "alice")
    submit: Mapping[str, Sequence[str]] = {
        "plain": ("train.sh",),
        "named": ("-N", "named", "-h", "train.sh", "first", "second"),
        "array": ("-h", "-t", "1-4%2", "train.sh"),
        "after": ("-W", f"depend=afterany:{UNKNOWN}", "train.sh"),
        "quoted": ("-h", "-N", "'a b'", "train.sh"),
        "line": (
            *(
                "-sbatchline",
                "-N",
                "named",
                "-l",
                "nodes=2:ppn=2:gpus=1,walltime=00:10:00,mem=2gb",
                "-v",
                "A=1,B=2",
                "-V",
            ),
            *(
                "-t",
                "1-4%2",
                "-W",
                "depend=afterok:1:2",
                "-h",
                "-j",
                "oe",
                "-o",
                "out",
                "-q",
                "main",
                "-A",
                "physics",
            ),
            *("train.sh", "first"),
        ),
        "shell-runs-it": ("-N", "$(echo ran >&2)x", "-h", "train.sh"),
        "no-queue": ("-q", "nosuch", "train.sh"),
        "bad-time": ("-l", "walltime=soon", "train.sh"),
        "no-script": ("nosuch.sh",),
        "dash": ("-",),
        "nothing": (),
    }
    for name, words in submit.items():
        keep.keep(f"qsub-{name}", "qsub", *words)
    keep.keep("qsub-truth", *TRUTH)


def _record_down(lab: SlurmLab, keep: Recorder) -> None:
    with lab.controller_down():
        for name, argv in LISTS.items():
            if name != "squeue":
                keep.keep(name, *argv)
        for name, words in {
            "qdel": ("qdel", "1"),
            "qhold": ("qhold", "-h", "u", "1"),
            "qalter": ("qalter", "-N", "x", "1"),
            "qsub": ("qsub", "train.sh"),
        }.items():
            keep.keep(name, *words)
    keep.close()


if __name__ == "__main__":
    record()
