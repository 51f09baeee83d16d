"""A request as sbatch's script. Knows no connection and no other scheduler."""

from __future__ import annotations

from hpcdash.domain import sbatch
from hpcdash.launch.batch import BatchScript, Place, body_of, is_spread, name_of, said_twice, script_text
from hpcdash.launch.directive_words import slurm_word
from hpcdash.launch.early_signal import slurm_signal_option, slurm_signal_trap
from hpcdash.launch.fanout import START, slurm_fanout
from hpcdash.launch.launchers import slurm_preamble
from hpcdash.launch.names import accounted_to, slurm_project
from hpcdash.launch.request import Request
from hpcdash.launch.slots import slot_type_of, slots_of
from hpcdash.launch.slurm_reserved import slurm_extra_options
from hpcdash.launch.slurm_resources import slurm_resources

# Whose field an option is that a person may give in extra_args instead.
_FIELDS = {
    "account": "account",
    "qos": "qos",
    "time": "time",
    "mem": "memory",
    "array": "array",
    "dependency": "after",
    "hold": "hold",
    "signal": "signal",
    "exclude": "exclude_nodes",
    "wckey": "project",
    "cpus-per-task": "slots_per_node",
    "gpus-per-task": "slots_per_node",
}
_LONGEST_NAME = 200


def slurm_batch(request: Request, place: Place, *, queue_has_gpus: bool = True) -> BatchScript:
    """The script, with the scheduler's options as `#SBATCH` lines."""
    slot_type = slot_type_of(request, queue_has_gpus=queue_has_gpus)
    name, warnings = name_of(request, place.uid, _LONGEST_NAME)
    resources = slurm_resources(request, slot_type)
    early = slurm_signal_option(request.signal) if request.signal else None
    generated = [
        f"--job-name={name}",
        *_files(request, place),
        *([f"--partition={slurm_word('queue', request.queue)}"] if request.queue else []),
        *resources.options,
        *_amounts(request),
        *([f"--account={slurm_word('account', request.account)}"] if request.account else []),
        *([f"--qos={slurm_word('qos', request.qos)}"] if request.qos else []),
        *slurm_project(_accounted(request)),
        *([f"--chdir={slurm_word('work_dir', request.work_dir)}"] if request.work_dir else []),
        *([f"--array={request.array}"] if request.array else []),
        *([f"--dependency=afterany:{':'.join(request.after)}"] if request.after else []),
        *(["--hold"] if request.hold else []),
        *(early.options if early else ()),
        "--requeue" if request.requeue else "--no-requeue",
    ]
    extra = slurm_extra_options(request.extra_args)
    _refuse_said_twice(generated, extra, request)
    excluded = slurm_extra_options((), request.exclude_nodes)
    body = body_of(request, place, slot_type, ("SLURM_*",))
    nodes = None if is_spread(request, slot_type) and slots_of(request).nodes > 1 else slots_of(request).nodes
    parts = [
        body.definitions,
        slurm_preamble(request.launcher, nodes),
        slurm_fanout(
            body.words,
            body.environment,
            tasks_per_node=body.start.tasks_per_node,
            srun_options=body.start.srun_options,
        ),
        slurm_signal_trap(request.signal) if request.signal else "",
        START,
    ]
    said = (*warnings, *resources.warnings, *(early.warnings if early else ()), *body.notes)
    return BatchScript(script_text((*generated, *extra, *excluded), "#SBATCH", parts), name, said)


def _files(request: Request, place: Place) -> list[str]:
    number = "%A_%a" if request.array else "%j"
    folder = place.folder.replace("%", "%%") + "/" if place.folder else ""
    return [f"--output={folder}{number}.out", f"--error={folder}{number}.err"]


def _amounts(request: Request) -> list[str]:
    """Time in whole minutes where it is one, memory of a node in MiB; both rounded up."""
    words = []
    if request.limit_seconds is not None:
        days, rest = divmod(request.limit_seconds, 86400)
        clock = f"{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
        words.append(f"--time={f'{days}-' if days else ''}{clock}")
    if request.memory_bytes is not None:
        words.append(f"--mem={-(-request.memory_bytes // 2**20)}M")
    return words


def _accounted(request: Request) -> list[str]:
    return accounted_to(
        request.site.job_project_source,
        project=request.project,
        workspace=request.workspace,
        labels=request.labels,
    )


def _refuse_said_twice(generated: list[str], extra: tuple[str, ...], request: Request) -> None:
    def named(options: list[str] | tuple[str, ...]) -> dict[str, str]:
        words = [word for text in options for word in sbatch.split_words(text)]
        return {option.name: option.written for option in sbatch.read_command_line(words).given if option.name}

    ours = named([*generated, *slurm_extra_options((), request.exclude_nodes)])
    said_twice({name: _FIELDS.get(name, "the request") for name in ours}, named(extra))
