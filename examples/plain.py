"""A loop without a framework that survives the night: `python examples/plain.py FOLDER`, again and
again.
"""

import json
import random
import sys
import time
from pathlib import Path

from hpcdash.job import Checkpoints, TrainingGuard

STEPS = 2000


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "run")
    # The switches are the files that HPCDASH_KILL_SWITCH and HPCDASH_SAVE_SWITCH name.
    guard = TrainingGuard(metrics=folder / "metrics.jsonl", save_every_steps=500)
    checkpoints = Checkpoints(folder / "checkpoints", keep=2)

    weight, first = 5.0, 1
    newest = checkpoints.resume_from()
    if newest:
        weight = json.loads((newest.path / "model.json").read_text())
        first = newest.step + 1
        print(f"resumed from {newest.path}", flush=True)

    for step in range(first, STEPS + 1):
        weight -= 0.01 * weight + random.gauss(0, 0.01)
        time.sleep(0.001)
        guard.step(step, loss=weight**2)
        if guard.should_save():
            with checkpoints.saving(step) as path:
                (path / "model.json").write_text(json.dumps(weight))
        if guard.should_stop():
            break
    print(
        f"ended after step {step if first <= STEPS else STEPS}: {guard.stop_reason or 'done'}",
        flush=True,
    )


if __name__ == "__main__":
    main()
