"""A stand-in for a training: a loss that falls, with one spike, in a log like Megatron's.

Polls its two switches.

Standard library alone. HPCDASH_KILL_SWITCH and HPCDASH_SAVE_SWITCH name files: the one ends it, the
other has it save.
"""

import math
import os
import pathlib
import random
import sys
import time

STEPS = int(os.environ.get("STEPS", "4000"))
# Steps before the first view: the curve exists at once.
HEAD_START = int(os.environ.get("HEAD_START", "600"))
SECONDS_A_STEP = float(os.environ.get("SECONDS_A_STEP", "0.1"))
# A chain of runs shares the steps: each takes up the checkpoint of the one before.
STEPS_A_RUN = int(os.environ.get("STEPS_A_RUN", str(STEPS)))
CHECKPOINT = pathlib.Path(os.environ.get("CHECKPOINT", "checkpoint.txt"))
SPIKE_AT = 430


def loss_at(step: int, noise: random.Random) -> float:
    falling = 1.9 + 8.6 * math.exp(-step / 260) + 1.1 * math.exp(-step / 2500)
    spike = 3.2 * math.exp(-((step - SPIKE_AT) ** 2) / 60)
    return falling + spike + noise.gauss(0, 0.035)


def is_there(name: str) -> bool:
    path = os.environ.get(name, "")
    return bool(path) and os.path.exists(path)


def takes_save_switch() -> bool:
    """Whether a save is requested; the file is removed, so that it happens once.

    A kill switch is a person's.
    """
    if not is_there("HPCDASH_SAVE_SWITCH"):
        return False
    os.unlink(os.environ["HPCDASH_SAVE_SWITCH"])
    return True


def save(step: int) -> None:
    CHECKPOINT.write_text(f"{step}\n")
    print(f"saved checkpoint at iteration {step} to {CHECKPOINT}", flush=True)


def main() -> None:
    if is_there("HPCDASH_KILL_SWITCH"):
        print(f"the kill switch {os.environ['HPCDASH_KILL_SWITCH']} is set: nothing is trained")
        return
    noise = random.Random(int(os.environ.get("SLURM_ARRAY_TASK_ID", "7")))
    first = int(CHECKPOINT.read_text()) + 1 if "--resume" in sys.argv and CHECKPOINT.exists() else 1
    last = min(STEPS, first + STEPS_A_RUN - 1)
    print(
        f"training on {os.environ.get('SLURM_JOB_NODELIST', 'this machine')}, from iteration "
        f"{first} to {last}"
    )
    for name in ("HPCDASH_KILL_SWITCH", "HPCDASH_SAVE_SWITCH"):
        if os.environ.get(name):
            print(f"{name}: touch {os.environ[name]}")
    began = time.monotonic()
    for step in range(first, last + 1):
        began, before = time.monotonic(), began
        rate = 3e-4 * min(1.0, step / 200) * (0.1 + 0.45 * (1 + math.cos(math.pi * step / STEPS)))
        throughput = noise.gauss(51_300, 400) * (0.4 if SPIKE_AT <= step < SPIKE_AT + 12 else 1)
        print(
            f" iteration {step:8}/{STEPS:8} | lm loss: {loss_at(step, noise):.6E} | grad norm: "
            f"{abs(noise.gauss(0.9, 0.12)):.3f} | tokens/s: {throughput:.0f} | learning rate: "
            f"{rate:.3E} | elapsed time per iteration (ms): {1000 * (began - before):.1f} | "
            f"consumed samples: {step * 1024:12} |",
            flush=step > HEAD_START,
        )
        is_requested = takes_save_switch()
        if step % 500 == 0 or step == last or is_requested:
            save(step)
        if is_requested:
            print(f"save switch seen: checkpoint saved at step {step}", flush=True)
        if is_there("HPCDASH_KILL_SWITCH"):
            save(step)
            print(f"kill switch seen: checkpoint saved at step {step}, ending", flush=True)
            return
        if step > HEAD_START:
            time.sleep(SECONDS_A_STEP)


main()
