"""`hpcdash jobs --all-clusters` and `where`: several clusters, of which one does not answer."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.embedded.queue_lab import QueueLab
from tests.support.program import Program, home_with
from tests.support.sshd import Sshd, why_no_sshd
from tests.support.waiting import wait_until

_SLEEP = "#!/bin/sh\n#SBATCH --time=30\nexec sleep 600\n"
_CLUSTERS = """
[clusters.desk]
transport = "local"
backend = "local"
[clusters.gone]
transport = "openssh"
ssh = "nobody@127.0.0.1:1"
"""


@pytest.fixture
def person(tmp_path: Path) -> Iterator[Program]:
    """hpcdash with an embedded queue and a cluster that refuses the connection."""
    queue = QueueLab(tmp_path / "queue", tmp_path / "work")
    variables = {"HPCDASH_QUEUE": str(queue.folder), "HPCDASH_STATE": str(tmp_path / "state")}
    program = Program(home_with(tmp_path / "home"), (), variables)
    program.config.parent.mkdir(parents=True, exist_ok=True)
    program.config.write_text(_CLUSTERS)
    yield program
    queue.end()


def test_the_jobs_of_the_clusters_that_answer_are_listed_and_the_others_named(
    person: Program, tmp_path: Path
) -> None:
    script = tmp_path / "sleep.sh"
    script.write_text(_SLEEP)
    job = person("submit", str(script), "--cluster", "desk").text.strip()
    listed = person("jobs", "--all-clusters", "--format", "json")
    assert listed.status == 0
    assert [(row["cluster"], row["id"]) for row in json.loads(listed.text)["jobs"]] == [
        ("desk", job)
    ]
    problems = {one["cluster"]: one["problem"] for one in json.loads(listed.text)["clusters"]}
    assert problems["desk"] is None
    assert problems["gone"]
    assert "gone: " in listed.stderr
    assert not person("jobs", "--all-clusters", "--filter", "cluster:gone").text.splitlines()[1:]
    person("cancel", job, "--cluster", "desk", "--yes")


def test_the_history_and_the_report_are_of_the_clusters_that_answer(
    person: Program, tmp_path: Path
) -> None:
    script = tmp_path / "true.sh"
    script.write_text("#!/bin/sh\nexit 0\n")
    job = person("submit", str(script), "--cluster", "desk").text.strip()
    ended = ("history", "--cluster", "desk", "--format", "json")
    wait_until("the job to end", lambda: bool(json.loads(person(*ended).text)["jobs"]))
    for options in ((), ("--since", "1d")):
        listed = person("history", "--all-clusters", *options, "--format", "json")
        assert listed.status == 0
        rows = json.loads(listed.text)["jobs"]
        assert [(row["cluster"], row["id"], row["state"]) for row in rows] == [
            ("desk", job, "completed")
        ]
        problems = {one["cluster"]: one["problem"] for one in json.loads(listed.text)["clusters"]}
        assert problems["desk"] is None
        assert problems["gone"] in listed.stderr
    assert "desk" in person("history", "--all-clusters").text.splitlines()[1]
    report = person("report", "--all-clusters", "--since", "1d", "--format", "json")
    answer = json.loads(report.text)
    assert [one["cluster"] for one in answer["clusters"] if one["problem"]] == ["gone"]
    assert [(row["key"], row["jobs"]) for row in answer["by_cluster"]] == [("desk", 1)]
    assert answer["total"]["jobs"] == 1
    assert "gone is missing" in answer["notes"]
    assert "gone: " in report.stderr
    table = person("report", "--all-clusters", "--since", "1d", "--format", "table").text
    assert [line.split()[0] for line in table.splitlines()] == ["CLUSTER", "desk", "total"]
    assert person("report", "--all-clusters", "--cluster", "gone").status == 3
    assert person("report", "--by", "cluster", "--cluster", "desk").status == 2


def test_where_ranks_the_places_of_the_clusters_that_answer(person: Program) -> None:
    found = person("where", "--cpus", "1", "--format", "json")
    assert found.status == 0
    assert [(one["cluster"], one["accepts"]) for one in json.loads(found.text)["places"]] == [
        ("desk", True)
    ]
    assert [one["cluster"] for one in json.loads(found.text)["errors"]] == ["gone"]
    refused = person("where", "--gpus", "4", "--cluster", "desk")
    assert refused.status == 1
    assert "never" in refused.text
    assert person("where", "--cpus", "1", "--cluster", "gone").status == 3


@pytest.mark.skipif(why_no_sshd() is not None, reason=str(why_no_sshd()))
def test_a_cluster_is_listed_beside_five_that_cannot_be_used_each_for_its_own_reason(
    person: Program, tmp_path: Path
) -> None:
    sshd = Sshd(tmp_path / "sshd")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        try:
            sshd.start("PubkeyAuthentication no\nPasswordAuthentication yes\n")
            person.config.write_text(
                "[clusters.desk]\nbackend = 'local'\n"
                "[clusters.refuses]\nssh = 'ada@127.0.0.1:1'\n"
                f"[clusters.silent]\nssh = 'ada@127.0.0.1:{silent.getsockname()[1]}'\n"
                f"[clusters.password]\nssh = 'root@127.0.0.1:{sshd.port}'\n"
                f"[clusters.unknown-key]\nssh = 'root@localhost:{sshd.port}'\n"
                "[clusters.nowhere]\nssh = 'ada@nowhere.invalid'\n"
            )
            known = person.home / ".ssh" / "known_hosts"
            known.parent.mkdir(mode=0o700, exist_ok=True)
            known.write_text(f"[127.0.0.1]:{sshd.port} {sshd.host_key_line}\n")
            script = tmp_path / "sleep.sh"
            script.write_text(_SLEEP)
            job = person("submit", str(script), "--cluster", "desk").text.strip()
            listed = person("jobs", "--all-clusters", "--format", "json")
        finally:
            sshd.stop()
    assert listed.status == 0
    rows = [(row["cluster"], row["id"]) for row in json.loads(listed.text)["jobs"]]
    assert rows == [("desk", job)]
    problems = {one["cluster"]: one["problem"] for one in json.loads(listed.text)["clusters"]}
    assert problems.pop("desk") is None
    reasons = {
        "refuses": "refused the connection",
        "silent": "no answer within",
        "password": "not tried: no one is present to answer",
        "unknown-key": "was not accepted",
        "nowhere": "Cannot resolve",
    }
    assert {name: text for name, text in reasons.items() if text in problems[name]} == reasons
    person("cancel", job, "--cluster", "desk", "--yes")


def test_a_job_may_be_named_with_its_cluster(person: Program, tmp_path: Path) -> None:
    script = tmp_path / "sleep.sh"
    script.write_text(_SLEEP)
    job = person("submit", str(script), "--cluster", "desk").text.strip()
    assert person("show", f"{job}@desk", "--format", "json").json["job"]["id"] == job
    assert "Connection refused" in person("show", f"{job}@gone").stderr
    mixed = person("cancel", "--yes", f"{job}@desk", f"{job}@gone")
    assert mixed.status == 2
    assert "different clusters" in mixed.stderr
    assert person("cancel", "--yes", f"{job}@desk").status == 0
    # Another cluster than the chosen one, or none of the configuration: the ID stays as it is.
    assert f"'{job}@gone'" in person("show", f"{job}@gone", "--cluster", "desk").stderr
    assert f"'{job}@nowhere'" in person("show", f"{job}@nowhere", "--cluster", "desk").stderr
