"""Writes the made-up logs and scripts of two recorded cases: `python -m tests.support.case_files`.

The schedulers' answers in `training` are those of `everyday`; what its jobs wrote, and their
scripts, are made up.
"""

from __future__ import annotations

import math
import random
from pathlib import Path

FIXTURES = Path(__file__).parents[2] / "fixtures"
SLURM = FIXTURES / "slurm" / "22.05" / "training"
PBS = FIXTURES / "pbs" / "23.06" / "training"
FOLDER = "home/maya/vision"

_HEAD = """\
2026-11-19 11:39:51,204 INFO train: world size 8, node {node}, torch 2.1.2, CUDA 12.1
2026-11-19 11:39:52,118 INFO train: reading /scratch/maya/{data}, 1281167 images
2026-11-19 11:39:58,930 WARNING dataloader: 4 workers for 12 cores a GPU; more may be faster
2026-11-19 11:40:03,377 INFO train: resumed {run}/checkpoints/last.pt at step {first}
"""
_SIGNAL_ERROR = "torch.distributed.elastic.multiprocessing.api.SignalException"
_TRACEBACK = """\
Traceback (most recent call last):
  File "{folder}/train.py", line 214, in <module>
    main(parse_arguments())
  File "{folder}/train.py", line 187, in main
    loss = step(model, batch, scaler)
  File "{folder}/engine.py", line 61, in step
    scaler.scale(loss).backward()
{end}
"""


def training(
    node: str,
    data: str,
    run: str,
    first: int,
    last: int,
    *,
    seed: int,
    spike: int = 0,
    every: int = 20,
) -> str:
    """A log with a line every so many steps, a validation now and then, and a loss that spikes
    where it is told to.
    """
    noise = random.Random(seed)
    lines = [_HEAD.format(node=node, data=data, run=f"/{FOLDER}/{run}", first=first).rstrip("\n")]
    for step in range(first, last + 1, every):
        loss = 0.42 + 5.4 * math.exp(-step / 9000) + noise.gauss(0, 0.012)
        if spike and 0 <= step - spike < 6 * every:
            loss += 1.8 * (1 - (step - spike) / (6 * every))
        grad = abs(noise.gauss(0.8, 0.1)) * (6 if step == spike else 1)
        rate = 1.5e-4 * 0.5 * (1 + math.cos(math.pi * min(step, 60000) / 60000))
        lines.append(
            f"step {step} loss {loss:.4f} grad_norm {grad:.3f} lr {rate:.3e} "
            f"images/s {noise.gauss(2840, 25):.0f} mem 61.{noise.randrange(2, 9)} GiB"
        )
        if spike and step == spike:
            lines.append(
                "2026-11-20 02:17:44,051 WARNING train: gradient norm above 4, clipped to 1.0"
            )
        if step and step % 4000 == 0:
            lines.append(
                f"eval step {step} val_loss {loss + 0.06:.4f} top1 "
                f"{74.1 + 6 * (1 - math.exp(-step / 8000)):.2f} %"
            )
            lines.append(
                f"2026-11-20 06:00:00,000 INFO train: saved /{FOLDER}/{run}/checkpoints/{step}.pt "
                "(3.6 GiB, 8.4 s)"
            )
    return "\n".join(lines) + "\n"


def sweep(task: int, rate: float, steps: int, *, ending: str = "") -> str:
    noise = random.Random(task)
    lines = [f"INFO sweep: task {task} of 24, lr={rate:g}"]
    for step in range(0, steps, 50):
        loss = 2.0 + 4 * math.exp(-step * rate * 12) + noise.gauss(0, 0.02)
        lines.append(
            f"step {step} loss {'nan' if ending and step >= steps - 100 else f'{loss:.4f}'} lr "
            f"{rate:.1e}"
        )
    return "\n".join(lines) + "\n" + ending


def script(name: str, queue: str, directives: list[str], command: str) -> str:
    head = "\n".join(
        f"#SBATCH {one}" for one in (f"--job-name={name}", f"--partition={queue}", *directives)
    )
    return f"""#!/bin/bash
{head}
#SBATCH --output=logs/%x-%j.out

set -euo pipefail
source ~/envs/vision/bin/activate
export OMP_NUM_THREADS="$SLURM_CPUS_PER_TASK"

srun {command}
"""


