"""Which of sbatch's options a person may give besides a request, and which the request alone says. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hpcdash.backends.script.body import raise_for
from hpcdash.domain import sbatch
from hpcdash.launch.directive_words import slurm_word, whole_options

# What slots, queue, files and requeue of a request say; by their long names.
RESERVED = (
    "ntasks-per-node",
    "gpus",
    "nodes",
    "ntasks",
    "chdir",
    "error",
    "output",
    "partition",
    "requeue",
    "no-requeue",
)
# Those of no job: with them sbatch submits none, waits for its end, or takes another script.
_OF_NO_JOB = frozenset({"test-only", "wait", "wrap", "help", "usage", "version"})


def slurm_extra_options(extra_args: Iterable[str], exclude_nodes: Iterable[str] = ()) -> tuple[str, ...]:
    """A person's own options as they were written, each once, in order, and the nodes to leave out.

    Raises UsageError naming all options that are the request's to say, however spelt: `-N4`, `--node=4`, `-N 4`.
    """
    kept: dict[str, None] = {}
    refused: list[tuple[str, str]] = []
    for text in whole_options(extra_args, _read, slurm_word):
        option = text.strip()
        if not option:
            continue
        if not option.isprintable():
            refused.append(
                (f"{option!r} in extra_args holds what cannot stand in one line", "Write one option an item.")
            )
            continue
        told: set[str] = set()
        for name, written in _named(option):
            if written in told:
                continue
            if name in RESERVED:
                refused.append((f"{written} is not for extra_args: the request says it itself", _in_its_place(name)))
            elif name in _OF_NO_JOB:
                refused.append(
                    (f"{written} is not for extra_args: it asks for no job that runs by itself", "Leave it out.")
                )
            else:
                continue
            # What may be short for several is told once.
            told.add(written)
        if rest := _read(option).script:
            # sbatch leaves out what follows the first word that is no option.
            refused.append(
                (f"{rest[0]!r} in extra_args is no option of sbatch", "Write one option an item, its value in quotes.")
            )
        if any(_is_gpu(entry) for entry in _gres(option)):
            words = "--gres=gpu is not for extra_args: the request's slots ask for GPUs"
            refused.append((words, "Its fields are slots, slots_per_node, gpu_type."))
        kept[option] = None
    raise_for(refused)
    nodes = ",".join(dict.fromkeys(exclude_nodes))
    return (*kept, *((f"--exclude={nodes}",) if nodes else ()))


def _read(text: str) -> sbatch.CommandLine:
    return sbatch.read_command_line(sbatch.split_words(text))


def _named(text: str) -> Iterator[tuple[str, str]]:
    """(long name, as written) of each option; of an abbreviation that sbatch finds ambiguous all it may mean."""
    for option in _read(text).given:
        if not option.problem:
            yield option.name, option.written
        elif option.written.startswith("--"):
            yield from ((name, option.written) for name in RESERVED if name.startswith(option.written[2:]))


def _gres(text: str) -> Iterator[str]:
    for option in _read(text).options:
        if option.name == "gres":
            yield from (option.value or "").split(",")


def _is_gpu(entry: str) -> bool:
    """`gpu`, `gpu:4`, `gpu:a100:4`, `gres/gpu=4`."""
    return entry.strip().removeprefix("gres/").partition(":")[0].partition("=")[0] == "gpu"


def _in_its_place(name: str) -> str:
    field = {
        "partition": "queue",
        "chdir": "work_dir",
        "requeue": "requeue",
        "no-requeue": "requeue",
        "output": "work_dir: the log is in the launch's own folder",
        "error": "work_dir: the log is in the launch's own folder",
    }.get(name, "slots and slots_per_node")
    return f"Its field is {field}."
