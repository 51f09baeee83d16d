"""A request as a Ray job: its package, which Ray unpacks beside the driver, and the job that runs
it.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import shlex
import zipfile
from collections.abc import Mapping
from functools import cache, partial
from importlib import resources
from types import MappingProxyType
from typing import Any

from hpcdash.backends.actions import ActionCommand, Outcome
from hpcdash.backends.base import RequestField
from hpcdash.backends.queries import TEXT_BYTES, Answer, Query
from hpcdash.backends.ray.actions import PACKAGES, ScriptSubmit, submit_command
from hpcdash.backends.ray.jobs import RESOURCES_KEY, SCRIPT_KEY, SWITCH_VARIABLES
from hpcdash.backends.ray.responses import read_responses, refusal
from hpcdash.backends.ray.runtime_env import read_runtime_env
from hpcdash.backends.ray.slices import SliceType, slice_type, types_among
from hpcdash.backends.script.body import bound_folders
from hpcdash.backends.script.call import (
    RESULT_NAMES,
    call_files,
    call_names,
    call_python,
    runner_command,
)
from hpcdash.backends.script.resume import fixed_part, resume_lines
from hpcdash.backends.submissions import SentFile, SubmittedRequest
from hpcdash.domain.demand import LintFinding, nearest
from hpcdash.domain.offers import Offers
from hpcdash.domain.request import (
    NOT_KEPT,
    Call,
    Launcher,
    Request,
    Runtime,
    SlotType,
    without_secret_values,
)
from hpcdash.domain.text import counted
from hpcdash.domain.units import format_memory, parse_duration
from hpcdash.errors import HpcdashError, UsageError
from hpcdash.job.results import JSON
from hpcdash.shell_files import shell_text

_DRIVER = "slice_driver"
LIBRARY_NAME = "hpcdash-job.zip"
_REQUEST_NAME = "request.json"
# Stands for the folder of the package, which is another one on each node: the variable of this name
# has it.
_PACKAGE = "/HPCDASH_PACKAGE"
_RUN_NAME = "hpcdash-run.sh"
# There is no folder to fetch a result from: its line stands at the end of the log.
_RESULT, _FAILURE = "hpcdash-result: ", "hpcdash-failure: "
# Limit of the dashboard for one request: DASHBOARD_CLIENT_MAX_SIZE of
# ray/_private/ray_constants.py.
_MAX_PACKAGE_BYTES = 100 << 20
_MIN_BYTES_A_SECOND = 64 * 1024
# The earliest time that a zip can store: the same files give the same bytes.
_WHEN = (1980, 1, 1, 0, 0, 0)
_RETRIES_PREEMPTION, _RETRIES_FAILURE = 10_000, 10
_MAX_SLICES = 4096
_GROW_AFTER_SECONDS, _GROW_EVERY_SECONDS = 12 * 3600, 3 * 3600
_LONGEST_SECONDS = 366 * 86400
# Each worker writes its own lines, with its attempt and number. The driver itself reports a missing
# slice, less often than Ray's autoscaler.
_ENTRYPOINT = f"RAY_DEDUP_LOGS=0 RAY_COLOR_PREFIX=0 RAY_SCHEDULER_EVENTS=0 python -m {_DRIVER}"
# Fields without use for a Ray job. Its resources are those of its entrypoint, or its slices.
_REFUSED = (
    *(
        "script",
        "array",
        "after",
        "hold",
        "queue",
        "account",
        "qos",
        "limit_seconds",
        "place",
        "signal",
    ),
    *(
        "requeue",
        "max_requeues",
        "exclude_nodes",
        "extra_args",
        "attributes",
        "keep_files",
        "slots_per_node",
        "gpu_type",
    ),
    *(
        "begin",
        "project",
        "cpus_per_gpu",
        "rank_variables",
        "rank_logs",
        "reservation",
        "share",
        "pool",
    ),
)
# A run on slices takes whole machines.
_NOT_WITH_SLICE = ("slots", "slot_type", "memory_bytes")
WITHOUT_FIELDS = frozenset(
    {"time" if name == "limit_seconds" else name for name in _REFUSED} | {"launcher", "plain"}
)
_USUAL = Request()


def _slice(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("expected a slice type in quotes, such as v4-256")
    return slice_type(value).name


def _num_slices(value: object) -> tuple[int, ...]:
    sizes = value if isinstance(value, list) else [value]
    if not sizes or any(type(size) is not int or not 1 <= size <= _MAX_SLICES for size in sizes):
        raise ValueError(
            "expected a number of slices, or an array of those that fit, as in [2, 4, 8]"
        )
    return tuple(sorted(set(sizes)))


def _retries(value: object) -> int:
    if type(value) is not int or not 0 <= value <= 1_000_000:
        raise ValueError("expected the number of retries, a whole number")
    return value


def _seconds(value: object) -> int:
    if type(value) is int and 1 <= value <= _LONGEST_SECONDS:
        return value
    found = parse_duration(value) if isinstance(value, str) else None
    if found is None or not 1 <= found <= _LONGEST_SECONDS:
        raise ValueError('expected a duration, as in "12h"')
    return found


def _chips(value: object) -> int:
    if type(value) is not int or not 0 <= value <= 64:
        raise ValueError("expected the amount of the TPU resource per worker, a whole number")
    return value


REQUEST_FIELDS = (
    RequestField("slice", _slice, is_text=False),
    RequestField("num_slices", _num_slices, is_text=False),
    RequestField("tpus_per_worker", _chips, is_text=False),
    RequestField("retries_preemption", _retries, is_text=False),
    RequestField("retries_failure", _retries, is_text=False),
    RequestField("grow_after", _seconds, is_text=False),
    RequestField("grow_every", _seconds, is_text=False),
    RequestField("runtime_env", read_runtime_env, is_text=False),
)


def _shown_runtime_env(request: Request) -> object:
    return without_secret_values(request.runtime_env)


def _slice_findings(request: Request, offers: Offers) -> tuple[LintFinding, ...]:
    kind = slice_type(request.slice)
    heads = offers.queue(kind.head_resource)
    least = min(request.num_slices or (1,))
    if heads is None:
        step = (
            nearest(kind.name, types_among(queue.name for queue in offers.queues))
            or "It has no other slice either."
        )
        return (
            LintFinding(
                "warning",
                "slice",
                f"the cluster has no {kind.name} now: the job waits for one",
                step,
            ),
        )
    found = []
    if least > heads.nodes:
        there = f"the cluster has {counted(heads.nodes, 'slice')} of {kind.name} now"
        found.append(LintFinding("warning", "num_slices", f"{there}: the job waits for {least}"))
    tpus = offers.queue("TPU")
    requested = _tpus(request, kind)
    most = (tpus.gpus_per_node or 0) if tpus else 0
    if requested > most:
        text = f"no node has {counted(requested, 'TPU')} now, at most {most}: the job waits for one"
        found.append(
            LintFinding("warning", "tpus_per_worker", text, f"Set tpus_per_worker = {most}.")
        )
    return tuple(found)


def _node_findings(request: Request, offers: Offers) -> tuple[LintFinding, ...]:
    """Return findings on the resources that a single node must have."""
    cpus, gpus = (offers.queue(kind) for kind in ("CPU", "GPU"))
    is_cpu = request.slot_type is SlotType.CPU
    largest = (cpus.cpus_per_node if cpus else 0) if is_cpu else (gpus.gpus_per_node if gpus else 0)
    found = []
    if _needs_slots(request) and largest is not None and request.slots > largest:
        unit = "CPU" if is_cpu else "GPU"
        most = f", at most {largest}" if largest else ""
        text = f"no node has {counted(request.slots, unit)} now{most}: the job waits for one"
        found.append(LintFinding("warning", "slots", text))
    memory = cpus.memory_per_node_bytes if cpus else None
    if request.memory_bytes is not None and memory is not None and request.memory_bytes > memory:
        text = (
            f"no node has {format_memory(request.memory_bytes)} now, at most "
            f"{format_memory(memory)}"
        )
        found.append(LintFinding("warning", "memory", f"{text}: the job waits for one"))
    return tuple(found)


def _read_is_there(answer: Answer) -> bool:
    """Return whether a package was uploaded before.

    Ray stores it for ten minutes after a request.
    """
    [response] = read_responses(answer)
    return response.is_success


def _metadata(request: Request) -> dict[str, str]:
    """Return a request's metadata; the values are text."""
    reported = {
        "slice": request.slice,
        "workspace": request.workspace,
        "labels": ",".join(request.labels),
    }
    switches = dict(zip(SWITCH_VARIABLES, (request.kill_switch, request.save_switch), strict=True))
    return {name: value for name, value in {**reported, **switches}.items() if value}


