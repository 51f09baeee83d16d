"""Scripts written for PBS, run by the embedded queue."""

from __future__ import annotations

from tests.embedded.queue_lab import QueueLab


def test_a_pbs_script_runs_unchanged(queue: QueueLab) -> None:
    lines = [
        "#!/bin/bash",
        "#PBS -N sweep",
        "#PBS -l select=1:ncpus=2,walltime=00:10:00",
        "#PBS -J 3-4",
        "#PBS -j oe -o sweep.^array_index^.log",
        "#PBS -v LEVEL=7",
        'cd "$PBS_O_WORKDIR"',
        'echo "$PBS_JOBNAME $PBS_ARRAY_INDEX $PBS_JOBID $NCPUS $LEVEL $PBS_ENVIRONMENT" > "$PBS_ARRAY_INDEX"; pwd',
    ]
    done = queue.run("submit", stdin="\n".join(lines).encode())
    assert done.returncode == 0, done.stderr
    node = queue.ask("probe")["node"]
    for task in (3, 4):
        job = queue.ended(f"1_{task}")
        assert (job.state, job.cpus, job.limit_seconds) == ("completed", 2, 600)
        assert (queue.work / str(task)).read_text() == f"sweep {task} 1[{task}].{node} 2 7 PBS_BATCH\n"
        assert (queue.work / f"sweep.{task}.log").read_text() == f"{queue.work}\n"


def test_a_pbs_script_may_depend_on_a_job_by_its_full_name(queue: QueueLab) -> None:
    first = queue.submit('echo "$SLURM_JOB_ID" > first')
    script = f"#!/bin/sh\n#PBS -W depend=afterok:{first}.server.example\ntest -e first\n"
    assert queue.run("submit", stdin=script.encode()).returncode == 0
    assert queue.ended("2").state == "completed"
