"""concurrent.futures on a cluster: what takes an executor takes this one.

python examples/executor.py CLUSTER
"""

import sys
from concurrent.futures import as_completed

import hpcdash


def is_prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in range(2, int(number**0.5) + 1))


def main(cluster: str) -> None:
    with hpcdash.Executor(cluster, cpus=1, time="10m", at_most=16) as executor:
        futures = {executor.submit(is_prime, number): number for number in (97, 98, 99, 101)}
        for future in as_completed(futures):
            print(futures[future], future.result())
        # Several calls a task, where each is short.
        print(sum(executor.map(is_prime, range(1000), chunksize=250)), "primes below 1000")


if __name__ == "__main__":
    main(sys.argv[1])