def _on_slices(
    request: Request, name: str, mark: str
) -> tuple[dict[str, bytes], str, Mapping[str, Any], str]:
    kind = slice_type(request.slice)
    environment = _environment(request)
    requested: dict[str, Any] = {
        "slice": kind.name,
        "head_resource": kind.head_resource,
        "workers": kind.workers,
        "num_slices": request.num_slices or (1,),
        "tpus": _tpus(request, kind),
        "retries_preemption": _or(request.retries_preemption, _RETRIES_PREEMPTION),
        "retries_failure": _or(request.retries_failure, _RETRIES_FAILURE),
        "grow_after": _or(request.grow_after, _GROW_AFTER_SECONDS),
        "grow_every": _or(request.grow_every, _GROW_EVERY_SECONDS),
        "argv": ("bash", "-c", _script(request, mark)),
        "environment": environment,
        "container": _container(request, name),
    }
    text = json.dumps(requested, indent=1, sort_keys=True)
    unreported = {**requested, "environment": dict.fromkeys(environment, "…")}
    shown = json.dumps(unreported, indent=1, sort_keys=True, ensure_ascii=False)
    return {**_driver(), _REQUEST_NAME: text.encode()}, _ENTRYPOINT, {}, shown


def _tpus(request: Request, kind: SliceType) -> int:
    return _or(request.tpus_per_worker, kind.chips)


