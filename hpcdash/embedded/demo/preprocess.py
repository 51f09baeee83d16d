"""A stand-in for a task of an array: some work, and now and then one that fails as real ones do."""

import os
import sys
import time

task = int(os.environ.get("SLURM_ARRAY_TASK_ID", "1"))
print(f"shard {task}: reading")
for part in range(1, 9):
    time.sleep(0.02)
    print(f"shard {task}: part {part} of 8, {part * 12500} documents", flush=True)
if task == 3:
    raise ValueError(f"shard {task}: line 48213 is not JSON: Expecting ',' delimiter")
if task == 4:
    sys.exit(137)
print(f"shard {task}: written")
