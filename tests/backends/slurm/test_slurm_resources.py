"""Each row of the table from slots to Slurm's options."""

from __future__ import annotations

import pytest

from hpcdash.backends.slurm.script import resource_directives as slurm_resources
from hpcdash.domain.request import Launcher, Request, Site, SlotType
from hpcdash.errors import UsageError
from tests.support.records import for_each

CUDA, ROCM, CPU = SlotType.CUDA, SlotType.ROCM, SlotType.CPU
BOTH, GRES, NEITHER = (
    Site(),
    Site(tres_supported=False),
    Site(tres_supported=False, gres_supported=False),
)


def options(
    slot_type: SlotType, site: Site, slots: int, per_node: int | None = None, **more: str
) -> str:
    request = Request(slots=slots, slots_per_node=per_node, site=site, **more)  # type: ignore[arg-type]
    return " ".join(slurm_resources(request, slot_type).options)


@for_each(
    ("launcher", "site", "per_node", "wanted"),
    [
        (Launcher.PLAIN, Site(), 4, "--cpus-per-gpu=6"),
        (Launcher.PLAIN, Site(), None, "--cpus-per-gpu=6"),
        (Launcher.PLAIN, Site(tres_supported=False), 4, "--cpus-per-task=24"),
        (Launcher.PLAIN, Site(tres_supported=False, gres_supported=False), 4, "--cpus-per-task=24"),
        (Launcher.SRUN, Site(), 4, "--cpus-per-task=6"),
        (Launcher.SRUN, Site(), None, "--cpus-per-task=6"),
    ],
)
def test_cpus_go_with_gpus(
    launcher: Launcher, site: Site, per_node: int | None, wanted: str
) -> None:
    request = Request(
        slots=8, slots_per_node=per_node, cpus_per_gpu=6, launcher=launcher, site=site
    )
    assert slurm_resources(request, SlotType.CUDA).options[-1] == wanted
    assert not [
        one for one in slurm_resources(request, SlotType.CPU).options if "=6" in one or "=24" in one
    ]


@for_each(
    ("slot_type", "site", "slots", "per_node", "wanted"),
    [
        pytest.param(
            CUDA, BOTH, 8, None, "--gpus=8 --nodes=1-8 --tasks-per-node=1", id="cuda tres gres S=8"
        ),
        pytest.param(
            CUDA,
            BOTH,
            8,
            4,
            "--gpus=8 --nodes=1-8 --tasks-per-node=1 --gpus-per-task=4",
            id="cuda tres gres S=8 P=4",
        ),
        pytest.param(
            ROCM, BOTH, 2, None, "--gpus=2 --nodes=1-2 --tasks-per-node=1", id="rocm tres gres S=2"
        ),
        pytest.param(
            CUDA, BOTH, 10, 4, "--nodes=3 --ntasks=3 --gres=gpu:4", id="cuda tres gres S=10 P=4"
        ),
        pytest.param(
            CUDA, GRES, 100, 32, "--nodes=4 --ntasks=4 --gres=gpu:32", id="cuda gres S=100 P=32"
        ),
        pytest.param(
            CUDA, GRES, 100, 16, "--nodes=7 --ntasks=7 --gres=gpu:16", id="cuda gres S=100 P=16"
        ),
        pytest.param(
            CUDA, GRES, 100, None, "--nodes=100 --ntasks=100 --gres=gpu:1", id="cuda gres S=100"
        ),
        pytest.param(CUDA, NEITHER, 8, 4, "--nodes=2 --ntasks=2", id="cuda neither S=8 P=4"),
        pytest.param(
            CUDA, Site(gres_supported=False), 8, 4, "--nodes=2 --ntasks=2", id="cuda tres S=8 P=4"
        ),
        pytest.param(CPU, BOTH, 3, None, "--nodes=3 --ntasks=3", id="cpu tres gres S=3"),
        pytest.param(
            CPU, BOTH, 8, 4, "--nodes=2 --ntasks=2 --cpus-per-task=4", id="cpu tres gres S=8 P=4"
        ),
        pytest.param(CPU, GRES, 3, None, "--nodes=3 --ntasks=3", id="cpu gres S=3"),
        pytest.param(
            CPU, NEITHER, 8, 4, "--nodes=2 --ntasks=2 --cpus-per-task=4", id="cpu neither S=8 P=4"
        ),
        pytest.param(CUDA, BOTH, 0, 4, "--nodes=1 --ntasks=1", id="cuda S=0"),
        pytest.param(CPU, NEITHER, 0, 4, "--nodes=1 --ntasks=1", id="cpu S=0"),
    ],
)
def test_slots_become_options(
    slot_type: SlotType, site: Site, slots: int, per_node: int | None, wanted: str
) -> None:
    assert options(slot_type, site, slots, per_node) == wanted