def _container(request: Request, name: str) -> dict[str, Any] | None:
    """Return the container settings for the driver: docker, or podman where it is requested.

    Raises UsageError for any other runtime.
    """
    container = request.container
    if container is None or container.runtime is Runtime.NONE:
        return None
    if container.runtime not in (None, Runtime.DOCKER, Runtime.PODMAN):
        raise UsageError(
            f"container.runtime: Ray cannot start a container with {container.runtime}",
            'Use "docker" or "podman" (default: docker).',
        )
    return {
        "program": "podman" if container.runtime is Runtime.PODMAN else "docker",
        "image": container.image.removeprefix("docker://"),
        "pull": container.force_pull,
        # A path alone would be a volume of docker's own.
        "binds": [
            bind if ":" in bind else f"{bind}:{bind}"
            for bind in (*container.binds, *bound_folders(request))
        ],
        # podman binds no folder that is not there.
        "made": [path] if (path := fixed_part(request.checkpoints)).startswith("/") else [],
        # docker allows few characters in names.
        "name": re.sub("[^a-zA-Z0-9_.-]", "-", f"hpcdash-{name}"),
    }


def _plain(
    request: Request, name: str, mark: str
) -> tuple[dict[str, bytes], str, Mapping[str, Any], str]:
    """A command on one node, with its slots as resources of the entrypoint."""
    if request.container is not None and request.container.runtime is not Runtime.NONE:
        raise UsageError("container: Ray starts containers only on slices", 'Set slice = "v4-8".')
    if request.num_slices:
        raise UsageError("num_slices needs a slice type", 'Set it: slice = "v4-256".')
    kind = "entrypoint_num_cpus" if request.slot_type is SlotType.CPU else "entrypoint_num_gpus"
    requested: dict[str, Any] = {kind: request.slots} if _needs_slots(request) else {}
    if request.memory_bytes is not None:
        requested["entrypoint_memory"] = request.memory_bytes
    exports = "".join(
        f"export {key}={shlex.quote(value)}\n" for key, value in _environment(request).items()
    )
    library = (
        f'export PYTHONPATH="$PWD/{LIBRARY_NAME}${{PYTHONPATH:+:$PYTHONPATH}}"\n'
        if request.job_library
        else ""
    )
    library += f'export {_PACKAGE[1:]}="$PWD"\n' if request.call is not None else ""
    script = f"#!/bin/bash\n{library}{exports}{_script(request, mark)}"
    shown = f"#!/bin/bash\n{library}{''.join(f'export {key}=…' + chr(10) for key in _environment(request))}"
    return (
        {_RUN_NAME: script.encode()},
        f"bash {_RUN_NAME}",
        requested,
        shown + _script(request, mark),
    )


