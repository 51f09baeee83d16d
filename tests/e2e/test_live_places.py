"""Places for a job on a real Slurm: each answer is what Slurm then does."""

from __future__ import annotations

import json
import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.program import Program
from tests.support.slurm import SlurmLab
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slurm

_SLEEP = "#!/bin/sh\nexec sleep 600\n"
# Reasons of jobs that pend until somebody changes them or the site.
_NEVER = (
    "PartitionTimeLimit",
    "PartitionNodeLimit",
    "PartitionConfig",
    "QOSMax",
    "AssocMax",
    "BadConstraints",
    "AccountNotAllowed",
    "account not permitted",
    "InvalidQOS",
    "PartitionDown",
    "PartitionInactive",
)


def where(program: Program, *options: str) -> dict[str, Any]:
    answer = program("where", *options, "--format", "json", "--all")
    found: dict[str, Any] = json.loads(answer.text)
    assert (answer.status == 0) is any(place["accepts"] for place in found["places"])
    return found


def random_options(chance: random.Random) -> list[str]:
    """A job's size: mostly one that some queue takes."""
    options = []
    if chance.random() < 0.45:
        options += ["--gpus", chance.choice(["1", "2", "4", "5", "8", "9"])]
        if chance.random() < 0.4:
            options += ["--gpu-type", chance.choice(["a100", "a100", "v100"])]
    else:
        options += ["--cpus", chance.choice(["1", "4", "8", "9", "16", "24", "40"])]
    if chance.random() < 0.4:
        nodes = chance.choice([1, 2, 3, 5])
        slots = int(options[1])
        # Others are refused: they do not spread over so many nodes.
        if nodes <= slots and -(-slots // -(-slots // nodes)) == nodes:
            options += ["--nodes", str(nodes)]
    if chance.random() < 0.7:
        options += ["--time", chance.choice(["5m", "45m", "4h", "1d", "3d", "8d", "40d"])]
    if chance.random() < 0.4:
        options += ["--mem", chance.choice(["100M", "1G", "7G", "10G", "20G"])]
    return options


def submit(lab: SlurmLab, place: dict[str, Any], options: list[str]) -> tuple[str, str]:
    """Submit such a job to a place; return its ID, '' if it is refused, and Slurm's message."""
    given = dict(zip(options[::2], options[1::2], strict=True))
    nodes = given.get("--nodes")
    argv = ["sbatch", "--parsable", f"--partition={place['queue']}", "--output=/dev/null"]
    for name in ("account", "qos"):
        argv += [f"--{name}={place[name]}"] if place[name] else []
    per_node = {"gpu": 4}.get(place["queue"], 8)
    slots = int(given.get("--gpus") or given["--cpus"])
    if place["queue"] == "gpu" and "--cpus" in given:
        per_node = 8
    count = int(nodes) if nodes else -(-slots // per_node)
    share = -(-slots // count)
    argv += [f"--nodes={count}", f"--ntasks-per-node={share if '--cpus' in given else 1}"]
    if "--gpus" in given:
        kind = f"{given['--gpu-type']}:" if "--gpu-type" in given else ""
        argv += [f"--gpus-per-node={kind}{share}"]
    argv += [f"--time={minutes(given['--time'])}"] if "--time" in given else []
    argv += [f"--mem={given['--mem']}"] if "--mem" in given else []
    done = lab.as_user("alice", *argv, stdin=_SLEEP.encode(), check=False)
    return done.stdout.decode().strip(), done.stderr.decode().strip()


def queue_reason(lab: SlurmLab, job: str) -> str:
    """State and reason of a job: `PENDING Resources`, `RUNNING None`."""
    return lab.admin("squeue", "-h", "-j", job, "-o", "%T %r").stdout.decode().strip()


def has_reason(lab: SlurmLab, job: str, starts: bool) -> bool:
    """Whether Slurm has tried to start a job. While the job before it ends, one that never starts
    waits for resources.
    """
    reason = queue_reason(lab, job)
    return reason not in ("PENDING None", "PENDING Priority") and (starts or never_starts(reason))


def never_starts(reason: str) -> bool:
    return any(text in reason for text in _NEVER)


def minutes(text: str) -> int:
    return int(text[:-1]) * {"m": 1, "h": 60, "d": 1440}[text[-1]]


def test_each_answer_is_what_slurm_does_with_such_a_job(
    clean_slurm: SlurmLab, over_ssh: Program
) -> None:
    lab = clean_slurm
    chance = random.Random(20261130)
    tried = []
    for _ in range(24):
        options = random_options(chance)
        found = where(over_ssh, *options)
        assert found["dry_runs"] <= 12
        chosen = chance.sample(found["places"], min(3, len(found["places"])))
        tried += [(options, place) for place in chosen]
    wrong = []
    for options, place in tried:
        job, message = submit(lab, place, options)
        reason = ""
        if job:
            starts = place["accepts"] is not False
            wait_until(f"a reason, {options} {place}", partial(has_reason, lab, job, starts))
            reason = queue_reason(lab, job)
            lab.admin("scancel", job)
        accepted = bool(job) and not never_starts(reason)
        if place["accepts"] is not accepted:
            wrong.append((options, place, message, reason))
    assert not wrong, "\n".join(map(str, wrong))


def test_a_script_of_this_machine_is_handed_over_and_a_job_has_its_size(
    clean_slurm: SlurmLab, over_ssh: Program, tmp_path: Path
) -> None:
    script = tmp_path / "train.sh"
    script.write_text("#!/bin/sh\n#SBATCH --gpus=2\n#SBATCH --time=30\nexec sleep 600\n")
    answer = over_ssh("where", str(script), "--format", "json", "--all")
    found = json.loads(answer.text)["places"]
    accepting = [place for place in found if place["accepts"]]
    assert accepting, found
    assert {place["queue"] for place in accepting} == {"gpu"}
    assert {place["estimated_by"] for place in accepting} == {"Slurm"}
    job = clean_slurm.submit("alice", "--partition=gpu", "--gpus=2", "--time=30")
    like = json.loads(over_ssh("where", "--like", job, "--format", "json").text)["places"]
    assert {place["queue"] for place in like if place["accepts"]} == {"gpu"}
    assert "already has a size" in over_ssh("where", str(script), "--gpus", "2").stderr
    assert "already has a size" in over_ssh("where", "--like", job, "--gpus", "2").stderr
    assert "cannot be used together" in over_ssh("where", str(script), "--like", job).stderr
    best = over_ssh("submit", str(script), "--best", "--yes")
    assert best.status == 0, best
    assert "queue gpu" in best.stderr
