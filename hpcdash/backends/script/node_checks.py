"""Ready checks of a node: bash that tries GPUs, disks and clock, and the parser of its output."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence

from msgspec import Struct

from hpcdash.shell_files import shell_text

# The driver and each GPU that is visible: memory is written on it and read back.
_CUDA = """\
import ctypes, struct, sys
from ctypes import byref, c_int, c_size_t, c_void_p
try:
    cuda = ctypes.CDLL("libcuda.so.1")
except OSError as error:
    sys.exit("the driver cannot be loaded: %s" % error)
def call(where, what, *words):
    code = getattr(cuda, what)(*words)
    if code:
        name = ctypes.c_char_p()
        cuda.cuGetErrorName(code, byref(name))
        sys.exit("%s: %s returned %s" % (where, what, (name.value or b"%d" % code).decode()))
call("the driver", "cuInit", 0)
count, size = c_int(), 64 << 20
call("the driver", "cuDeviceGetCount", byref(count))
if not count.value:
    sys.exit("the driver shows no GPU")
for at in range(count.value):
    device, uuid, context, memory = c_int(), (ctypes.c_ubyte * 16)(), c_void_p(), c_void_p()
    call("GPU %d" % at, "cuDeviceGet", byref(device), at)
    call("GPU %d" % at, "cuDeviceGetUuid", uuid, device)
    digits = bytes(uuid).hex()
    where = "GPU-" + "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
    call(where, "cuCtxCreate_v2", byref(context), 0, device)
    call(where, "cuMemAlloc_v2", byref(memory), c_size_t(size))
    call(where, "cuMemsetD32_v2", memory, 0x5AA5A55A, c_size_t(size // 4))
    back = ctypes.create_string_buffer(size)
    call(where, "cuMemcpyDtoH_v2", back, memory, c_size_t(size))
    if back.raw != struct.pack("=I", 0x5AA5A55A) * (size // 4):
        sys.exit(where + ": memory returns different bytes than were written")
    call(where, "cuMemFree_v2", memory)
    call(where, "cuCtxDestroy_v2", context)
print("%d with their memory" % count.value)
"""
# Whether all visible GPUs of the node reach each other.
_NCCL = """\
import ctypes, glob, importlib.util, os, sys
found = importlib.util.find_spec("nvidia.nccl") if importlib.util.find_spec("nvidia") else None
places = [os.path.join(place, "lib") for place in (found.submodule_search_locations or ())] if found else []
names = ["libnccl.so.2"] + [name for place in places for name in glob.glob(os.path.join(place, "libnccl.so*"))]
nccl = cuda = None
for name in names:
    try:
        nccl = nccl or ctypes.CDLL(name)
    except OSError:
        pass
if nccl is None:
    print("libnccl.so.2 not found")
    sys.exit(77)
try:
    cuda = ctypes.CDLL("libcuda.so.1")
except OSError as error:
    sys.exit("the driver cannot be loaded: %s" % error)
count = ctypes.c_int()
if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
    sys.exit("the driver shows no GPU")
links = (ctypes.c_void_p * count.value)()
code = nccl.ncclCommInitAll(links, count.value, None)
if code:
    nccl.ncclGetErrorString.restype = ctypes.c_char_p
    sys.exit("%d GPUs: ncclCommInitAll returned %s" % (count.value, nccl.ncclGetErrorString(code).decode()))
for link in links:
    nccl.ncclCommDestroy(ctypes.c_void_p(link))
print("%d GPUs reach each other" % count.value)
"""


class NodeCheck(Struct, frozen=True):
    """Node check: its description, time limit, and program, which prints a finding in its last
    line.

    It exits with 77 where there is nothing to check. `python` is a program in Python 3.8, of the
    standard library; '' for the bash in `check_NAME.sh`.
    """

    description: str
    limit_seconds: int
    python: str = ""
    needs_gpus: bool = True


CHECKS = {
    "cuda": NodeCheck("the driver, and memory of each GPU", 60, _CUDA),
    "nccl": NodeCheck("communication between the GPUs of a node", 90, _NCCL),
    "gpu-memory": NodeCheck("leftovers of other jobs on the GPUs, and memory errors", 30),
    "disk": NodeCheck("writing to the temporary folder and /dev/shm", 60, needs_gpus=False),
    "clock": NodeCheck("the clock compared to the file system", 20, needs_gpus=False),
}
_NO_PYTHON = "type -P python3 > /dev/null || { echo 'python3 not found'; exit 77; }\n"
_SAID = re.compile(
    r"(?P<node>[A-Za-z0-9][A-Za-z0-9._-]{0,254}): (?:check (?P<name>[a-z-]+): "
    r"(?P<state>ok|skipped)(?:: (?P<words>.*))?"
    r"|hpcdash: the (?P<failed>[a-z-]+) check failed: (?P<finding>.*)|gpus: (?P<gpus>[GPU0-9a-f "
    r"-]*))"
)
_GPU = re.compile(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class CheckResult(Struct, frozen=True):
    """Result of one check on one node: `state` is ok, skipped or failed. `text` is hostile."""

    node: str
    name: str
    state: str
    text: str

    @property
    def gpus(self) -> tuple[str, ...]:
        """The GPUs that it names."""
        return tuple(_GPU.findall(self.text))


def ready_names(text: str) -> tuple[str, ...]:
    """The ready checks that a probe names, with blanks or commas between; () for bash of a person's
    own.
    """
    names = tuple(text.replace(",", " ").split())
    return names if names and all(name in CHECKS for name in names) else ()


def probe_text(text: str) -> str:
    """The bash of a probe: that of the ready checks it names, else itself."""
    names = ready_names(text)
    return checks_text(names) if names else text


def checks_text(names: Iterable[str]) -> str:
    """Bash that runs ready checks on a node, prints a line for each, and ends with 1 where one
    failed.
    """
    lines = [shell_text("backends/script/node_checks.sh")]
    for name in dict.fromkeys(names):
        check = CHECKS[name]
        if check.python:
            text = f"{_NO_PYTHON}exec python3 -c {shlex.quote(check.python)}"
        else:
            text = shell_text(f"backends/script/check_{name.replace('-', '_')}.sh")
        lines.append(f"check {name} {check.limit_seconds} {shlex.quote(text)}\n")
    return "".join((*lines, '[ -z "$failed" ]\n'))


def command_text(names: Iterable[str], node_name: str) -> str:
    """The command of a job that checks its nodes: `node_name` is bash for the name of one.

    It ends well whatever is found: the end of one would end those on other nodes.
    """
    return (
        "IFS= read -r -d '' checks << 'END_OF_CHECKS'\n"
        f"{checks_text(names)}END_OF_CHECKS\n"
        f'bash -c "$checks" | sed -u "s/^/{node_name}: /"\nexit 0'
    )


def parse_results(
    lines: Iterable[str],
) -> tuple[tuple[CheckResult, ...], dict[str, tuple[str, ...]]]:
    """(what the checks found, the GPUs of each node) in the log of a job."""
    found: dict[tuple[str, str], CheckResult] = {}
    gpus: dict[str, tuple[str, ...]] = {}
    for line in lines:
        reported = _SAID.fullmatch(line.rstrip("\r\n"))
        if reported is None:
            continue
        node = reported["node"]
        if reported["gpus"] is not None:
            gpus[node] = tuple(_GPU.findall(reported["gpus"]))
        elif reported["failed"]:
            found[node, reported["failed"]] = CheckResult(
                node, reported["failed"], "failed", reported["finding"]
            )
        else:
            found[node, reported["name"]] = CheckResult(
                node, reported["name"], reported["state"], reported["words"] or ""
            )
    return tuple(found.values()), gpus


def parse_names(parts: Sequence[str]) -> str:
    """Names as a probe has them, each once. Raises ValueError, naming one that there is not."""
    for word in parts:
        if word not in CHECKS:
            raise ValueError(word)
    return ",".join(dict.fromkeys(parts))
