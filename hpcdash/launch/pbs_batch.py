"""A request as qsub's script. Knows no connection and no other scheduler."""

from __future__ import annotations

import re
import shlex

from hpcdash.backends.options import said_twice
from hpcdash.backends.pbs import options as qsub
from hpcdash.backends.pbs.options import pbs_attributes, pbs_extra_options, pbs_word, range_of_tasks
from hpcdash.backends.script.body import (
    BatchScript,
    Place,
    asked_words,
    body_of,
    name_of,
    names_said,
    resume_part,
    script_text,
)
from hpcdash.backends.script.early_signal import pbs_signal_timer, signal_name
from hpcdash.backends.script.fanout import START, pbs_fanout
from hpcdash.backends.script.job_library import pbs_end_time
from hpcdash.backends.script.launchers import pbs_preamble
from hpcdash.backends.script.names import PBS_NAME_LETTERS, accounted_to, pbs_project
from hpcdash.backends.script.probe import pbs_probe
from hpcdash.domain.offers import CpuShare
from hpcdash.domain.request import Request, slot_type_of, slots_of
from hpcdash.launch.pbs_resources import pbs_resources
from hpcdash.launch.script_demand import pbs_demand

_FIELDS = {"A": "account", "P": "project", "N": "name", "l": "time"}


def pbs_batch(
    request: Request,
    place: Place,
    *,
    queue_has_gpus: bool = True,
    has_live_logs: bool = True,
    cpu_share: CpuShare | None = None,
) -> BatchScript:
    """The script, with the scheduler's options as `#PBS` lines."""
    slot_type = slot_type_of(request, queue_has_gpus=queue_has_gpus)
    name, warnings = name_of(request, place.uid, PBS_NAME_LETTERS)
    resources = pbs_resources(request, slot_type, cpu_share)
    project = accounted_to(
        request.site.job_project_source, project=request.project, workspace=request.workspace, labels=request.labels
    )
    generated = [
        f"-N {name}",
        *_files(request, place),
        *([f"-q {pbs_word('queue', request.queue)}"] if request.queue else []),
        *([f"-A {pbs_word('account', request.account)}"] if request.account else []),
        *pbs_project(project),
        *([f"-J {range_of_tasks(request.array)}"] if request.array else []),
        *([f"-W depend=afterany:{':'.join(request.after)}"] if request.after else []),
        *(["-h"] if request.hold else []),
        *_rerun(request),
        *pbs_attributes(request.attributes, request.extra_args),
        *_keep_files(request, place, has_live_logs=has_live_logs),
    ]
    extra = pbs_extra_options(request.extra_args)
    _refuse_said_twice(generated, extra)
    limit = _limit(request, resources.options)
    body = body_of(request, place, slot_type, ("PBS_*",))
    folder = shlex.quote(request.work_dir) if request.work_dir else _start_folder(generated)
    parts = [
        f"cd -- {folder} || exit 1",
        body.definitions,
        body.library,
        pbs_end_time(_limit_seconds(request, resources.options)) if request.job_library else "",
        resume_part(request, "PBS_ARRAY_INDEX"),
        body.package,
        pbs_fanout(
            body.words,
            body.environment,
            passed_on=(
                *(["PYTHONPATH"] if body.library else []),
                *(["PY_EXEC"] if body.package else []),
                *names_said(request),
            ),
            slots_a_chunk=slots_of(request).per_node,
            lines_a_chunk=_lines_a_chunk(resources.options),
            logs=_logs(request, place) if slots_of(request).nodes > 1 else None,
        ),
        pbs_preamble(request.launcher),
        _timer(request, _limit_seconds(request, resources.options), has_package=bool(body.package)),
        pbs_probe(request.site.node_probe, body.environment, signal_name(request.signal) if request.signal else ""),
        START,
    ]
    said = (*warnings, *resources.warnings, *_unasked(request), *_rerun_warnings(request), *body.notes)
    asked = asked_words(request, slot_type, is_slurm=False)
    return BatchScript(script_text(asked, (*generated, *resources.options, *limit, *extra), "#PBS", parts), name, said)


