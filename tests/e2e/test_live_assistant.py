"""An assistant on a real Slurm, with hostile names in its queue."""

from __future__ import annotations

from pathlib import Path

from hpcdash.cli.assistant.answers import NOTICE
from tests.support.assistant import assistant
from tests.support.program import program_over_ssh
from tests.support.slurm import SlurmLab, hostile_jobs


async def test_it_submits_explains_and_cancels(clean_slurm: SlurmLab, tmp_path: Path) -> None:
    lab = clean_slurm
    hostile = hostile_jobs(lab, "bob")
    program = program_over_ssh(lab, tmp_path / "home")
    file = program.home / "train.sh"
    file.write_text("#!/bin/bash\n#SBATCH --hold --job-name=train\necho hello\n")
    options = ("--allow", "submit,cancel,release")
    async with assistant(program, *options, answer="accept") as person:
        plan = await person.call("plan_submit", file=str(file))
        job = (await person.call("run_plan", token=plan["token"]))["job_id"]
        why = await person.call("why_pending", job=job)
        assert (why["job"]["state"], why["job"]["name"]) == ("held", "train")
        everyone = await person.call("list_jobs", everyone=True)
        assert everyone["notice"] == NOTICE
        assert {*hostile.values(), job} <= {row["id"] for row in everyone["jobs"]}
        # Another user's job: Slurm refuses what the person accepted.
        other = next(iter(hostile.values()))
        plan = await person.call("plan_cancel", jobs=[other])
        assert [row["id"] for row in plan["jobs"]] == [other]
        [result] = (await person.call("run_plan", token=plan["token"]))["results"]
        assert result["done"] is False
        plan = await person.call("plan_cancel", jobs=[job])
        [result] = (await person.call("run_plan", token=plan["token"]))["results"]
        assert result["done"] is True
        assert (await person.call("list_jobs"))["jobs"] == []
    actions = program("journal", "--format", "json").json["actions"]
    assert [one["verb"] for one in actions] == ["cancel", "cancel", "submit"]