def _needs_slots(request: Request) -> bool:
    """Whether it needs slots: one slot of no type is the default, which needs no GPU."""
    return request.slot_type is not None or request.slots > 1


def _environment(request: Request) -> dict[str, str]:
    switches = dict(zip(SWITCH_VARIABLES, (request.kill_switch, request.save_switch), strict=True))
    return {**request.environment, **{key: value for key, value in switches.items() if value}}


def _script(request: Request, mark: str) -> str:
    """Bash that one worker runs."""
    folder = f"cd -- {shlex.quote(request.work_dir)} || exit 1\n" if request.work_dir else ""
    resume = resume_lines(request.checkpoints, "RANK") if request.checkpoints else ""
    hook = f"{request.startup_hook.rstrip()}\n" if request.startup_hook else ""
    command = request.command if request.call is None else _call(request, request.call, mark)
    return f"{folder}{hook}{resume}{command}\n"


def _call(request: Request, call: Call, mark: str) -> str:
    """Bash that calls a function with arguments that are in the package; its result goes into the
    folder it works in.

    Raises UsageError for what no Ray job can have of a call.
    """
    if not request.job_library:
        raise UsageError(
            "job_library: [call] needs it to start the function", "Remove job_library."
        )
    if call.package:
        raise UsageError(
            "call: Ray jobs cannot install a wheel or source in a venv",
            "Pass the folder as sys_path.",
        )
    files = {name: f"{_PACKAGE}/{name}" for name in call_names(call)}
    is_json = call.result_format == JSON
    # Runs in one folder leave each other's results alone.
    uid, (stem, dot, ending) = (
        mark.rpartition(":")[2],
        RESULT_NAMES[call.result_format].rpartition("."),
    )
    output = f"{request.work_dir or _PACKAGE}/{stem}-{uid}{dot}{ending}"
    message = runner_command(
        f"{call_python(call)} -m",
        call,
        request.work_dir or _PACKAGE,
        files,
        main=f"{_PACKAGE}/{call.main}" if call.main else "",
        submission_id=mark,
        sys_path=(*call.sys_path, request.work_dir or _PACKAGE),
        output=shlex.quote(output) if request.work_dir or is_json else "",
    )
    if is_json and not request.slice:
        printed = shell_text("backends/ray/print_result.sh")
        message += f"\nstatus=$?\noutput={shlex.quote(output)}\n{printed}"
    return message.replace(f"={_PACKAGE}", f'="${_PACKAGE[1:]}"')


def logged_result(content: bytes) -> tuple[bytes | None, bytes | None]:
    """The result (JSON) and the failure (JSON) that the end of a call's log holds; None for what it
    does not.
    """
    found = dict.fromkeys((_RESULT, _FAILURE))
    for line in content.splitlines():
        for mark in found:
            if line.startswith(mark.encode()):
                found[mark] = line.removeprefix(mark.encode())
    return found[_RESULT], found[_FAILURE]


def _or(value: int | None, usual: int) -> int:
    return usual if value is None else value


@cache
def _driver() -> dict[str, bytes]:
    """The driver's files by their names in the package."""
    folder = resources.files("hpcdash.backends.ray") / "driver"
    return {
        f"{_DRIVER}/{file.name}": file.read_bytes()
        for file in folder.iterdir()
        if file.name.endswith(".py")
    }


def _zip(content: Mapping[str, SentFile]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as made:
        for name in sorted(content):
            entry = zipfile.ZipInfo(name, _WHEN)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100700 if content[name].is_program else 0o100600) << 16
            made.writestr(entry, content[name].content)
    return out.getvalue()


def _read_upload(answer: Answer, *, name: str) -> tuple[Outcome, ...]:
    try:
        [response] = read_responses(answer)
    except HpcdashError as error:
        return (Outcome(name, False, error.message),)
    return (
        Outcome(name, response.is_success, "" if response.is_success else refusal(response.body)),
    )