def _timer(request: Request, limit_seconds: int | None, *, has_package: bool) -> str:
    if request.signal is None:
        return ""
    from hpcdash.job.packaging import FINISH

    return pbs_signal_timer(request.signal, limit_seconds, finish=FINISH if has_package else "")


def _files(request: Request, place: Place) -> list[str]:
    """Of an array a file a task; without a folder PBS writes NAME.oNUMBER where it is submitted from."""
    if not place.folder:
        return []
    name = "job.^array_index^" if request.array else "job"
    return [f"-o {place.folder}/{name}.out", f"-e {place.folder}/{name}.err"]


def _logs(request: Request, place: Place) -> tuple[str, str]:
    """Bash for the files of _files(), which are those of a task in an array's."""
    if not place.folder:
        return "/dev/null", "/dev/null"
    name = '"job.$PBS_ARRAY_INDEX"' if request.array else "job"
    folder = shlex.quote(place.folder)
    return f"{folder}/{name}.out", f"{folder}/{name}.err"


def _keep_files(request: Request, place: Place, *, has_live_logs: bool) -> list[str]:
    """Where nothing is asked for, logs that are written at once into the launch's folder, which all nodes see.

    PBS copies them at the end where a node cannot reach it.
    """
    if request.keep_files:
        return [f"-k {request.keep_files}"]
    return ["-k oed"] if place.folder and has_live_logs else []


def _start_folder(generated: list[str]) -> str:
    """Bash for the folder that is meant where none is named: PBS's own one of the job, where there is one."""
    is_private = any(option.lower() == "-w sandbox=private" for option in generated)
    return '"$PBS_JOBDIR"' if is_private else '"${PBS_O_WORKDIR:-$HOME}"'


def _rerun(request: Request) -> list[str]:
    """PBS refuses an array with -r n: "cannot submit non-rerunable Array Job"."""
    if request.requeue:
        return ["-r y"]
    return [] if request.array else ["-r n"]


def _rerun_warnings(request: Request) -> list[str]:
    if request.array is None or request.requeue:
        return []
    return ["PBS runs arrays only as rerunable: a task may start again after a node failure, though requeue is off"]


def _lines_a_chunk(asked: tuple[str, ...]) -> int:
    """How often a chunk's host stands in $PBS_NODEFILE: once for each of its mpiprocs."""
    found = re.search(r":mpiprocs=([1-9][0-9]{0,5})\b", " ".join(asked))
    return int(found[1]) if found else 1


def _limit(request: Request, asked: tuple[str, ...]) -> list[str]:
    if request.limit_seconds is None:
        return []
    if any("walltime=" in option for option in asked):
        said_twice({"walltime": "time"}, {"walltime": "-l walltime"})
    hours, rest = divmod(request.limit_seconds, 3600)
    return [f"-l walltime={hours:02}:{rest // 60:02}:{rest % 60:02}"]


def _limit_seconds(request: Request, asked: tuple[str, ...]) -> int | None:
    """The request's limit, else the walltime among the -l of a person's own options."""
    if request.limit_seconds is not None:
        return request.limit_seconds
    return pbs_demand([option for text in asked for option in qsub.read_directive(text).given]).limit_seconds


def _unasked(request: Request) -> list[str]:
    """What PBS has no option for."""
    said = []
    if request.qos:
        said.append(f"PBS knows no QoS: {request.qos} is not asked for")
    if request.exclude_nodes:
        said.append(f"PBS leaves no nodes out by name: {', '.join(request.exclude_nodes)} may be given all the same")
    return said


def _refuse_said_twice(generated: list[str], extra: tuple[str, ...]) -> None:
    def letters(options: list[str] | tuple[str, ...]) -> dict[str, str]:
        given = [option for text in options for option in qsub.read_directive(text).given]
        return {option.name: f"-{option.name}" for option in given if option.name not in ("", "W", "l")}

    said_twice({name: _FIELDS.get(name, "the request") for name in letters(generated)}, letters(extra))
