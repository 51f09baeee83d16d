"""A chain: each job goes on from the checkpoint of the one before it; the last one sums up.

python examples/chain.py CLUSTER FOLDER      # FOLDER on the cluster, for checkpoints
"""

import sys
from pathlib import Path

import hpcdash


@hpcdash.task(cpus=1, time="10m")
def train(steps: int, folder: str, before: int = 0) -> int:
    """Train so many steps more; the step that it came to."""
    from hpcdash.job import Checkpoints

    checkpoints = Checkpoints(folder, keep=2)
    newest = checkpoints.newest()
    start = 0 if newest is None else newest.step
    assert start >= before
    with checkpoints.saving(start + steps) as saving:
        (saving / "weights").write_text(str(start + steps))
    print(f"from step {start} to {start + steps}")
    return start + steps


@hpcdash.task(cpus=1, time="10m")
def report(step: int, folder: str) -> str:
    weights = max(Path(folder).glob("*/weights"), key=lambda file: int(file.read_text()))
    return f"{step} steps, in {weights}"


def main(cluster: str, folder: str) -> None:
    with hpcdash.connect(cluster):
        # A job as an argument is its result there, and waits for it.
        job = train.submit(100, folder)
        for _ in range(2):
            job = train.submit(100, folder, before=job)
        print(report.submit(job, folder).result())


if __name__ == "__main__":
    main(*sys.argv[1:])
