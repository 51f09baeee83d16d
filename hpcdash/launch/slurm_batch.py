"""A request as sbatch's script. Knows no connection and no other scheduler."""

from __future__ import annotations

from hpcdash.backends.options import said_twice
from hpcdash.backends.script.body import (
    BatchScript,
    Place,
    asked_words,
    body_of,
    is_spread,
    name_of,
    resume_part,
    script_text,
)
from hpcdash.backends.script.early_signal import signal_name, slurm_signal_option, slurm_signal_trap
from hpcdash.backends.script.fanout import START, exports, slurm_fanout, slurm_srun, status_kept
from hpcdash.backends.script.job_library import slurm_end_time
from hpcdash.backends.script.launchers import slurm_preamble
from hpcdash.backends.script.names import accounted_to, slurm_project
from hpcdash.backends.script.probe import slurm_probe
from hpcdash.backends.slurm import options as sbatch
from hpcdash.backends.slurm.options import slurm_extra_options, slurm_word
from hpcdash.domain.request import Request, slot_type_of, slots_of
from hpcdash.domain.units import format_clock
from hpcdash.launch.slurm_resources import slurm_resources

# Whose field an option is that a person may give in extra_args instead.
_FIELDS = {
    "job-name": "name",
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
_BETTER_AS_FIELDS = {
    "signal": "the script passes no signal on that it does not know of; write signal",
    "array": "all tasks write to one log; write array",
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
    if request.requeue and "open-mode" not in _given(extra):
        # Slurm empties a requeued job's logs, and a training's curve would begin anew.
        generated.append("--open-mode=append")
    generated, extra = _one_gres(generated, extra)
    warnings += _refuse_said_twice(generated, extra, request)
    excluded = slurm_extra_options((), request.exclude_nodes)
    body = body_of(request, place, slot_type, ("SLURM_*",))
    # Slurm is given a range of nodes for a number of GPUs; where each has its own number, there is but one that fits.
    is_range = any(option.startswith("--nodes=1-") for option in resources.options)
    nodes = slots_of(request).nodes if is_range and not is_spread(request, slot_type) else None
    tasks, options = body.start.tasks_per_node, body.start.srun_options
    parts = [
        exports(body.environment),
        body.definitions,
        body.library,
        slurm_end_time(request.limit_seconds) if request.job_library else "",
        resume_part(request, "SLURM_ARRAY_TASK_ID"),
        slurm_preamble(request.launcher, nodes),
        body.package,
    ]
    early_name = signal_name(request.signal) if request.signal else ""
    if probe := slurm_probe(request.site.node_probe, early_name):
        parts.append(probe)
    words = body.words
    if slots_of(request).nodes > 1 or tasks != 1:
        around, words = status_kept(words, early_name)
        parts.append(around)
    if request.signal and request.signal.batch_only:
        parts += [
            slurm_fanout(words, {}, step=1 if probe else 0, tasks_per_node=tasks, srun_options=options),
            slurm_signal_trap(request.signal),
            START,
        ]
    else:
        parts.append(slurm_srun(words, tasks_per_node=tasks, srun_options=options))
    others = [name for name in ("place", "attributes", "keep_files") if getattr(request, name)]
    said = (
        *warnings,
        *(f"{name}: Slurm has none, it is not asked for" for name in others),
        *resources.warnings,
        *(early.warnings if early else ()),
        *body.notes,
    )
    asked = asked_words(request, slot_type, is_slurm=True)
    return BatchScript(script_text(asked, (*generated, *extra, *excluded), "#SBATCH", parts), name, said)


def _files(request: Request, place: Place) -> list[str]:
    number = "%A_%a" if request.array else "%j"
    folder = f"{place.folder}/" if place.folder else ""
    return [f"--output={folder}{number}.out", f"--error={folder}{number}.err"]


def _amounts(request: Request) -> list[str]:
    """Time to the second, memory of a node in GiB or MiB, rounded up."""
    words = []
    if request.limit_seconds is not None:
        words.append(f"--time={format_clock(request.limit_seconds)}")
    if request.memory_bytes is not None:
        words.append(f"--mem={_memory(request.memory_bytes)}")
    return words


def _memory(amount_bytes: int) -> str:
    return f"{amount_bytes >> 30}G" if amount_bytes % 2**30 == 0 else f"{-(-amount_bytes // 2**20)}M"


def _accounted(request: Request) -> list[str]:
    return accounted_to(
        request.site.job_project_source,
        project=request.project,
        workspace=request.workspace,
        labels=request.labels,
    )


def _one_gres(generated: list[str], extra: tuple[str, ...]) -> tuple[list[str], tuple[str, ...]]:
    """A person's `--gres=tmp:10` beside the slots' own: of two such options sbatch takes the last alone.

    `--gres=none` asks for nothing besides; within a list sbatch would take it for a resource's name.
    """
    ours = next((option for option in generated if option.startswith("--gres=")), None)
    if ours is None:
        return generated, extra
    joined, kept = [ours], []
    for text in extra:
        read = sbatch.read_command_line(sbatch.split_words(text)).given
        if [option.name for option in read] == ["gres"]:
            joined += [value] if (value := read[0].value or "") and value.lower() != "none" else []
        else:
            kept.append(text)
    return [",".join(joined) if option == ours else option for option in generated], tuple(kept)


def _refuse_said_twice(generated: list[str], extra: tuple[str, ...], request: Request) -> tuple[str, ...]:
    """Raises UsageError for an option of both; warnings for those that a script is to know of."""

    ours = _given([*generated, *slurm_extra_options((), request.exclude_nodes)])
    fields = {name: _FIELDS.get(name, "the request") for name in ours}
    if request.cpus_per_gpu:
        fields |= dict.fromkeys(("cpus-per-gpu", "cpus-per-task"), "cpus_per_gpu")
    # sbatch takes one of the three alone.
    fields |= dict.fromkeys(("mem-per-cpu", "mem-per-gpu") if "mem" in ours else (), "memory")
    given = _given(extra)
    said_twice(fields, given)
    return tuple(f"{given[name]} in extra_args: {words}" for name, words in _BETTER_AS_FIELDS.items() if name in given)


def _given(options: list[str] | tuple[str, ...]) -> dict[str, str]:
    """Options by their long names, as they are written."""
    words = [word for text in options for word in sbatch.split_words(text)]
    return {option.name: option.written for option in sbatch.read_command_line(words).given if option.name}
