"""Callbacks in the job and here, and the context of a distributed task.

python examples/callbacks.py CLUSTER
"""

import os
import sys

from hpcdash import (
    BaseCallback,
    CompletedContext,
    JobContext,
    RunBeginContext,
    RunEndContext,
    connect,
    task,
)


class Telemetry(BaseCallback):
    """Prints to the job's log what happens there, and here how the scheduler says it ended."""

    requires_runner_transport = True

    def on_begin_run_job_ctx(self, ctx: RunBeginContext) -> None:
        print(f"rank {ctx.job_context.rank} begins on {ctx.hostname}", flush=True)

    def on_end_run_job_ctx(self, ctx: RunEndContext) -> None:
        print(f"{ctx.status} after {ctx.duration_seconds:.1f} s", flush=True)

    def on_completed_ctx(self, ctx: CompletedContext) -> None:
        print(f"{ctx.emitted_by}: job {ctx.job_id} ended with {ctx.status}", flush=True)


@task(time="00:10:00", mem="1G", cpus_per_task=1, callbacks=[Telemetry()])
def train(epochs: int, *, job: JobContext) -> dict:
    os.environ.update(job.torch_distributed_env())
    return {"epochs": epochs, "master": os.environ["MASTER_ADDR"], "output": str(job.output_dir)}


def main(cluster: str) -> None:
    with connect(cluster):
        job = train.submit(3)
        print(job.result())
        print(job.logs(), end="")
        # The scheduler tells of the end a moment later.
        job.wait()


if __name__ == "__main__":
    main(sys.argv[1])