class RaySubmit(ScriptSubmit):
    """Submission of scripts and requests by Ray's Jobs API."""

    takes_requests = True
    without_fields = WITHOUT_FIELDS

    def request(
        self,
        request: Request,
        library: bytes,
        mark: str,
        files: Mapping[str, SentFile] = MappingProxyType({}),
    ) -> SubmittedRequest:
        """Upload a request's package, then submit the job that runs it.

        Raises UsageError, naming a field of no use here.

        Variables of the environment go in the package: what a job is submitted with, everyone sees
        on the dashboard.
        """
        for name in _REFUSED:
            if getattr(request, name) != getattr(_USUAL, name):
                key = {"limit_seconds": "time"}.get(name, name)
                raise UsageError(
                    f"{key}: Ray jobs have no such setting",
                    "Remove it, or submit to another cluster.",
                )
        if request.plain:
            raise UsageError("plain: a Ray job has no batch script", "Remove it.")
        if NOT_KEPT in json.dumps(request.runtime_env):
            raise UsageError(
                "runtime_env: secrets are not saved with a submission",
                "Set its value, or remove it.",
            )
        if request.launcher is not Launcher.PLAIN:
            raise UsageError("launcher: Ray's driver starts the command itself", "Remove it.")
        for name in _NOT_WITH_SLICE if request.slice else ():
            if getattr(request, name) != getattr(_USUAL, name):
                key = {"memory_bytes": "memory"}.get(name, name)
                raise UsageError(
                    f"{key}: a slice gives each worker a whole machine",
                    "Remove it, or remove `slice`.",
                )
        name = request.name or request.slice or "job"
        content, entrypoint, requested, shown = (_on_slices if request.slice else _plain)(
            request, name, mark
        )
        if request.job_library:
            content[LIBRARY_NAME] = library
        if request.call is not None:
            content |= call_files(request.call)
        if taken := sorted(
            name
            for name in files
            if name.partition("/")[0] in {own.partition("/")[0] for own in content}
        ):
            raise UsageError(
                f"files: hpcdash uses the name {taken[0]} itself", "Rename it or remove it."
            )
        package = _zip({name: SentFile(one) for name, one in content.items()} | dict(files))
        if len(package) > _MAX_PACKAGE_BYTES:
            raise UsageError(
                f"files: {format_memory(len(package))} packed; Ray's dashboard accepts at most "
                f"{format_memory(_MAX_PACKAGE_BYTES)}",
                "Exclude files in .gitignore, or list fewer.",
            )
        uri = f"_ray_pkg_{hashlib.sha256(package).hexdigest()[:32]}.zip"
        body = {
            "entrypoint": entrypoint,
            "runtime_env": {**(request.runtime_env or {}), "working_dir": f"gcs://{uri}"},
            "metadata": {"job_name": name, **_metadata(request), SCRIPT_KEY: shown}
            | ({RESOURCES_KEY: json.dumps(requested)} if requested else {}),
            **requested,
        }
        if request.runtime_env:
            shown += (
                f"\n# runtime_env = {json.dumps(_shown_runtime_env(request), sort_keys=True)}\n"
            )
        size = format_memory(len(package))
        names = [*sorted(content), *([counted(len(files), "file") + " of yours"] if files else [])]
        upload = ActionCommand(
            ("PUT", f"{PACKAGES}{uri}"),
            (name,),
            partial(_read_upload, name=name),
            package,
            60.0 + len(package) / _MIN_BYTES_A_SECOND,
            shown=(f"PUT {PACKAGES}{uri} ({size}: {', '.join(names)})",),
        )
        is_there = Query(("GET", f"{PACKAGES}{uri}"), _read_is_there, cap_bytes=TEXT_BYTES)
        return SubmittedRequest((upload,), submit_command(body, name, mark, name), shown, is_there)

    def request_findings(self, request: Request, offers: Offers) -> tuple[LintFinding, ...]:
        """Return findings on secrets that the dashboard would show, and on missing resources.

        Resources that the cluster has none or too few of now are only known where it reports them.
        It may get them: a job that requests more waits.
        """
        found: tuple[LintFinding, ...] = ()
        if _shown_runtime_env(request) != request.runtime_env:
            text = (
                "it holds a password or a token, which everyone who reaches the dashboard can read"
            )
            found = (
                LintFinding(
                    "warning", "runtime_env", text, "Configure the package index on the nodes."
                ),
            )
        if not offers.queues:
            return found
        return (*found, *(_slice_findings if request.slice else _node_findings)(request, offers))