def slurm_files() -> dict[str, str]:
    folder = f"/{FOLDER}/sweep"
    nan = "ERROR train: loss is nan for 100 steps\n" + _TRACEBACK.format(
        folder=folder, end="FloatingPointError: loss is nan at step 1150 (lr 3.0e-03)"
    )
    rates = [1e-4, 3e-4, 3e-3, 5e-4, 8e-4, 1e-3, 2e-4, 6e-4, 1.2e-3]
    logs = dict(zip(range(1, 10), (14, 15, 16, 17, 18, 19, 32, 33, 34), strict=True))
    files = {
        f"{FOLDER}/sweep/logs/lr-sweep-{number}.out": sweep(
            task, rates[task - 1], 1200, ending=nan if task == 3 else ""
        )
        for task, number in logs.items()
    }
    return files | {
        f"{FOLDER}/pretrain/logs/mae-vit-l-pretrain-6.out": training(
            "g07", "imagenet-1k", "pretrain/run_12", 18000, 29140, seed=6, spike=24600
        ),
        f"{FOLDER}/finetune/logs/swin-v2-finetune-71.out": training(
            "g06", "imagenet-1k", "finetune/swin_3", 0, 5200, seed=71
        ),
        f"{FOLDER}/finetune/logs/dinov2-finetune-44.out": training(
            "g08", "inaturalist", "finetune/dino_9", 2000, 9600, seed=44
        ),
        f"{FOLDER}/finetune/logs/dinov2-linear-probe-55.out": training(
            "g03", "places365", "finetune/probe_2", 0, 3600, seed=55
        ),
        f"{FOLDER}/convnext/logs/convnext-v2-in22k-21.out": training(
            "g04", "imagenet-22k", "convnext/run_4", 6000, 14800, seed=21, spike=11000
        ),
        f"{FOLDER}/prep/logs/dedup-images-74.out": "".join(
            f"INFO dedup: shard {shard:04d} of 1024, {shard % 37 + 3} duplicates, "
            f"{1.8 + shard % 5 / 10:.1f} s\n"
            for shard in range(620)
        ),
        f"{FOLDER}/prep/logs/plot-figures-76.out": "INFO plot: wrote 12 figures to "
        "/home/maya/vision/prep/figures\n",
        f"{FOLDER}/prep/logs/tokenize-laion-9.out": "".join(
            f"INFO tokenize: shard {shard:05d}, {3.1 + shard * 0.41:.1f} GiB resident\n"
            for shard in range(150)
        )
        + "slurmstepd: error: Detected 1 oom_kill event in StepId=9.batch. "
        "Some of the step tasks have been OOM Killed.\n",
        f"{FOLDER}/segv/logs/decord-build-52.out": "INFO build: ninja -j 8\n"
        "[41/97] Building CXX object video_reader.o\n"
        "/var/spool/slurmd/job00052/slurm_script: line 12: 81234 Segmentation fault "
        "     (core dumped) python check.py\n",
        f"{FOLDER}/convnext/logs/export onnx-22.out": "/var/spool/slurmd/job00022/slurm_script: "
        "line 9: "
        "onnx-export: command not found\nsrun: error: g04: task 0: Exited with exit code 127\n",
        f"{FOLDER}/timeouts/logs/vit-h14-ablation-1.out": training(
            "g02", "imagenet-1k", "timeouts/ablation", 0, 2400, seed=1
        )
        + (
            "slurmstepd: error: *** JOB 1 ON g02 CANCELLED AT 2026-11-17T14:20:04 DUE TO TIME "
            "LIMIT "
            "***\n"
        ),
        f"{FOLDER}/eval/logs/eval-checkpoints-51.out": "".join(
            f"INFO eval: checkpoints/{step}.pt top1 {71 + step / 6000:.2f} % top5 "
            f"{90 + step / 12000:.2f} %\n"
            for step in range(4000, 28001, 4000)
        ),
    }


def slurm_scripts() -> dict[str, str]:
    """By job id: what `scontrol write batch_script` prints."""
    gpus = [
        "--gres=gpu:h100:8",
        "--nodes=1",
        "--cpus-per-task=96",
        "--mem=900G",
        "--time=7-00:00:00",
    ]
    return {
        "6": script(
            "mae-vit-l-pretrain",
            "gpu",
            [*gpus, "--signal=USR1@300"],
            "python train.py --config mae_vit_l.yaml",
        ),
        "71": script(
            "swin-v2-finetune",
            "gpu",
            ["--gres=gpu:2", "--time=1-00:00:00"],
            "python train.py --config swin.yaml",
        ),
        "13_3": script(
            "lr-sweep",
            "gpu",
            ["--array=1-24%4", "--gres=gpu:1"],
            'python train.py --lr "${RATES[$SLURM_ARRAY_TASK_ID]}"',
        ),
    }


def pbs_files() -> dict[str, str]:
    folder = "/home/alice/work"
    failed = _TRACEBACK.format(
        folder=folder, end="ValueError: batch of 7 does not divide by 2 GPUs"
    )
    files = {
        "home/alice/work/direct.o2": training(
            "cn01", "imagenet-1k", "run_2", 0, 6400, seed=2, spike=3600
        ).replace("maya", "alice"),
        "home/alice/work/direct.e2": "",
        "home/alice/work/sleep.sh": "#!/bin/sh\n#PBS -q workq\n"
        'cd "$PBS_O_WORKDIR"\nexec python3 train.py --steps 20000\n',
        "home/alice/work/arr.sh": '#!/bin/sh\ncd "$PBS_O_WORKDIR"\nexec python3 train.py --seed '
        '"$PBS_ARRAY_INDEX"\n',
        "home/alice/work/sim.o29": "INFO sim: 2 ranks on cn01, cn02\nstep 100 residual 1.4e-03\n"
        + _TRACEBACK.format(folder=folder, end=f"{_SIGNAL_ERROR}: Process 71234 got signal: 15"),
    }
    for name, number, indices in (
        ("arr", 12, range(1, 11)),
        ("arrthr", 14, range(1, 6)),
        ("arrdep", 15, range(1, 4)),
    ):
        for index in indices:
            bad = index == 2
            files[f"home/alice/work/{name}.o{number}.{index}"] = sweep(
                index, 4e-4 + index / 1e4, 800
            )
            files[f"home/alice/work/{name}.e{number}.{index}"] = failed if bad else ""
    return files


def write_files() -> None:
    for case, files in ((SLURM, slurm_files()), (PBS, pbs_files())):
        for path, text in files.items():
            file = case / "files" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
    for job_id, text in slurm_scripts().items():
        (SLURM / "jobs" / f"{job_id.replace('_', '-')}-script.out").write_text(
            text, encoding="utf-8"
        )


if __name__ == "__main__":
    write_files()
