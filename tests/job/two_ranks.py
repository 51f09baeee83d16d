"""One of two ranks of a training that agree over pipes.

A program: RANK OUT IN, file descriptors of two pipes.
"""

import os
import struct
import sys
import time

from hpcdash.job import MemoryGuard, TrainingGuard

rank, out, into = map(int, sys.argv[1:4])
full_on = os.environ.get("FULL_ON", "")


def all_reduce_max(number: int) -> int:
    os.write(out, struct.pack("i", number))
    (other,) = struct.unpack("i", os.read(into, 4))
    return max(number, other)


step = 0
guard = TrainingGuard(
    all_reduce_max=all_reduce_max,
    rank=rank,
    look_every_seconds=0,
    memory=MemoryGuard(
        host_used=lambda: 99.0 if full_on == str(rank) and step >= 20 else 1.0, every_seconds=0
    ),
)
print("ready", flush=True)
for step in range(1, 100_000):
    time.sleep(0.002)
    guard.step(step)
    if guard.should_save():
        print("saved", step, guard.save_reason, flush=True)
    if guard.should_stop():
        break
print("ended", step, flush=True)
