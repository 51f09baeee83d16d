"""A sweep: one array, at most four at once, the best result in a table.

python examples/sweep.py CLUSTER
"""

import sys

import hpcdash


@hpcdash.task(cpus=1, time="10m", memory="500M")
def train(lr: float, width: int) -> dict[str, float]:
    """A loss that is lowest at lr 0.01."""
    loss = (lr - 0.01) ** 2 * 1e4 + 1 / width
    print(f"lr {lr} width {width} loss {loss:.4f}")
    return {"lr": lr, "width": width, "loss": loss}


def main(cluster: str) -> None:
    grid = [{"lr": lr, "width": width} for lr in (0.1, 0.01, 0.001) for width in (64, 256)]
    with hpcdash.connect(cluster):
        jobs = train.map(grid, at_most=4)
        print(f"array {jobs.id}, in {jobs.folder}")
        results = jobs.results(return_exceptions=True)
    for config, result in zip(grid, results, strict=True):
        print(config, "failed:" if isinstance(result, BaseException) else "", result)
    best = min((one for one in results if isinstance(one, dict)), key=lambda one: one["loss"])
    print(f"best: lr {best['lr']}, width {best['width']}")


if __name__ == "__main__":
    main(sys.argv[1])
