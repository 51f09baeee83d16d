"""Of a failed launch's stderr as much is shown as tells why, and always the line that does."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcdash.backends.pbs.script import preamble as pbs_preamble
from hpcdash.backends.script.containers.login import source_login
from hpcdash.backends.script.folder import CONTAINER_UP
from hpcdash.backends.slurm.script import preamble as slurm_preamble
from hpcdash.domain.request import Launcher
from hpcdash.domain.root_cause import root_cause
from hpcdash.services.jobs.failures import MAX_LINES, failure_excerpt, hosts_up
from hpcdash.services.logs.lines import shown_line
from tests.support.records import for_each

FRAME = '  File "/home/alice/train.py", line 12, in main\n    main()'
CUDA = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
    "capacity of 39.39 GiB"
)
PEER = (
    "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1970, remote "
    "process exited"
)
CLOSING = (
    "W1121 15:32:42.123000 4711 torch/distributed/elastic/multiprocessing/api.py:900] "
    "Sending process 4801 closing signal SIGTERM"
)
TIME_LIMIT = (
    "slurmstepd: error: *** JOB 12 ON n01 CANCELLED AT 2026-11-21T15:32:42 DUE TO TIME LIMIT ***"
)
NODE_FAILURE = TIME_LIMIT.replace("TIME LIMIT", "NODE FAILURE, SEE SLURMCTLD LOG")
NO_MANIFEST = "reading manifest 9 in docker.io/org/app: manifest unknown"
FATAL = (
    "FATAL:   While making image from oci registry: error fetching image to cache: failed to get "
    "checksum for "
    f"docker://org/app:9: {NO_MANIFEST}"
)
ENROOT = (
    "[ERROR] URL https://registry-1.docker.io/v2/org/app/manifests/9 returned error code: "
    "401 Unauthorized"
)
CHAINED = "\n\nDuring handling of the above exception, another exception occurred:\n\n"
DRAWN = (
    "╭──── Traceback (most recent call last) ────╮\n│ /home/alice/train.py:12 in main │\n╰─────╯\n"
)
FAILED = (
    "E1121 15:32:43.123000 4711 torch/distributed/elastic/multiprocessing/api.py:874] "
    "failed (exitcode: 1) local_rank: 3 (pid: 4802) of binary: /usr/bin/python3"
)


def shown(raw: bytes) -> list[str]:
    return [shown_line(line).text for line in raw.split(b"\n")]


def traceback(exception: str, prefix: str = "") -> str:
    lines = f"Traceback (most recent call last):\n{FRAME}\n{exception}".split("\n")
    return "\n".join(prefix + line for line in lines)


def table(
    rank: int, why: str, *, others: int = 7, time: str = "2026-11-21_15:32:42", code: int = 1
) -> str:
    """What torchrun prints when its workers have failed."""

    def failure(place: int, number: int, said: str) -> str:
        return (
            f"[{place}]:\n  time      : {time}\n  host      : n01\n  rank      : {number} "
            f"(local_rank: {number})\n"
            f"  exitcode  : {code} (pid: 48{number:02d})\n  error_file: <N/A>\n  traceback : {said}"
        )

    ask = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
    rest = "\n".join(failure(place + 1, 10 + place, ask) for place in range(others))
    return (
        traceback("torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ")
        + (
            f"\n{'=' * 60}\ntrain.py "
            f"FAILED\n{'-' * 60}\nFailures:\n{rest or '  <NO_OTHER_FAILURES>'}\n{'-' * 60}\n"
        )
        + f"Root Cause (first observed failure):\n{failure(0, rank, why or ask)}\n{'=' * 60}"
    )


RECORDED = f"Traceback (most recent call last):\n  {FRAME}\n  ValueError: batch 12 has no labels"
LOGS: dict[str, tuple[str, str]] = {
    "a traceback": (
        f"step 1\n{traceback('ValueError: nan in the loss')}\n",
        "ValueError: nan in the loss",
    ),
    "an exception without words": (traceback("AssertionError"), "AssertionError"),
    "an exception of another's name": (
        traceback("mylib.Diverged: step 3"),
        "mylib.Diverged: step 3",
    ),
    "a message of several lines": (
        traceback(
            "RuntimeError: Error(s) in loading state_dict for Net:\n\tsize mismatch for fc.weight"
        ),
        "RuntimeError: Error(s) in loading state_dict for Net:",
    ),
    "a failure while another was handled": (
        traceback("KeyError: 3") + CHAINED + traceback("RuntimeError: no shard 3"),
        "RuntimeError: no shard 3",
    ),
    "a drawn traceback": (
        f"{DRAWN}KeyError: 'lr'",
        "KeyError: 'lr'",
    ),
    "a missing module": (
        traceback("ModuleNotFoundError: No module named 'torch'")
        + "\nsrun: error: n01: task 0: Exited with exit code 1",
        "ModuleNotFoundError: No module named 'torch'",
    ),
    "python -m": (
        "/usr/bin/python3: No module named trainer\n",
        "/usr/bin/python3: No module named trainer",
    ),
    "ranks that lost their peer first in the log": (
        traceback(PEER, "[rank0]: ")
        + "\n"
        + traceback(CUDA, "[rank3]: ")
        + "\n"
        + traceback(PEER, "[rank1]: "),
        f"rank 3: {CUDA}",
    ),
    "ranks whose lines are mixed": (
        "\n".join(
            f"{one}\n{other}"
            for one, other in zip(
                traceback(PEER, "0: ").split("\n"),
                traceback("OSError: shard 7 is gone", "1: ").split("\n"),
                strict=True,
            )
        ),
        "rank 1: OSError: shard 7 is gone",
    ),
    "of several ranks that failed by themselves the first": (
        "\n".join(
            traceback(f"ValueError: rank {rank} of 4", f"[rank{rank}]: ") for rank in (2, 0, 1, 3)
        ),
        "rank 2: ValueError: rank 2 of 4",
    ),
    "torchrun, the rank in its table": (
        "\n".join(traceback(f"ValueError: of {rank}", f"[rank{rank}]: ") for rank in (0, 3))
        + f"\n{CLOSING}\n{FAILED}\n{table(3, '')}",
        "rank 3: ValueError: of 3",
    ),
    "torchrun, the traceback in its table": (
        f"{FAILED}\n{table(3, RECORDED)}",
        "rank 3: ValueError: batch 12 has no labels",
    ),
    "torchrun on two nodes, the earlier of two tables": (
        table(9, RECORDED.replace("12", "9"), time="2026-11-21_15:32:50")
        + "\n"
        + table(2, RECORDED, time="2026-11-21_15:32:41"),
        "rank 2: ValueError: batch 12 has no labels",
    ),
    "torchrun, one was killed": (
        f"{CLOSING}\n{table(3, 'Signal 9 (SIGKILL) received by PID 4803', code=-9)}",
        "rank 3: Signal 9 (SIGKILL) received by PID 4803",
    ),
    "torchrun without prefixes": (
        f"{traceback(CUDA)}\n{CLOSING}\n{traceback(PEER)}\n{FAILED}\n{table(0, '')}\n"
        "srun: error: n01: task 0: Exited with exit code 1",
        CUDA,
    ),
    "CUDA out of memory, logged": (
        "[ERROR]: CUDA out of memory. Tried to allocate 2 GiB\n",
        "CUDA out of memory. Tried to allocate 2 GiB",
    ),
    "the scheduler killed for memory": (
        f"{traceback(PEER)}\nslurmstepd: error: Detected 1 oom_kill event in StepId=12.0. "
        "Some of the step tasks have been OOM Killed.\nsrun: error: n01: task 3: Out Of Memory\n"
        "srun: Terminating StepId=12.0\nslurmstepd: error: *** STEP 12.0 ON n01 CANCELLED AT "
        "2026-11-21T15:32:42 ***",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=12.0. Some of the step tasks have "
        "been OOM Killed.",
    ),
    "the same, of Slurm 20": (
        "slurmstepd: error: Detected 1 oom-kill event(s) in step 12.batch cgroup. Some of your "
        "processes may have been "
        "killed by the cgroup out-of-memory handler.",
        "slurmstepd: error: Detected 1 oom-kill event(s) in step 12.batch cgroup. Some of your "
        "processes may have been "
        "killed by the cgroup out-of-memory handler.",
    ),
    "a task out of memory": (
        "srun: error: n01: tasks 1-3: Out Of Memory",
        "srun: error: n01: tasks 1-3: Out Of Memory",
    ),
    "a time limit": (
        f"{TIME_LIMIT}\n{traceback('KeyboardInterrupt')}",
        TIME_LIMIT,
    ),
    "a node that failed": (
        NODE_FAILURE,
        NODE_FAILURE,
    ),
    "PBS's time limit": (
        "loading\n=>> PBS: job killed: walltime 65 exceeded limit 60\n",
        "=>> PBS: job killed: walltime 65 exceeded limit 60",
    ),
    "an exit code alone": (
        "srun: error: n01: task 3: Exited with exit code 1\nsrun: Terminating StepId=12.0\n"
        "slurmstepd: error: *** STEP 12.0 ON n01 CANCELLED AT 2026-11-21T15:32:42 ***\n"
        "srun: error: n02: tasks 0-2: Terminated\n",
        "srun: error: n01: task 3: Exited with exit code 1",
    ),
    "an exit code, after the containers came up": (
        f"{CONTAINER_UP}n01\n{CONTAINER_UP}n02\nsrun: error: n02: task 1: Exited with exit "
        "code 1\n",
        "srun: error: n02: task 1: Exited with exit code 1",
    ),
    "the program's own words before it": (
        "config: lr is missing\nsrun: error: n01: task 3: Exited with exit code 1\n",
        "config: lr is missing",
    ),
    "a program that is not there": (
        "/var/spool/slurmd/job00012/slurm_script: line 4: nvidia-smi: command not found\n",
        "line 4: nvidia-smi: command not found",
    ),
    "a program that is not there, in dash's words": (
        "/var/spool/slurmd/job00012/slurm_script: 4: nvidia-smi: not found\n",
        "line 4: nvidia-smi: not found",
    ),
    "a program that is not there, on PBS": (
        "/var/spool/pbs/mom_priv/jobs/12.pbs01.SC: line 4: nvidia-smi: command not found\n",
        "line 4: nvidia-smi: command not found",
    ),
    "a program that srun does not find": (
        "slurmstepd: error: execve(): ./train: No such file or directory\n"
        "srun: error: n01: task 0: Exited with exit code 2\n",
        "slurmstepd: error: execve(): ./train: No such file or directory",
    ),
    "a file that is not there": (
        "python: can't open file '/home/alice/trian.py': [Errno 2] No such file or directory\n",
        "python: can't open file '/home/alice/trian.py': [Errno 2] No such file or directory",
    ),
    "a step that cannot be": (
        "srun: error: Unable to create step for job 12: More processors requested than permitted",
        "srun: error: Unable to create step for job 12: More processors requested than permitted",
    ),
    "apptainer": (
        f"INFO:    Converting OCI blobs to SIF format\n{FATAL}\nsrun: error: n01: task 0: Exited "
        "with exit code 255",
        FATAL.replace("   ", " "),
    ),
    "podman": (
        "Trying to pull docker.io/org/app:9...\nError: initializing source docker://org/app:9: "
        "reading manifest 9 in "
        "docker.io/org/app: unauthorized: authentication required",
        "Error: initializing source docker://org/app:9: reading manifest 9 in docker.io/org/app: "
        "unauthorized: "
        "authentication required",
    ),
    "enroot": (f"[INFO] Fetching image manifest list\n{ENROOT}", ENROOT),
    "no permission": (
        "bash: line 3: ./train.sh: Permission denied",
        "bash: line 3: ./train.sh: Permission denied",
    ),
    "quota": (
        "cp: error writing 'model.pt': Disk quota exceeded\nsrun: error: n01: task 0: Exited with "
        "exit code 1",
        "cp: error writing 'model.pt': Disk quota exceeded",
    ),
    "a full disk": (
        traceback("OSError: [Errno 28] No space left on device: '/scratch/model.pt'"),
        "OSError: [Errno 28] No space left on device: '/scratch/model.pt'",
    ),
    "a segmentation fault": (
        "/var/spool/slurmd/job00012/slurm_script: line 7:  4711 Segmentation fault      (core "
        "dumped) ./solve\n",
        "line 7: 4711 Segmentation fault (core dumped) ./solve",
    ),
    "a task that crashed, and its peers": (
        "n01:4711:4720 [0] NCCL WARN Call to recv from 10.0.0.2 failed : Connection reset by peer\n"
        "srun: error: n02: task 1: Segmentation fault (core dumped)\nsrun: error: n01: task 0: "
        "Aborted",
        "srun: error: n02: task 1: Segmentation fault (core dumped)",
    ),
    "a bus error": (
        "Fatal Python error: Bus error\n\nThread 0x00007f2218f1fb50:\n",
        "Fatal Python error: Bus error",
    ),
    "NCCL that waits": (
        "[rank6]:[E1121 16:48:25.441526059 ProcessGroupNCCL.cpp:1896] [PG ID 0 Rank 6] Process "
        "group watchdog thread "
        "terminated with exception: [Rank 6] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=12)\n"
        "Exception raised from checkTimeout at ProcessGroupNCCL.cpp:635 (most recent call first):\n"
        + "\n".join(
            f"frame #{number}: <unknown function> + 0xdc253 (0x7f36 in libstdc++.so.6)"
            for number in range(30)
        ),
        "rank 6: [PG ID 0 Rank 6] Process group watchdog thread terminated with exception: [Rank "
        "6] Watchdog caught "
        "collective operation timeout: WorkNCCL(SeqNum=12)",
    ),
    "NCCL": (
        "n01:4711:4720 [0] NCCL WARN Connect to 10.0.0.2<33445> failed : Software caused "
        "connection abort\n",
        "n01:4711:4720 [0] NCCL WARN Connect to 10.0.0.2<33445> failed : Software caused "
        "connection abort",
    ),
    "a C assertion": (
        "solve: mesh.c:88: refine: Assertion `depth < 12' failed.\nsrun: error: n01: task 0: "
        "Aborted (core dumped)",
        "solve: mesh.c:88: refine: Assertion `depth < 12' failed.",
    ),
    "C++": (
        "terminate called after throwing an instance of 'std::runtime_error'\n  what():  no mesh\n",
        "what(): no mesh",
    ),
    "MPI": (
        "-" * 60 + "\nMPI_ABORT was invoked on rank 3 in communicator MPI_COMM_WORLD\n" + "-" * 60,
        "MPI_ABORT was invoked on rank 3 in communicator MPI_COMM_WORLD",
    ),
    "MPI, and what the program said": (
        "mesh.h5: No such file or directory: mesh.h5: No such file or directory\n"
        "MPI_ABORT was invoked on rank 3 in communicator MPI_COMM_WORLD\n",
        "mesh.h5: No such file or directory: mesh.h5: No such file or directory",
    ),
    "a library": (
        "./solve: error while loading shared libraries: libmpi.so.40: cannot open shared object "
        "file: No such file",
        "./solve: error while loading shared libraries: libmpi.so.40: cannot open shared object "
        "file: No such file",
    ),
    "a module": (
        'Lmod has detected the following error:  The following module(s) are unknown: "cuda/99"\n',
        'Lmod has detected the following error: The following module(s) are unknown: "cuda/99"',
    ),
    "what was complained of and lived with": (
        "bash: line 2: module: command not found\n"
        + "".join(f"step {number}\n" for number in range(40))
        + "diverged\n",
        "diverged",
    ),
    "colours": ("\x1b[31mValueError\x1b[0m: \x1b[1mnan\x1b[0m\n", "ValueError: nan"),
    "times before lines": (
        traceback("ValueError: nan", "2026-11-21 15:32:42,123 ")
        + "\n2026-11-21 15:32:43 srun: error: n01: task 0: "
        "Exited with exit code 1",
        "ValueError: nan",
    ),
    "times and ranks": (
        traceback("ValueError: nan", "[2026-11-21T15:32:42.123] 11: "),
        "rank 11: ValueError: nan",
    ),
    "Open MPI's marks": (
        traceback("ValueError: nan", "[1,3]<stderr>: "),
        "rank 3: ValueError: nan",
    ),
    "progress": ("  0%|     | 0/10\r 10%|#    | 1/10\rValueError: nan\n", "ValueError: nan"),
    "nothing": ("\n\n", ""),
}


@for_each(("log", "why"), LOGS.values(), ids=LOGS)
def test_the_line_that_says_why_is_told(log: str, why: str) -> None:
    assert failure_excerpt(shown(log.encode())).text == why


def lines(count: int) -> list[str]:
    return [f"step {number}" for number in range(count)]


@for_each(
    ("containers", "up", "debug", "count"),
    [
        (0, None, False, 15),
        (2, 2, False, 15),
        (2, 2, True, 100),
        (2, 1, False, 500),
        (2, None, False, 500),
    ],
)
def test_a_command_that_was_started_shows_its_last_lines_and_one_that_was_not_all(
    containers: int, up: int | None, debug: bool, count: int
) -> None:
    excerpt = failure_excerpt(lines(900), containers=containers, up=up, debug=debug)
    assert len(excerpt.lines) == count
    assert excerpt.lines[-1] == "step 899"


def test_the_hosts_whose_containers_are_up_are_counted_once_each() -> None:
    said = [
        f"{prefix}{CONTAINER_UP}{host}"
        for prefix, host in (("", "n01"), ("1: ", "n02"), ("", "n01"))
    ]
    assert hosts_up([*said, "loading", CONTAINER_UP]) == {"n01", "n02"}
    assert len(failure_excerpt([*said, *lines(100)], containers=2).lines) == 15
    assert len(failure_excerpt([*said, *lines(100)], containers=3).lines) == 103


def test_the_line_that_says_why_is_shown_where_it_is_further_up() -> None:
    bad = traceback("ValueError: nan", "[rank3]: ").split("\n")
    frames = [f"frame #{number}: f() + 0x1 (0x2 in libc.so)" for number in range(40)]
    excerpt = failure_excerpt([*bad, *frames])
    assert excerpt.above == "[rank3]: ValueError: nan"
    assert len(excerpt.lines) == 15
    assert failure_excerpt([*bad, *frames[:5]]).above == ""


def test_what_merely_came_last_does_not_say_why() -> None:
    assert not failure_excerpt(["step 3"]).explains
    assert failure_excerpt(["Killed"]).explains


PIECES = st.sampled_from(
    [
        b"Traceback (most recent call last):",
        b'  File "x.py"',
        b"ValueError: x",
        b"[rank1]: ",
        b"2: ",
        b"2026-11-21 15:32:42 ",
        b"\n",
        b"Root Cause (first observed failure):",
        b"  traceback : Traceback (most recent call last):",
        b"  rank      : 3",
        b"=====",
        b"Failures:",
        b"During handling of the above exception",
        b"srun: error: n01: task 3: Exited with exit code 1",
        b"\x1b[31m",
        b"\r",
        b"[[[[[",
    ]
)


@given(st.lists(st.one_of(PIECES, st.binary(max_size=40)), max_size=60).map(b"".join))
def test_no_bytes_break_it(raw: bytes) -> None:
    excerpt = failure_excerpt(shown(raw))
    # A no-break space is shown as one.
    shown_text = "".join((*excerpt.lines, excerpt.text, excerpt.above)).replace("\xa0", " ")
    assert shown_text.isprintable()
    assert bool(excerpt.text) == any(line.strip() for line in excerpt.lines)


@for_each(
    "line",
    [
        "[" * 9000,
        "1: " * 3000,
        "a" * 9000,
        " " * 9000 + "x",
        "FAILED " * 2000,
        "/" * 9000,
        "a." * 5000,
        "Error: " * 999,
    ],
    ids=lambda line: repr(line[:8]),
)
def test_long_lines_are_judged_at_once(line: str) -> None:
    assert root_cause([line] * MAX_LINES) is not None


@pytest.mark.system
@pytest.mark.parametrize(
    ("script", "why"),
    [
        (slurm_preamble(Launcher.PLAIN, 2), "nodes given: 3, asked for: 2. Not started."),
        (
            f"slots=(4 2)\n{pbs_preamble(Launcher.ACCELERATE)}",
            "the hosts have slots in different numbers (4 2), which accelerate cannot use: not "
            "started",
        ),
        (
            "\n".join(source_login("/no such/login")),
            "hpcdash: /no such/login must be your own file with mode 0600; nothing was started",
        ),
    ],
)
def test_what_a_script_made_here_says_before_it_ends_is_why(script: str, why: str) -> None:
    environment = {"SLURM_JOB_NUM_NODES": "3", "PATH": "/usr/bin:/bin"}
    ended = subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    noise = [
        "warning: something is deprecated",
        *ended.stderr.splitlines(),
        "srun: error: n1: task 0: Exited with 1",
    ]
    found = failure_excerpt(noise)
    assert (found.text, found.explains) == (why, True)


@for_each(
    "remark",
    [
        "srun: launch/slurm: _step_signal: Terminating StepId=12.0",
        "srun: got SIGCONT",
        "srun: forcing job termination",
        "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.",
        "srun: error: gpu-01: task 0: Terminated",
        "slurmstepd-gpu-01.cluster: error: *** STEP 12.0 ON gpu-01 CANCELLED AT "
        "2026-11-28T11:43:17 ***",
        "slurmstepd: error:  mpi/pmix_v4: _errhandler: gpu-01 [0]: pmixp_client_v2.c:211: Error "
        "handler invoked",
        "[gpu-01:4711] PMIX ERROR: PMIX_ERR_UNREACH in file ptl_tcp_component.c at line 1849",
        "prterun noticed that process rank 0 with PID 4711 on node gpu-01 exited on signal 11 "
        "(Segmentation fault).",
        "mpirun noticed that process rank 1 with PID 4712 on node gpu-01 exited on signal 9 "
        "(Killed).",
        "Primary job  terminated normally, but 1 process returned",
    ],
)
def test_a_launchers_remark_is_never_the_cause(remark: str) -> None:
    cause = root_cause(["epoch 3 begins", remark, "-" * 70])
    assert cause is not None
    assert cause.line == "epoch 3 begins"
    own = root_cause(["ValueError: bad shape", remark])
    assert own is not None
    assert own.line == "ValueError: bad shape"
