"""The watchdogs on a real Slurm, over its sshd, as a person has them: one round after the other."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.program import Program
from tests.support.slurm import SlurmLab
from tests.support.waiting import wait_until

SILENT = (
    "#!/bin/sh\necho step 1\nwhile [ ! -f go ]; do sleep 0.1; done\nwhile :; do echo step 2; "
    "sleep 0.1; done\n"
)


def told(path: Path) -> list[tuple[str, str]]:
    """(kind, rule) of all alerts that a program got, in their order."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [
        (alert["kind"], alert["rule"]) for line in lines for alert in json.loads(line)["alerts"]
    ]


def test_a_job_that_hangs_over_there_is_told_once_and_that_it_goes_on_once(
    slurm_lab: SlurmLab, over_ssh: Program
) -> None:
    alerts, tell = over_ssh.home / "alerts", over_ssh.home / "tell"
    tell.write_text(f"#!/bin/sh\ncat >> {alerts}; echo >> {alerts}\n")
    tell.chmod(0o755)
    over_ssh.config.parent.mkdir(parents=True)
    over_ssh.config.write_text(
        f"""
        [[watch.hanging]]
        name = "silent"
        limit_seconds = 2
        [[watch.chains]]
        name = "silent"
        [[watch.running]]
        name = "silent"
        [[watch.storage]]
        path = "{slurm_lab.work_dir("alice")}"
        share = 0.001
        [[watch.command]]
        argv = ["{tell}"]
        """
    )
    go = slurm_lab.work_dir("alice") / "go"
    go.unlink(missing_ok=True)
    job = slurm_lab.submit("alice", "--job-name=silent", "--output=silent-%j.out", script=SILENT)
    try:
        slurm_lab.wait_state(job, "RUNNING")

        def is_told(kind: str) -> bool:
            run = over_ssh("watch", "--once")
            assert run.status == 0, run
            assert f"PULSE: silent ({job}) has been running for " in run.text
            return (kind, "is-hanging") in told(alerts)

        wait_until("the alert", lambda: is_told("raised"))
        go.touch()
        wait_until("its end", lambda: is_told("recovered"))
        over_ssh("watch", "--once")
        found = told(alerts)
        assert [kind for kind, rule in found if rule == "is-hanging"] == ["raised", "recovered"]
        assert found.count(("raised", "no-successor")) == 1
        assert 1 <= found.count(("raised", "storage")) <= 2
    finally:
        slurm_lab.admin("scancel", job, check=False)
        go.unlink(missing_ok=True)
        for path in slurm_lab.work_dir("alice").glob("silent-*.out"):
            path.unlink()


def test_cron_with_the_watchdogs_where_hpcdash_is_not_installed_is_refused_and_submits_nothing(
    over_ssh: Program,
) -> None:
    said = over_ssh("cron", "--install", "--watch", "--every", "1d").refused(2)
    assert "hpcdash is not installed on" in said
    assert "submits" not in said
