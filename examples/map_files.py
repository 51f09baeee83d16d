"""A function over the files of a folder on the cluster, one task for each, and what failed.

python examples/map_files.py CLUSTER FOLDER
"""

import sys
from pathlib import Path

import hpcdash


@hpcdash.task(cpus=1, time="10m")
def find_files(folder: str) -> list[str]:
    return sorted(str(path) for path in Path(folder).expanduser().iterdir() if path.is_file())


@hpcdash.task(cpus=1, time="10m", result_format="json")
def count_words(path: str) -> int:
    return len(Path(path).read_text(encoding="utf-8").split())


def main(cluster: str, folder: str) -> None:
    with hpcdash.connect(cluster):
        paths = find_files.submit(folder).result()
        jobs = count_words.map(paths, at_most=8)
        for path, result in zip(paths, jobs.results(return_exceptions=True), strict=True):
            print(f"{path}: {result}")


if __name__ == "__main__":
    main(*sys.argv[1:])