@for_each("gpu_type", ["a100 --partition=other", "a100#", "a100:2", '"a100"', "-x", "a,b"])
def test_a_type_that_would_say_more_than_a_type_is_refused(gpu_type: str) -> None:
    with pytest.raises(UsageError, match="gpu_type"):
        options(CUDA, BOTH, 8, gpu_type=gpu_type)


@for_each(
    ("slot_type", "site", "slots", "per_node", "wanted"),
    [
        pytest.param(
            CUDA,
            BOTH,
            8,
            None,
            "--gpus=8 --nodes=1-8 --ntasks=8 --gpus-per-task=1",
            id="srun cuda tres gres S=8",
        ),
        pytest.param(
            CUDA,
            BOTH,
            8,
            4,
            "--nodes=2 --ntasks=8 --ntasks-per-node=4 --gres=gpu:4",
            id="srun cuda tres gres S=8 P=4",
        ),
        pytest.param(
            CUDA,
            BOTH,
            10,
            4,
            "--nodes=3 --ntasks=12 --ntasks-per-node=4 --gres=gpu:4",
            id="srun cuda tres gres S=10 P=4",
        ),
        pytest.param(
            CUDA,
            GRES,
            8,
            4,
            "--nodes=2 --ntasks=8 --ntasks-per-node=4 --gres=gpu:4",
            id="srun cuda gres S=8 P=4",
        ),
        pytest.param(
            CUDA,
            GRES,
            3,
            None,
            "--nodes=3 --ntasks=3 --ntasks-per-node=1 --gres=gpu:1",
            id="srun cuda gres S=3",
        ),
        pytest.param(
            CUDA,
            NEITHER,
            8,
            4,
            "--nodes=2 --ntasks=8 --ntasks-per-node=4",
            id="srun cuda neither S=8 P=4",
        ),
        pytest.param(
            CPU, BOTH, 8, 4, "--nodes=2 --ntasks=8 --ntasks-per-node=4", id="srun cpu S=8 P=4"
        ),
        pytest.param(
            CPU, BOTH, 3, None, "--nodes=3 --ntasks=3 --ntasks-per-node=1", id="srun cpu S=3"
        ),
        pytest.param(CUDA, BOTH, 0, 4, "--nodes=1 --ntasks=1", id="srun cuda S=0"),
    ],
)
def test_where_srun_starts_each_rank_a_task_is_a_slot(
    slot_type: SlotType, site: Site, slots: int, per_node: int | None, wanted: str
) -> None:
    request = Request(slots=slots, slots_per_node=per_node, site=site, launcher=Launcher.SRUN)
    assert " ".join(slurm_resources(request, slot_type).options) == wanted


def test_a_type_of_gpu_stands_before_each_number_of_them() -> None:
    assert options(CUDA, BOTH, 8, 4, gpu_type="a100") == (
        "--gpus=a100:8 --nodes=1-8 --tasks-per-node=1 --gpus-per-task=a100:4"
    )
    assert options(CUDA, GRES, 8, 4, gpu_type="a100") == "--nodes=2 --ntasks=2 --gres=gpu:a100:4"


@for_each("kind", ["command", "shell", "notebook"])
def test_what_a_person_sits_before_has_one_node(kind: str) -> None:
    assert options(CUDA, BOTH, 4, None, kind=kind) == "--gpus=4 --nodes=1 --tasks-per-node=1"
    assert options(CUDA, GRES, 4, None, kind=kind) == "--nodes=1 --ntasks=1 --gres=gpu:4"
    srun = Request(slots=4, kind=kind, launcher=Launcher.SRUN)
    assert slurm_resources(srun, CUDA).options == (
        "--gpus=4",
        "--nodes=1",
        "--ntasks=4",
        "--gpus-per-task=1",
    )


def test_slots_given_beyond_those_asked_for_are_told() -> None:
    (warning,) = slurm_resources(Request(slots=100, slots_per_node=32, site=GRES), CUDA).warnings
    assert warning == "4 nodes × 32 GPUs = 128: 28 more than the 100 requested"
    assert slurm_resources(Request(slots=128, slots_per_node=32, site=GRES), CUDA).warnings == ()


def test_tasks_that_do_not_divide_the_gpus_are_told_with_what_is_asked_for_in_their_place() -> None:
    first, second = slurm_resources(Request(slots=10, slots_per_node=4, site=BOTH), CUDA).warnings
    assert "cannot split 10 GPUs into tasks of 4" in first
    assert "2 more than the 10" in second


def test_where_slurm_counts_no_gpus_the_script_has_to_choose_them() -> None:
    (warning,) = slurm_resources(Request(slots=8, slots_per_node=4, site=NEITHER), CUDA).warnings
    assert "CUDA_VISIBLE_DEVICES" in warning
