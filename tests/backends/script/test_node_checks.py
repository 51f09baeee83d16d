"""The ready checks of a node: run by a shell, with stand-ins for what a node may lack, and how they
are read.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from hpcdash.backends.script.node_checks import (
    CHECKS,
    checks_text,
    command_text,
    parse_results,
    probe_text,
)
from hpcdash.domain.root_cause import Strength, root_cause

pytestmark = pytest.mark.system
UUID = "GPU-0a1b2c3d-0000-1111-2222-333344445555"
LISTED = f"GPU 0: NVIDIA A100 (UUID: {UUID})"
# The driver's functions, of which one may fail.
CUDA = """
#include <string.h>
static char kept[1 << 26];
int cuInit(int f) { return 0; }
int cuDeviceGetCount(int *n) { *n = 1; return 0; }
int cuDeviceGet(int *d, int n) { *d = n; return 0; }
int cuDeviceGetUuid(unsigned char *u, int d) {
  static const unsigned char one[16] = {0x0a,0x1b,0x2c,0x3d,0,0,0x11,0x11,0x22,0x22,0x33,0x33,0x44,0x44,0x55,0x55};
  memcpy(u, one, 16); return 0; }
int cuCtxCreate_v2(void **c, unsigned f, int d) { return CREATE; }
int cuMemAlloc_v2(void **p, size_t n) { *p = kept; return 0; }
int cuMemsetD32_v2(void *p, unsigned v, size_t n) { for (size_t i = 0; i < n; i++) ((unsigned *)p)[i] = v; return 0; }
int cuMemcpyDtoH_v2(void *to, void *from, size_t n) { memcpy(to, from, n); ((char *)to)[n / 2] ^= FLIP; return 0; }
int cuMemFree_v2(void *p) { return 0; }
int cuCtxDestroy_v2(void *c) { return 0; }
int cuGetErrorName(int e, const char **s) { *s = "CUDA_ERROR_ECC_UNCORRECTABLE"; return 0; }
"""


def run(folder: Path, *names: str, nvidia_smi: str = "", **variables: str) -> tuple[int, list[str]]:
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    if nvidia_smi:
        (programs / "nvidia-smi").write_text(f"#!/bin/sh\n{nvidia_smi}\n")
        (programs / "nvidia-smi").chmod(0o755)
    environment = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "HOME": str(folder),
        "TMPDIR": str(folder),
        **variables,
    }
    ended = subprocess.run(
        ["bash", "-c", checks_text(names)],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert ended.stderr == ""
    return ended.returncode, ended.stdout.splitlines()


@pytest.mark.parametrize(
    ("listed", "status", "said"),
    [
        (f"{UUID}, 3, 81559, 0", 0, "check gpu-memory: ok: 1 with their memory free"),
        (f"{UUID}, 4096, 81559, [N/A]", 1, f"{UUID}: 4096 of 81559 MiB are in use before the job"),
        (f"{UUID}, 3, 81559, 2", 1, f"{UUID}: 2 uncorrected memory errors"),
    ],
)
def test_the_memory_of_gpus_is_looked_at(
    listed: str, status: int, said: str, tmp_path: Path
) -> None:
    program = f'case $1 in -L) echo "{LISTED}" ;; *) echo "{listed}" ;; esac'
    ended, lines = run(tmp_path, "gpu-memory", nvidia_smi=program)
    assert ended == status
    assert lines == [
        f"gpus: {UUID}",
        said if status == 0 else f"hpcdash: the gpu-memory check failed: {said}",
    ]


def test_a_driver_that_fails_is_the_finding(tmp_path: Path) -> None:
    broken = "echo header; echo 'Unable to determine the device handle for GPU'; exit 15"
    status, lines = run(tmp_path, "gpu-memory", nvidia_smi=broken)
    assert status == 1
    assert lines[-1].endswith("check failed: Unable to determine the device handle for GPU")


@pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no compiler")
@pytest.mark.parametrize(
    ("create", "flip", "said"),
    [
        (0, 0, "check cuda: ok: 1 with their memory"),
        (214, 0, f"{UUID}: cuCtxCreate_v2 returned CUDA_ERROR_ECC_UNCORRECTABLE"),
        (0, 1, f"{UUID}: memory returns different bytes than were written"),
    ],
)
def test_each_gpu_is_written_to_and_read_back(
    create: int, flip: int, said: str, tmp_path: Path
) -> None:
    (tmp_path / "cuda.c").write_text(CUDA.replace("CREATE", str(create)).replace("FLIP", str(flip)))
    library = tmp_path / "libcuda.so.1"
    words = ["gcc", "-w", "-shared", "-fPIC", "-o", library, tmp_path / "cuda.c"]
    subprocess.run(words, check=True, capture_output=True)
    status, lines = run(tmp_path, "cuda", LD_LIBRARY_PATH=str(tmp_path))
    assert (status, lines[-1]) == (
        (0, said) if said.startswith("check") else (1, f"hpcdash: the cuda check failed: {said}")
    )


def test_disk_and_clock_are_well_and_leave_nothing(tmp_path: Path) -> None:
    status, lines = run(tmp_path, "disk", "clock")
    assert status == 0, lines
    assert [line.split(":")[0] for line in lines if not line.startswith("gpus")] == [
        "check disk",
        "check clock",
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["bin"]
    status, lines = run(tmp_path, "disk", TMPDIR=str(tmp_path / "missing"))
    assert (status, lines[-1]) == (
        1,
        f"hpcdash: the disk check failed: {tmp_path}/missing does not exist",
    )


def test_what_a_check_says_is_read_by_node_and_is_the_cause(tmp_path: Path) -> None:
    said = [
        f"n1: gpus: {UUID}",
        "n1: check disk: ok: /tmp",
        f"n1: hpcdash: the cuda check failed: {UUID}: cuInit answers X",
        "n2: check nccl: skipped: libnccl.so.2 not found",
        "n3: hpcdash: the clock check failed: no answer within 20 s",
        "n1; rm -rf /: check disk: ok",
        "hpcdash: node n1 failed the probe (status 1): x",
    ]
    results, gpus = parse_results(said)
    assert [(one.node, one.name, one.state, one.text) for one in results] == [
        ("n1", "disk", "ok", "/tmp"),
        ("n1", "cuda", "failed", f"{UUID}: cuInit answers X"),
        ("n2", "nccl", "skipped", "libnccl.so.2 not found"),
        ("n3", "clock", "failed", "no answer within 20 s"),
    ]
    assert (results[1].gpus, gpus) == ((UUID,), {"n1": (UUID,)})
    cause = root_cause(said[2:3] + said[-1:])
    assert cause is not None
    assert (cause.line, cause.strength) == (said[2], Strength.SCHEDULER)


def test_a_probe_of_names_is_their_bash_and_any_other_is_its_own() -> None:
    assert probe_text("cuda, disk") == checks_text(("cuda", "disk"))
    for own in ("test -d /data", "cuda && true", ""):
        assert probe_text(own) == own


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_has_nothing_to_say(tmp_path: Path) -> None:
    for text in (
        checks_text(CHECKS),
        command_text(CHECKS, "$HOSTNAME"),
    ):
        (tmp_path / "x.sh").write_text(f"#!/bin/bash\n{text}")
        words = ["shellcheck", "-e", "SC2016", str(tmp_path / "x.sh")]
        assert subprocess.run(words, capture_output=True, text=True).stdout == ""
